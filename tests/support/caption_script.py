"""scripts/caption.py for tests of the window: with a state folder of the test's own."""

from __future__ import annotations

from pathlib import Path

from modules.config.presets import ROOT

SCRIPT = """import sys
from pathlib import Path
sys.path.insert(0, {root!r})
from modules.config import installation
installation.window_state_folder = lambda: Path({state!r})
from scripts.caption import main
sys.exit(main())
"""


def write_caption_script(folder: Path) -> Path:
    """A folder of scripts in `folder`, whose runs keep their undo history in `folder`/state."""
    scripts = folder / "scripts"
    scripts.mkdir()
    text = SCRIPT.format(root=str(ROOT), state=str(folder / "state"))
    (scripts / "caption.py").write_text(text, encoding="utf-8")
    return scripts
