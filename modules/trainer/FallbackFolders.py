"""Fallback folders for what does not fit into the run folder."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

from modules.session.backups import BackupInfo, damage, find_backups
from modules.session.names import safe_file_name
from modules.session.working_folder import absolute_path


class FallbackFolders:
    """Folders for the run in `run_folder`: one in `fallback_dir`, if that is set, and one in the temporary folder.

    Folders are created on first use, with unguessable names and readable by the owner only, because anyone may write
    to a temporary folder. The names begin alike for all processes of the run, so that a resume finds them.
    Raises UserError if `fallback_dir` is relative and the working folder no longer exists.
    """

    def __init__(self, run_folder: Path, fallback_dir: str):
        digest = hashlib.sha256(os.fsencode(run_folder)).hexdigest()
        self._prefix = f"chorus-{safe_file_name(run_folder.name, 60)}-{digest[:8]}-"
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
            self._created[parent] = Path(tempfile.mkdtemp(prefix=self._prefix, dir=parent))
        return self._created[parent]

    def newest_backup(self) -> BackupInfo | None:
        """The newest usable backup that this run, or an earlier one in the same run folder, has left in one of them."""
        found: list[BackupInfo] = []
        for parent in self.parents():
            with contextlib.suppress(OSError):  # it does not exist or can't be read
                for folder in parent.iterdir():
                    if folder.name.startswith(self._prefix) and _is_own(folder):
                        found += [info for info in find_backups(folder) if damage(info.path, contents=False) is None]
        return max(found, key=lambda info: (info.step, info.time), default=None)

    def is_temporary(self, folder: Path) -> bool:
        """Whether the system may delete `folder`, which must be one of these fallback folders."""
        return folder.parent != self._configured

    def remove_empty(self) -> None:
        for parent, folder in list(self._created.items()):
            with contextlib.suppress(OSError):  # it is not empty, or its disk is gone
                folder.rmdir()
                del self._created[parent]


def _is_own(folder: Path) -> bool:
    """Whether this user has created it: others could leave what they want in a temporary folder."""
    return os.name == "nt" or folder.lstat().st_uid == os.getuid()
