#!/usr/bin/env bash
# Runs the tests; arguments go to pytest. System packages that some tests need are installed where that is allowed.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# Debian's names of the packages whose programs are not here.
missing() {
    command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || echo chromium
    command -v bwrap >/dev/null || echo bubblewrap
}

packages=$(missing)
advice=""
if [ -n "$packages" ] && may_apt; then
    # shellcheck disable=SC2086  # one word for each package
    apt_install $packages || say "that failed; $CACHE/apt.log says why"
    packages=$(missing)
fi
if [ -n "$packages" ]; then
    advice="missing:$(printf ' %s' $packages); tests that need them are skipped; to run them: sudo apt-get install$(printf ' %s' $packages)"
    say "$advice"
fi

if [ $# -gt 0 ]; then
    exec "$VENV/bin/pytest" "$@"
fi

# Made before the tests' clocks run; without it the tests of Flink Agents are skipped, and say why.
"$VENV/bin/python" -m scripts.flink_env >/dev/null || say "the tests of Flink Agents are skipped"

# Playwright keeps an event loop alive in its process, where no asynchronous test can run: two processes, two runs.
failed=0
"$VENV/bin/pytest" -n 2 --dist worksteal --ignore tests/browser || failed=1
if compgen -G 'tests/browser/test_*.py' >/dev/null; then
    "$VENV/bin/pytest" -n 2 --dist loadfile tests/browser || failed=1
fi
if [ -n "$advice" ]; then
    say "$advice"
    # Nobody reads what a green pipeline skipped.
    [ -z "${CI:-}" ] || failed=1
fi
exit $failed
