#!/bin/sh
# Every sample of events/ through `cargo lambda watch` and `cargo lambda invoke`, as people try a function: an answer
# each, none of them an error. Needs cargo-lambda, and an agent's variables, such as those of examples/sandbox.rs.
set -eu
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}

address=127.0.0.1
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
log=$(mktemp)
$cargo build --quiet --bin didactyl-lambda # else the first invocation waits for it
$cargo lambda watch --ignore-changes --invoke-address $address --invoke-port "$port" >"$log" 2>&1 &
server=$!
trap 'kill "$server" 2>/dev/null || true; rm -f "$log"' EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

tries=0
until grep -q "starting Runtime server" "$log"; do
    tries=$((tries + 1))
    if [ "$tries" -gt 600 ] || ! kill -0 "$server" 2>/dev/null; then
        echo "cargo lambda watch did not start:" >&2
        cat "$log" >&2
        exit 1
    fi
    sleep 0.1
done

for sample in events/*.json; do
    echo "$sample"
    if ! $cargo lambda invoke didactyl-lambda --invoke-address $address --invoke-port "$port" --data-file "$sample"; then
        echo "$sample ended in an error:" >&2
        cat "$log" >&2
        exit 1
    fi
    echo
done
