#!/usr/bin/env bash
# Sets Chorus up on first use, then opens its window: ./start-ui.sh [options of scripts/train_ui.py]
# bash 3.2 (macOS) must understand it. The current folder stays, so that relative paths in the options hold.
set -eu

chorus="$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)"
. "$chorus/scripts/find_python.sh"

python="$(find_python)"
"$python" "$chorus/scripts/setup_env.py" --ui
exec "$chorus/.venv/bin/python" "$chorus/scripts/train_ui.py" "$@"
