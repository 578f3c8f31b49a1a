#!/bin/sh
# Runs a command with clients and servers that others wrote: `tests/interop/with-clients.sh cargo test`. Then the requests
# to models that the tests recorded are checked by somebody else's types.
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
    # The tests start `node`, this python and `llmock`, and record into the folder.
    DIDACTYL_TEST_INTEROP=$here
    DIDACTYL_TEST_REQUESTS=$(mktemp -d)
    trap 'rm -rf "$DIDACTYL_TEST_REQUESTS"' EXIT
    PATH=$root/.venv/bin:$PATH
    export DIDACTYL_TEST_INTEROP DIDACTYL_TEST_REQUESTS PATH
elif [ "${CI:-}" = true ]; then
    echo "the interop tests need npm: install Node.js" >&2
    exit 1
fi

"$@"

if [ -n "${DIDACTYL_TEST_REQUESTS:-}" ]; then
    python3 "$here/check_requests.py" "$DIDACTYL_TEST_REQUESTS"
fi
