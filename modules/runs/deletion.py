"""Delete runs: what belongs to them and nothing else, never a running one, and their models only when that is asked."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from modules.config.busy_files import retry_busy
from modules.config.errors import UserError
from modules.runs.marks import MARKS_NAME
from modules.session.atomic import remove_folder
from modules.session.following import is_running
from modules.session.RunFolder import PARTS, RunFolder
from modules.session.RunLock import RunLock

MODELS = "models"
_FILES = ("metrics.csv", "loggers.json", "exit.json", "exit.reserve")
_FOLDERS = ("wandb", *(part for part in PARTS if part not in (MODELS, "events")), "events")  # events last: see below
_OF_MODELS = ("models.json", "config.yaml", MARKS_NAME)  # which say what the models are


@dataclass(frozen=True)
class Sizes:
    """What deleting a run frees, in bytes. models: of the files in its folder `models`; num_models: how many there are.

    Links count nothing: only the link goes.
    """

    rest: int = 0
    models: int = 0
    num_models: int = 0

    def __add__(self, other: Sizes) -> Sizes:
        return Sizes(self.rest + other.rest, self.models + other.models, self.num_models + other.num_models)


def sizes_of(path: str | Path) -> Sizes:
    """What deleting the run in a folder would free. Files that it did not write don't count. May take long."""
    folder = RunFolder(path).path
    names = (*_FOLDERS, *_FILES, "run.lock")
    rest = sum(size for name in names for size in _file_sizes(folder / name))
    of_models = list(_file_sizes(folder / MODELS))
    if not of_models:
        rest += sum(size for name in _OF_MODELS for size in _file_sizes(folder / name))
    return Sizes(rest, sum(of_models), len(of_models))


def delete_run(path: str | Path, with_models: bool) -> list[Path]:
    """Delete the run in a folder, and the folder if nothing else is in it. Returns what is left in it.

    with_models: also the models that it has saved; else these stay, with the settings that they were trained with.
    Raises UserError if the run is active or something can't be deleted. The events go last, so a run whose deletion was
    interrupted is still listed.
    """
    run = RunFolder(path)
    folder = run.path
    with _held(run):
        keeps = not with_models and any(_file_sizes(folder / MODELS))
        try:
            for name in () if keeps else (MODELS,):
                _remove(folder / name)
            for name in _FILES if keeps else (*_FILES, *_OF_MODELS):
                _remove(folder / name)
            for name in _FOLDERS:
                _remove(folder / name)
        except OSError as error:
            where = error.filename or folder
            raise UserError(f"{where} can't be deleted ({error.strerror}): check its disk, then try again.") from error
    with contextlib.suppress(OSError):  # something else is in it
        _unlink(run.lock_path)
        retry_busy(folder.rmdir)
    return sorted(folder.iterdir()) if folder.is_dir() else []


@contextlib.contextmanager
def _held(run: RunFolder) -> Iterator[None]:
    """Keep a run from starting in the folder. Raises UserError if one is active."""
    active = f"The run {run.path.name} is active: stop it before you delete it."
    if is_running(run):
        raise UserError(active)
    with contextlib.ExitStack() as stack:
        if run.lock_path.exists():
            try:
                stack.enter_context(RunLock(run.lock_path))
            except UserError as error:  # it has started just now
                raise UserError(active) from error
        yield


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        remove_folder(path)
    else:
        _unlink(path)


def _unlink(path: Path) -> None:
    retry_busy(lambda: path.unlink(missing_ok=True))


def _file_sizes(path: Path) -> Iterator[int]:
    """The sizes of a file, or of all below a folder; links are not followed."""
    if path.is_symlink():
        return
    if not path.is_dir():
        with contextlib.suppress(OSError):
            yield path.stat().st_size
        return
    for parent, _, files in os.walk(path):
        for name in files:
            with contextlib.suppress(OSError):
                yield os.lstat(os.path.join(parent, name)).st_size
