"""Walks the folders of a dataset, skipping hidden and system folders and marking what a training run wrote there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from modules.session.following import is_run_folder
from modules.session.RunFolder import PARTS

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig

# in lower case: thumbnails and recycle bins of NAS, archives and systems
SYSTEM_FOLDERS = frozenset({
    "@eadir", "#recycle", "@recycle", "__macosx", "$recycle.bin", "system volume information", "lost+found",
})  # fmt: skip
Identity = tuple[int, int]  # device and inode, which are the same for every path to a folder


@dataclass(frozen=True)
class Outputs:
    """The folders that the current run writes to, which therefore hold no training data."""

    workspace_dir: str = ""
    cache_dir: str = ""

    @classmethod
    def of(cls, config: TrainConfig) -> Outputs:
        return cls(config.workspace_dir, config.cache_dir)

    def inside(self, folder: str) -> tuple[str, ...]:
        """The output folders that are `folder` or lie inside it, judged by path."""
        try:
            root = os.path.join(_absolute(folder), "")
            paths = map(_absolute, filter(None, (self.workspace_dir, self.cache_dir)))
            return tuple(path for path in paths if os.path.join(path, "").startswith(root))
        except OSError:  # the working directory was deleted
            return ()


NO_OUTPUTS = Outputs()


class WalkedFolder(NamedTuple):
    """A folder that `walk` visits.

    relative: its path below the root as "a/b/", "" for the root itself.
    files: the names of its files. folders: those of the folders in it. passed: those of hidden and system folders.
    run: the run folder that it belongs to, "" for data.
    """

    relative: str
    files: set[str]
    folders: list[str]
    run: str
    passed: list[str]


def walk(root: str, subfolders: bool, skipped: list[tuple[str, str]], outputs: Outputs) -> Iterator[WalkedFolder]:
    """Yields `root` and, with `subfolders`, every folder below it, except hidden and system folders and the cache.

    Run folders below `root`, the current run's and others, are marked together with everything in them. If `root` is a
    run folder itself, only the subfolders that a run creates are marked, because the user chose this folder
    explicitly. For the same reason nothing is marked if `root` lies inside a run folder or a symlink points into one.
    Symlinks are followed, and each real folder is yielded once, so a link to a parent folder does not loop.
    skipped: receives (path, reason) for each folder that can't be listed, except those of runs.
    """
    known_runs, cache = _known_runs(root, outputs), _identity(outputs.cache_dir)
    seen: set[Identity] = set()
    data: list[tuple[str, str]] = [("", "")]
    of_runs: list[tuple[str, str]] = []
    while data or of_runs:
        relative, run = (data or of_runs).pop()  # data first: what a symlink picks from a run counts as data
        folder = os.path.join(root, relative)
        try:
            status = os.stat(folder)  # not DirEntry.stat(): it has no inode on Windows
            identity = status.st_dev, status.st_ino
            if identity in seen or (relative and identity == cache):
                continue
            if relative and not run:
                run = known_runs.get(identity) or (folder.rstrip("/") if is_run_folder(folder) else "")
                if run:
                    of_runs.append((relative, run))
                    continue
            seen.add(identity)
            files, folders, passed = _list_folder(folder)
        except OSError as error:
            if not run:
                skipped.append((folder.rstrip("/"), error.strerror or str(error)))
            continue
        yield WalkedFolder(relative, files, folders, run, passed)
        if subfolders:
            # popped from the end, so reversed: of two links to one folder the first by name is always taken
            found = [(f"{relative}{name}/", run) for name in sorted(folders, reverse=True)]
            (of_runs if run else data).extend(found)


def _known_runs(root: str, outputs: Outputs) -> dict[Identity, str]:
    """Folders known to belong to a run without listing them, each with the path of its run folder."""
    known = {outputs.workspace_dir: outputs.workspace_dir}
    for run in filter(None, (outputs.workspace_dir, root if is_run_folder(root) else "")):
        known |= {os.path.join(run, part): run for part in PARTS}
    found = {_identity(path): run for path, run in known.items()}
    return {identity: run for identity, run in found.items() if identity is not None}


def _identity(path: str) -> Identity | None:
    """None if the folder does not exist."""
    try:
        status = os.stat(os.path.expanduser(path)) if path else None
    except (OSError, ValueError):
        return None
    return status and (status.st_dev, status.st_ino)


def _absolute(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))


def _list_folder(folder: str) -> tuple[set[str], list[str], list[str]]:
    """The names of the visible files and folders in `folder`, whatever these files are, and of other folders.

    Links that lead nowhere or in a circle, and what is no regular file, are among the files: opening them tells why
    they can't be used.
    """
    files: set[str] = set()
    folders: list[str] = []
    passed: list[str] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                is_folder = entry.is_dir()
            except OSError:  # a symlink to itself
                is_folder = False
            if is_folder:
                is_passed = entry.name.startswith(".") or entry.name.lower() in SYSTEM_FOLDERS
                (passed if is_passed else folders).append(entry.name)
            elif not entry.name.startswith("."):
                files.add(entry.name)
    return files, folders, passed
