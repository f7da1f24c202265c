#!/usr/bin/env bash
# Runs the tests; arguments go to pytest. System packages that some tests need are installed where that is allowed.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

missing=()
command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || missing+=(chromium)
command -v bwrap >/dev/null || missing+=(bubblewrap)
advice=""
if [ ${#missing[@]} -gt 0 ]; then
    if may_apt && apt_install "${missing[@]}"; then
        :
    else
        advice="missing: ${missing[*]}; the tests that need them are skipped; run: sudo apt-get install ${missing[*]}"
        say "$advice"
    fi
fi

if [ $# -gt 0 ]; then
    exec "$VENV/bin/pytest" "$@"
fi

# Playwright keeps an event loop alive in its process, where no asynchronous test can run: two processes, two runs.
failed=0
"$VENV/bin/pytest" -n 2 --dist worksteal --ignore tests/browser || failed=1
if compgen -G 'tests/browser/test_*.py' >/dev/null; then
    "$VENV/bin/pytest" -n 2 --dist loadfile tests/browser || failed=1
fi
[ -z "$advice" ] || say "$advice"
exit $failed
