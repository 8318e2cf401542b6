#!/usr/bin/env bash
# Sets up what the checks need, then runs lint, types, the import contracts and all tests; fails if any of them does.
#   ./scripts/test.sh                        everything that runs without a GPU
#   ./scripts/test.sh --gpu                  the tests that need an NVIDIA GPU; writes a report to send back
#   ./scripts/test.sh tests/config -k x      pytest alone, with these arguments
set -u -o pipefail

cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." || exit 1
. scripts/find_python.sh

base="$(find_python)" || exit 1
python="$("$base" scripts/setup_env.py --test --print-python)" || exit 1
export HF_HUB_OFFLINE=1  # tests bring their own models

if [ "${1:-}" = "--gpu" ]; then
    exec "$python" scripts/gpu_tests.py
fi
if [ $# -gt 0 ]; then
    exec "$python" -m pytest "$@"
fi

failed=""
check() { # check NAME COMMAND...: runs it, and remembers a failure while the others still get their turn
    local name="$1"
    shift
    "$@" || failed="$failed, $name (exit code $?)"
}

# Hundreds of processes that tests start import the same files: compiled once, not by each of them, as where the
# environment says PYTHONDONTWRITEBYTECODE=1.
unset PYTHONDONTWRITEBYTECODE
"$python" -m compileall -q modules scripts tests/support

# Modules are started by name: the scripts that pip wrote break when the folder is moved.
check "ruff" "$python" -m ruff check .
check "ruff format" "$python" -m ruff format --check .
check "lint-imports" "$python" -c 'from importlinter.cli import lint_imports_command; lint_imports_command()'
# Beside the tests, which leave the processors idle a quarter of the time; what it says comes after them.
types="$(mktemp)"
trap 'rm -f "$types"' EXIT
"$python" -m mypy >"$types" 2>&1 &
mypy=$!
# Three files (of classes, three classes) at a time, as tests wait a third of their time, in the order of
# tests/conftest.py: the longest first.
check "tests" "$python" -m pytest -n 3 --dist loadscope --no-loadscope-reorder
check "mypy" wait "$mypy"
cat "$types"

if [ -n "$failed" ]; then
    echo "Failed: ${failed#, }" >&2
    exit 1
fi
