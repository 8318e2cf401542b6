"""Where a run saves what its own folder has no room for."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

from modules.session.names import safe_file_name
from modules.session.working_folder import absolute_path


class FallbackFolders:
    """A folder of the run named `name` in `fallback_dir`, if that is set, and one in the system's temporary folder.

    They are made when they are asked for. Their names can't be guessed, and they are for the owner alone, because
    everybody may write to a temporary folder. Raises UserError if `fallback_dir` is relative to a folder that is gone.
    """

    def __init__(self, name: str, fallback_dir: str):
        self._name = name
        self._offered = Path(absolute_path(fallback_dir)) if fallback_dir.strip() else None
        self._made: dict[Path, Path] = {}

    def places(self) -> list[Path]:
        """The folders in which one can be made, in the order of choice."""
        places = [self._offered] if self._offered else []
        with contextlib.suppress(OSError):  # there is none that can be written
            places.append(Path(tempfile.gettempdir()))
        return places

    def folder_in(self, place: Path) -> Path:
        """The run's own folder in `place`. Raises OSError."""
        if place not in self._made:
            place.mkdir(parents=True, exist_ok=True)
            self._made[place] = Path(tempfile.mkdtemp(prefix=f"chorus-{safe_file_name(self._name, 60)}-", dir=place))
        return self._made[place]

    def is_temporary(self, folder: Path) -> bool:
        """Whether `folder`, one that was made here, may be emptied by the system."""
        return folder.parent != self._offered

    def remove_empty(self) -> None:
        for place, folder in list(self._made.items()):
            with contextlib.suppress(OSError):  # it holds something, or its disk is gone
                folder.rmdir()
                del self._made[place]
