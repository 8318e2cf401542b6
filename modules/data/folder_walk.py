"""Which files of a folder are data: all but those that are hidden and those that a run has written there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from modules.session.following import is_run_folder
from modules.session.RunFolder import PARTS

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig

Identity = tuple[int, int]  # device and inode: the same for all names of a folder


@dataclass(frozen=True)
class Outputs:
    """Where the run at hand writes, or will: what lies there is no data."""

    workspace_dir: str = ""
    cache_dir: str = ""

    @classmethod
    def of(cls, config: TrainConfig) -> Outputs:
        return cls(config.workspace_dir, config.cache_dir)

    def inside(self, folder: str) -> tuple[str, ...]:
        """Those of the two paths that, by their names, are `folder` or lie in it."""
        try:
            root = os.path.join(_absolute(folder), "")
            paths = map(_absolute, filter(None, (self.workspace_dir, self.cache_dir)))
            return tuple(path for path in paths if os.path.join(path, "").startswith(root))
        except OSError:  # the working folder is gone
            return ()


NO_OUTPUTS = Outputs()


class Listed(NamedTuple):
    """A folder that was walked to.

    below: its path below the root as "a/b/", "" for the root. files: their names. run: the run folder that it is part
    of, "" for data.
    """

    below: str
    files: set[str]
    run: str


def walk(root: str, subfolders: bool, skipped: list[tuple[str, str]], outputs: Outputs) -> Iterator[Listed]:
    """Root and, with `subfolders`, all folders below; hidden ones and the cache are not among them.

    Run folders below root, of `outputs` and of other runs, are marked with all that lies in them. Where root is a run
    folder itself, only the folders that the run makes there are: a person has named it. For the same reason nothing is
    marked where root lies inside a run folder, or a link leads into an earlier one.
    Links are followed, and each real folder is listed once, so a link to a parent ends there.
    (path, reason) of folders that can't be listed are added to `skipped`, but not those of runs.
    """
    known_runs, cache = _known_runs(root, outputs), _identity(outputs.cache_dir)
    seen: set[Identity] = set()
    data, of_runs = [("", "")], []
    while data or of_runs:
        below, run = (data or of_runs).pop()  # data first: what a link has chosen from a run is listed as data
        folder = os.path.join(root, below)
        try:
            status = os.stat(folder)  # not DirEntry.stat(): it has no inode on Windows
            identity = status.st_dev, status.st_ino
            if identity in seen or (below and identity == cache):
                continue
            if below and not run:
                run = known_runs.get(identity) or (folder.rstrip("/") if is_run_folder(folder) else "")
                if run:
                    of_runs.append((below, run))
                    continue
            seen.add(identity)
            files, folders = _list_folder(folder)
        except OSError as error:
            if not run:
                skipped.append((folder.rstrip("/"), error.strerror))
            continue
        yield Listed(below, files, run)
        if subfolders:
            # popped from the end: in order of name, so that of two links to one folder the first is always taken
            found = [(f"{below}{name}/", run) for name in sorted(folders, reverse=True)]
            (of_runs if run else data).extend(found)


def _known_runs(root: str, outputs: Outputs) -> dict[Identity, str]:
    """The folders that are known to be a run's before they are looked into, with the path of its run folder."""
    known = {outputs.workspace_dir: outputs.workspace_dir}
    for run in filter(None, (outputs.workspace_dir, root if is_run_folder(root) else "")):
        known |= {os.path.join(run, part): run for part in PARTS}
    found = {_identity(path): run for path, run in known.items()}
    return {identity: run for identity, run in found.items() if identity is not None}


def _identity(path: str) -> Identity | None:
    """None where there is no such folder."""
    try:
        status = os.stat(os.path.expanduser(path)) if path else None
    except (OSError, ValueError):
        return None
    return status and (status.st_dev, status.st_ino)


def _absolute(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))


def _list_folder(folder: str) -> tuple[set[str], list[str]]:
    """Names of the visible files and folders in `folder`; what a broken or circular link leads to is neither."""
    files, folders = set(), []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            try:
                if entry.is_dir():
                    folders.append(entry.name)
                elif entry.is_file():
                    files.add(entry.name)
            except OSError:  # a link that leads to itself
                continue
    return files, folders
