#!/usr/bin/env bash
# Sets Chorus up on first use, then trains by torchrun's agent: scripts/train_distributed.sh [NUM_GPUS|all] CONFIG [options]
# bash 3.2 (macOS) must understand it. The current folder stays, so that relative paths in the options hold.
set -eu

script="${BASH_SOURCE[0]}"
while [ -L "$script" ]; do # readlink -f is missing on older macOS
    link="$(readlink -- "$script")"
    case "$link" in
    /*) script="$link" ;;
    *) script="$(dirname -- "$script")/$link" ;;
    esac
done
chorus="$(CDPATH='' cd -- "$(dirname -- "$script")/.." && pwd -P)"
. "$chorus/scripts/find_python.sh"

python="$(find_python)"
"$python" "$chorus/scripts/setup_env.py"
exec "$chorus/.venv/bin/python" "$chorus/scripts/train_distributed.py" "$@"
