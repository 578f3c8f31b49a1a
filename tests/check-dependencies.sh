#!/bin/sh
# The rules of docs/ARCHITECTURE.md on dependencies: one TLS stack, ring alone, nothing local in the Lambda binary.
set -eu
cargo=${CARGO:-cargo}

absent() { # absent SPEC WHY [FLAGS…]
    spec=$1 why=$2
    shift 2
    # Nothing is printed for a crate that only tests and benchmarks use.
    if tree=$($cargo tree --locked --edges normal,build --target all --invert "$spec" "$@" 2>/dev/null) && [ -n "$tree" ]; then
        echo "dependency rule broken: $spec is linked ($why)" >&2
        echo "$tree" >&2
        exit 1
    fi
}

absent aws-lc-rs "ring is the only TLS provider"
absent aws-lc-sys "ring is the only TLS provider"
absent rustls@0.21 "one TLS stack"
absent openssl-sys "one TLS stack"
absent native-tls "one TLS stack"
for local in rusqlite nostr-relay-builder clap axum; do
    absent "$local" "only local use needs it" --no-default-features
done

if command -v cargo-deny >/dev/null 2>&1; then
    $cargo deny check bans licenses sources
else
    echo "cargo-deny is not installed: licences were not checked"
fi
