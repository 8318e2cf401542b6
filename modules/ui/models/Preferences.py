"""The appearance and state of the window, which belong to no run."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from modules.config.memory_sizes import MEMORY_SIZES
from modules.ui.models.StateFile import StateFile

APPEARANCES = ("system", "light", "dark")
MIN_SCALE, MAX_SCALE = 0.8, 2.0
MAX_RECENT = 10
THIS_MACHINE = "127.0.0.1"


@dataclass
class Preferences:
    """appearance: "system", "light" or "dark". scale: 0.8 to 2.0; None: from the screen. geometry: in Tk's format,
    the size unscaled. show_all: whether advanced settings are shown. tab: the one in front. recent: settings files used
    recently, newest first. runs: the folders of runs shown recently, newest first. gpu_memory: in GB, for which a run
    is to fit on a machine without a GPU. preloads: whether processes wait with their libraries imported. serves_page:
    whether the web page of the runs is there as long as the window is open. page_address: where it listens.
    captioner, masker: what was chosen last in the windows in which models caption and mask, as from to_values of
    CaptionerChoices and MaskerChoices.
    """

    appearance: str = "system"
    scale: float | None = None
    geometry: str = "1280x800"
    show_all: bool = False
    tab: str = "home"
    recent: list[str] = dataclasses.field(default_factory=list)
    runs: list[str] = dataclasses.field(default_factory=list)
    gpu_memory: int = 12
    preloads: bool = True
    serves_page: bool = False
    page_address: str = THIS_MACHINE
    captioner: dict[str, object] = dataclasses.field(default_factory=dict)
    masker: dict[str, object] = dataclasses.field(default_factory=dict)
    path: Path | None = None

    def __post_init__(self):
        self._file = StateFile(self.path)

    @classmethod
    def load(cls, path: Path | None) -> Preferences:
        """Read the preferences at `path`; a missing or damaged file, or an invalid value, gives the default."""
        kept = cls(path=path)
        try:
            values = json.loads(path.read_bytes()) if path else {}
        except (OSError, ValueError):
            return kept
        if not isinstance(values, dict):
            return kept
        scale, appearance = values.get("scale"), values.get("appearance")
        if isinstance(scale, (int, float)) and MIN_SCALE <= scale <= MAX_SCALE:
            kept.scale = float(scale)
        if appearance in APPEARANCES:
            kept.appearance = appearance
        for name in ("recent", "runs"):
            if isinstance(values.get(name), list):
                setattr(kept, name, [entry for entry in values[name] if isinstance(entry, str)][:MAX_RECENT])
        kept.show_all = values.get("show_all") is True
        kept.preloads = values.get("preloads") is not False
        kept.serves_page = values.get("serves_page") is True
        for name in ("captioner", "masker"):
            if isinstance(values.get(name), dict):
                setattr(kept, name, values[name])
        if values.get("gpu_memory") in MEMORY_SIZES:
            kept.gpu_memory = values["gpu_memory"]
        for name in ("geometry", "tab", "page_address"):
            if isinstance(values.get(name), str):
                setattr(kept, name, values[name])
        return kept

    def remember_run(self, folder: Path) -> None:
        """Put a run first in the list of recent runs."""
        self.runs = [str(folder), *(run for run in self.runs if run != str(folder))][:MAX_RECENT]

    def pending_save(self) -> Callable[[], None] | None:
        """A function that writes the current preferences, as described in StateFile.pending_save."""
        values = dataclasses.asdict(self)
        del values["path"]
        return self._file.pending_save(values)
