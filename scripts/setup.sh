#!/usr/bin/env bash
# Makes .venv from requirements.lock, with the console itself installed for editing. Safe to run again and again.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# Two of these at once (two terminals, a test run beside a demo) would tear each other's environment.
exec 9>"$CACHE/setup.lock"
flock 9

find_python() {
    local candidate
    for candidate in "${PYTHON:-}" python3.11 python3.12 python3.13 python3.14 python3; do
        if [ -n "$candidate" ] && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    fail "no Python 3.11 or newer found; install it (Debian: apt-get install python3 python3-venv) or set PYTHON=/path/to/python"
}

make_venv() {
    local python version
    python=$(find_python)
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        may_apt && apt_install "python$version-venv" ||
            fail "$python cannot make virtual environments; run: sudo apt-get install python$version-venv"
    fi
    say "making $VENV with $python"
    "$python" -m venv --clear "$VENV"
}

# An environment whose interpreter is gone (an upgraded system, a copied checkout) is made anew.
venv_works() {
    [ "$("$VENV/bin/python" -c 'import os, sys; print(os.path.realpath(sys.prefix))' 2>/dev/null)" = "$PWD/$VENV" ] &&
        [[ "$(head -n 1 "$VENV/bin/pip" 2>/dev/null)" = "#!$PWD/$VENV/bin/python"* ]]
}

# uv comes from the lock file like everything else, so its bytes are checked as well.
bootstrap_uv() {
    awk '/^uv==/ {inside = 1} inside && !/^ *#/ {print} inside && !/\\$/ {exit}' requirements.lock >"$CACHE/uv.lock"
    cmp -s "$CACHE/uv.lock" "$VENV/.uv" && return
    say "fetching uv"
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes -r "$CACHE/uv.lock" </dev/null
    cp "$CACHE/uv.lock" "$VENV/.uv"
}

# A mirror that pip is told about counts for uv too.
[ -z "${PIP_INDEX_URL:-}" ] || export UV_DEFAULT_INDEX="${UV_DEFAULT_INDEX:-$PIP_INDEX_URL}"
# A user without a writable home keeps uv's cache in the checkout.
[ -w "${HOME:-/nonexistent}" ] || export UV_CACHE_DIR="${UV_CACHE_DIR:-$PWD/$CACHE/uv}"
# Hard links need the cache on the same file system; copying is the quiet way where it is not.
export UV_LINK_MODE="${UV_LINK_MODE:-$( [ "$(stat -c %d "${UV_CACHE_DIR:-$HOME}")" = "$(stat -c %d .)" ] && echo hardlink || echo copy)}"
export VIRTUAL_ENV="$PWD/$VENV"

venv_works || make_venv
bootstrap_uv
say "installing packages from requirements.lock"
"$VENV/bin/uv" pip sync --quiet --require-hashes --compile-bytecode requirements.lock
HINDCAST_SKIP_ASSETS=1 "$VENV/bin/uv" pip install --quiet --no-deps --no-build-isolation --editable .
# Every replay starts a process: where PYTHONDONTWRITEBYTECODE is set it would compile our code each time.
"$VENV/bin/python" -m compileall -q app
touch "$VENV/.ready"
