"""Fallback folders for what does not fit into the run folder."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

from modules.session.names import safe_file_name
from modules.session.working_folder import absolute_path


class FallbackFolders:
    """Folders for the run `name`: one in `fallback_dir`, if that is set, and one in the system's temporary folder.

    Folders are created on first use, with unguessable names and readable by the owner only, because anyone may write
    to a temporary folder. Raises UserError if `fallback_dir` is relative and the working folder no longer exists.
    """

    def __init__(self, name: str, fallback_dir: str):
        self._name = name
        self._configured = Path(absolute_path(fallback_dir)) if fallback_dir.strip() else None
        self._created: dict[Path, Path] = {}

    def parents(self) -> list[Path]:
        """The folders in which a fallback folder can be created, in order of preference."""
        parents = [self._configured] if self._configured else []
        with contextlib.suppress(OSError):  # there is no writable temporary folder
            parents.append(Path(tempfile.gettempdir()))
        return parents

    def folder_in(self, parent: Path) -> Path:
        """The run's fallback folder in `parent`, created if necessary. Raises OSError."""
        if parent not in self._created:
            parent.mkdir(parents=True, exist_ok=True)
            prefix = f"chorus-{safe_file_name(self._name, 60)}-"
            self._created[parent] = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        return self._created[parent]

    def is_temporary(self, folder: Path) -> bool:
        """Whether the system may delete `folder`, which must be one of these fallback folders."""
        return folder.parent != self._configured

    def remove_empty(self) -> None:
        for parent, folder in list(self._created.items()):
            with contextlib.suppress(OSError):  # it is not empty, or its disk is gone
                folder.rmdir()
                del self._created[parent]
