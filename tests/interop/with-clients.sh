#!/bin/sh
# Runs a command with clients that others wrote: `tests/interop/with-clients.sh cargo test`.
# Needs python3 and npm; installs into .venv and node_modules at the first run. Without npm the command runs without
# them, unless CI=true: then nothing may be left out.
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
here=$root/tests/interop

if command -v npm >/dev/null 2>&1; then
    (cd "$root" && tests/python.sh tests/interop/requirements.txt)
    if ! cmp -s "$here/package-lock.json" "$here/node_modules/installed-lock.json"; then
        (cd "$here" && npm ci --silent --no-audit --no-fund)
        cp "$here/package-lock.json" "$here/node_modules/installed-lock.json"
    fi
    # The tests start `node` and this python.
    DIDACTYL_TEST_INTEROP=$here
    PATH=$root/.venv/bin:$PATH
    export DIDACTYL_TEST_INTEROP PATH
elif [ "${CI:-}" = true ]; then
    echo "the interop tests need npm: install Node.js" >&2
    exit 1
fi

"$@"
