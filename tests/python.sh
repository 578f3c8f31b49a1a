#!/bin/sh
# Installs a requirements file into .venv, where it is not installed yet: `tests/python.sh tests/moto/requirements.txt`.
# Needs python3 with venv.
set -eu

venv=$(cd "$(dirname "$0")/.." && pwd)/.venv
installed=$venv/installed/$1

if ! cmp -s "$1" "$installed"; then
    [ -x "$venv/bin/python" ] || python3 -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r "$1"
    mkdir -p "$(dirname "$installed")"
    cp "$1" "$installed"
fi
