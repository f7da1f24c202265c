#!/usr/bin/env bash
# Fetches the browser assets; where Node.js is missing, brings it from a Python package first.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

exec 9>"$CACHE/assets.lock"
flock 9

if ! command -v node >/dev/null || ! command -v npm >/dev/null; then
    if ! cmp -s scripts/node.lock "$CACHE/node/.lock"; then
        say "no Node.js with npm on the path: fetching one into $CACHE/node"
        rm -rf "$CACHE/node"
        "$VENV/bin/uv" pip install --quiet --target "$CACHE/node" --require-hashes -r scripts/node.lock
        cp scripts/node.lock "$CACHE/node/.lock"
    fi
    export PYTHONPATH="$PWD/$CACHE/node"
fi
say "fetching browser assets into static/vendor"
"$VENV/bin/python" scripts/assets.py
