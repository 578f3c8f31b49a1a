#!/bin/sh
# Runs a command with AWS on loopback (moto): `tests/moto/with-moto.sh cargo test`.
# The server ends with the command, whatever becomes of it. Needs python3; installs into .venv at the first run.
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
(cd "$root" && tests/python.sh tests/moto/requirements.txt)

scratch=$(mktemp -d)
"$root/.venv/bin/python" "$root/tests/moto/server.py" "$scratch/port" >"$scratch/log" 2>&1 &
server=$!
trap 'kill "$server" 2>/dev/null || true; rm -rf "$scratch"' EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

tries=0
until [ -s "$scratch/port" ]; do
    tries=$((tries + 1))
    if [ "$tries" -gt 300 ] || ! kill -0 "$server" 2>/dev/null; then
        echo "moto did not start:" >&2
        cat "$scratch/log" >&2
        exit 1
    fi
    sleep 0.1
done

# Both names: the tests ask for the first, the second sends any client of the AWS SDK to loopback too.
DIDACTYL_TEST_AWS=http://127.0.0.1:$(cat "$scratch/port")
AWS_ENDPOINT_URL=$DIDACTYL_TEST_AWS
AWS_ACCESS_KEY_ID=test
AWS_SECRET_ACCESS_KEY=test
AWS_REGION=eu-central-1
export DIDACTYL_TEST_AWS AWS_ENDPOINT_URL AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_REGION
unset AWS_PROFILE AWS_SESSION_TOKEN

"$@"
