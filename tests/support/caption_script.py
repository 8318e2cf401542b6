"""scripts/caption.py and scripts/mask.py for tests of the window: with a state folder of the test's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from modules.annotators.chat_client import KEY_VARIABLE
from modules.config.presets import ROOT
from modules.ui.models import AnnotatorRun

SCRIPT = """import sys
from pathlib import Path
sys.path.insert(0, {root!r})
from modules.config import installation
installation.window_state_folder = lambda: Path({state!r})
from scripts.{name} import main
sys.exit(main())
"""


def use_caption_script(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the window start scripts in `folder`, without a key; both keep their undo history in `folder`/state."""
    monkeypatch.setattr(AnnotatorRun, "SCRIPTS", _write_script(folder))
    monkeypatch.setattr("modules.curation.Journal.window_state_folder", lambda: folder / "state")
    monkeypatch.delenv(KEY_VARIABLE, raising=False)


def _write_script(folder: Path) -> Path:
    scripts = folder / "scripts"
    scripts.mkdir()
    for name in ("caption", "mask"):
        text = SCRIPT.format(root=str(ROOT), state=str(folder / "state"), name=name)
        (scripts / f"{name}.py").write_text(text, encoding="utf-8")
    return scripts
