#!/usr/bin/env bash
# Sets up what the checks need, then runs lint, the import contracts and all tests; fails if any of them does.
#   ./scripts/test.sh                        everything
#   ./scripts/test.sh tests/config -k x      pytest alone, with these arguments
set -u -o pipefail

cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." || exit 1
. scripts/find_python.sh

base="$(find_python)" || exit 1
python="$("$base" scripts/setup_env.py --test --print-python)" || exit 1
export HF_HUB_OFFLINE=1  # tests bring their own models

if [ $# -gt 0 ]; then
    exec "$python" -m pytest "$@"
fi

failed=""
check() { # check NAME COMMAND...: runs it, and remembers a failure while the others still get their turn
    local name="$1"
    shift
    "$@" || failed="$failed, $name (exit code $?)"
}

slow_tests() { # two at a time, for they wait for processes of their own more than they compute
    "$python" -m pytest -n 2 --dist loadscope -m slow
    local code=$?
    [ $code -eq 5 ] && return 0 # no test is marked slow
    return $code
}

# Modules are started by name: the scripts that pip wrote break when the folder is moved.
check "ruff" "$python" -m ruff check .
check "lint-imports" "$python" -c 'from importlinter.cli import lint_imports_command; lint_imports_command()'
# One thread each: two workers that both use all cores slow each other down.
check "quick tests" env OMP_NUM_THREADS=1 "$python" -m pytest -n 2 --dist loadscope -m "not slow"
check "slow tests" slow_tests

if [ -n "$failed" ]; then
    echo "Failed: ${failed#, }" >&2
    exit 1
fi
