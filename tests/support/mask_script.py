"""scripts/mask.py in a process of its own, with a state folder of the test's own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """import sys, time
from pathlib import Path
sys.path.insert(0, {root!r})
from modules.config import installation
installation.window_state_folder = lambda: Path({state!r})
from scripts import mask
shown, left = mask.show, {stops_after}

def show(line):
    global left
    shown(line)
    if '"event": "mask"' in line:
        left -= 1
        if left == 0:
            time.sleep(600)

mask.show = show
sys.exit(mask.main())
"""


def start_mask_script(folder: Path, *arguments: object, stops_after: int = 0) -> subprocess.Popen[bytes]:
    """Masks the images in `folder`; its undo history is beside that.

    stops_after: so many masks, after which the process waits until it is killed; 0: it never does.
    """
    code = SCRIPT.format(root=str(ROOT), state=str(folder.parent / "state"), stops_after=stops_after)
    command = [sys.executable, "-c", code, folder, *map(str, arguments), "--json"]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
