# Sourced by the start scripts: find_python prints the command of a Python that is new enough for Chorus.
# bash 3.2 (macOS) must understand it.

find_python() {
    local candidate
    if [ -n "${PYTHON:-}" ]; then
        if ! is_new_enough "$PYTHON"; then
            echo "PYTHON=$PYTHON is not a working Python 3.10 or newer; set it to one, or unset it to let Chorus look." >&2
            return 1
        fi
        echo "$PYTHON"
        return
    fi
    for candidate in python3 python3.13 python3.12 python3.11 python3.10 python; do
        if is_new_enough "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    echo "Chorus needs Python 3.10 or newer and found none; install one from https://www.python.org" \
        "or with your package manager and start again." >&2
    return 1
}

# Asks the Python itself: a command of that name may be missing, too old, or a stub that only offers to install Python.
is_new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' </dev/null >/dev/null 2>&1
}
