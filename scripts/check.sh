#!/usr/bin/env bash
# Everything that can be wrong without running the product; goes through to the end and then names what failed.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

failed=()
step() { # name, command...
    local name=$1
    shift
    say "$name"
    "$@" || failed+=("$name")
}

step "lint" "$VENV/bin/ruff" check --quiet .
step "format" "$VENV/bin/ruff" format --check --output-format concise .
step "types" "$VENV/bin/mypy"
step "imports between rooms" "$VENV/bin/lint-imports" --no-logo --cache-dir "$CACHE/import-linter"
step "generated protobuf modules" "$VENV/bin/python" scripts/proto.py --check
step "lock files" bash scripts/lock.sh --check

[ ${#failed[@]} -eq 0 ] || fail "failed: $(printf '%s, ' "${failed[@]}" | sed 's/, $//')"
say "all checks passed"
