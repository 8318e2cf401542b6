# Sourced by the start scripts: find_python prints the command of a Python that PyTorch is built for.
# The system's own comes first, as its user expects; where that is newer or older, another that is installed beside it.
# bash 3.2 (macOS) must understand it.

find_python() {
    local candidate
    if [ -n "${PYTHON:-}" ]; then
        if ! will_do "$PYTHON"; then
            echo "PYTHON=$PYTHON is not a working Python 3.10 to 3.14; set it to one, or unset it to let Chorus look." >&2
            return 1
        fi
        echo "$PYTHON"
        return
    fi
    for candidate in python3 python3.13 python3.12 python3.11 python3.10 python3.14 python; do
        if will_do "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    echo "Chorus needs Python 3.10 to 3.14 and found none; install one from https://www.python.org" \
        "or with your package manager and start again." >&2
    return 1
}

# Asks the Python itself: a command of that name may be missing, too old or new, or a stub that only offers to install one.
will_do() {
    "$1" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 14))' </dev/null >/dev/null 2>&1
}
