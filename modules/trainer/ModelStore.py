"""The saved models of a run, in formats that other programs read."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from modules.config.atomic_file import remove, rename, temporary_beside
from modules.config.busy_files import retry_busy
from modules.session.atomic import is_temporary, remove_folder
from modules.session.ModelRecord import Kind, ModelRecord
from modules.session.RunFolder import RunFolder
from modules.trainer.FinalSave import FinalSave, Written
from modules.weights.errors import WeightsError


class ModelStore:
    """The models of a run in its run folder; each may consist of several files.

    The finished model gets the plain name, any other its step. Only what the run has saved itself, at the same step, is
    replaced: beside anything else a model gets a number.

    keep: how many of those that are written during training stay; None for all.
    on_saved(path, step) is called for every completed file or folder, on_warning(text) if one can't be written.
    """

    def __init__(
        self,
        run_folder: RunFolder,
        on_saved: Callable[[Path, int], None],
        on_warning: Callable[[str], None],
        keep: int | None = None,
    ):
        self.folder = run_folder.models_dir
        self._run_folder = run_folder
        self._record = ModelRecord(run_folder.model_record_path, self.folder)
        self._keep = keep
        self._on_saved = on_saved
        self._on_warning = on_warning

    def write(self, save: Callable[[str, Path], list[Path]], title: str, step: int) -> None:
        """Saves a model during training, after `step` steps. Files that can't be written are a warning; others stay.

        save(name, folder): writes it. title: the name without the step; models with that title of earlier steps are
        removed, except the last ones.
        """
        name = self._unused(step_name(title, step), step)
        paths, error = self._attempt(save, name, step, "intermediate", self.folder)
        for path in paths:
            self._on_saved(path, step)
        if error is not None:
            reason = str(error).rstrip(".") if isinstance(error, WeightsError) else error.strerror or error
            self._on_warning(f"A model could not be written to {self.folder} ({reason}); training continues.")
        elif self._keep is not None:
            self._remove_old(title, step, self._keep)

    def final_save(
        self, save: Callable[[str, Path], list[Path]], title: str, step: int, num_bytes: int, finished: bool
    ) -> FinalSave:
        """The model with which a run ends, which may be saved to a fallback folder. num_bytes: its approximate size.

        finished: whether it is trained to the last step, and so gets the plain title as its name.
        """
        if finished:
            self._make_room(title, step)
        name = self._unused(title if finished else step_name(title, step), step)
        write = partial(self._attempt, save, name, step, "finished" if finished else "stopped")
        return FinalSave("model", self.folder, num_bytes, write, lambda path: self._on_saved(path, step))

    def _make_room(self, title: str, step: int) -> None:
        """If the run had finished before, at another step, that model leaves the plain name and gets its step."""
        earlier = self._record.owned_step(title)
        if earlier is None or earlier == step or not self._record.files(title):
            return
        new_name = self._first_free(step_name(title, earlier))
        try:
            self._record.move(title, new_name)
        except OSError as error:
            reason = error.strerror or error
            self._on_warning(f"The model of step {earlier} could not be renamed to {new_name} ({reason}).")

    def _unused(self, name: str, step: int) -> str:
        """`name`, or with a number if that is taken by anything but this run's own model of the same step."""
        if self._record.owned_step(name) == step:
            return name
        free = self._first_free(name)
        if free != name:
            there = ", ".join(path.name for path in self._record.files(name))
            self._on_warning(
                f"{self.folder} has {there} already, which this run has not saved or somebody has changed: it stays, "
                f"and the model of step {step} is named {free}."
            )
        return free

    def _first_free(self, name: str) -> str:
        number = 1
        while self._record.files(candidate := name if number == 1 else f"{name}-{number}"):
            number += 1
        return candidate

    def _attempt(
        self, save: Callable[[str, Path], list[Path]], name: str, step: int, kind: Kind, folder: Path
    ) -> Written:
        """Calls `save`, which writes a model into `folder`, a fallback folder perhaps, and returns what it wrote."""
        if folder != self.folder:
            return _attempt(partial(save, name), folder)
        try:
            self._run_folder.look_for_run()
        except OSError as error:
            return [], error
        with contextlib.suppress(OSError):  # without a record, the model is merely not replaced later
            self._record.claim(name, step, kind)
        folders = [path for path in self._record.files(name) if path.is_dir()]
        try:
            with _replaced(folders):
                written = _attempt(partial(save, name), folder)
                if written[1] is not None:
                    raise _FailedError(*written)
        except _FailedError as failed:
            return [path for path in failed.paths if path not in folders], failed.error
        except OSError as error:  # a folder can't be replaced
            return [], error
        with contextlib.suppress(OSError):
            self._record.complete(name)
        return written

    def _remove_old(self, name: str, step: int, keep: int) -> None:
        """Later models, which a resume from an earlier step has passed over, and those that a run has ended with stay.

        They are not counted.
        """
        of_step: dict[int, list[Path]] = {}
        last_of_runs = self._record.last_files()
        for path in _complete(self.folder):
            # behind the step: a number, the kind of weights or format, an extension
            match = re.fullmatch(rf"{re.escape(name)}-step(\d+)([-_.].*)?", path.name)
            if match and int(match[1]) <= step and path not in last_of_runs:
                of_step.setdefault(int(match[1]), []).append(path)
        for old in sorted(of_step)[:-keep]:
            for path in of_step[old]:
                with contextlib.suppress(OSError):  # if it is still open on Windows, it stays until the next model
                    if path.is_dir():
                        remove_folder(path)
                    else:
                        retry_busy(path.unlink)


def step_name(title: str, step: int) -> str:
    """The name of a model that is not the finished one."""
    return f"{title}-step{step:06d}"


class _FailedError(Exception):
    """What could be written of a model, and what prevented the rest."""

    def __init__(self, paths: list[Path], error: OSError | WeightsError | None):
        super().__init__(str(error))
        self.paths = paths
        self.error = error


@contextlib.contextmanager
def _replaced(folders: list[Path]) -> Iterator[None]:
    """Keeps folders out of the way of those that are written under their names; if that fails, they return."""
    kept = {folder: temporary_beside(folder) for folder in folders}
    for folder, path in kept.items():
        rename(folder, path)
    try:
        yield
    except BaseException:
        for folder, path in kept.items():
            remove(folder)
            rename(path, folder)
        raise
    for path in kept.values():
        remove(path)


def _attempt(save: Callable[[Path], list[Path]], folder: Path) -> Written:
    """Calls `save`, which writes a model into the given folder and returns its files and folders."""
    before = _complete(folder)
    try:
        return save(folder), None
    except (OSError, WeightsError) as error:
        return sorted(_complete(folder) - before), error


def _complete(folder: Path) -> set[Path]:
    """The complete models in `folder`; none if it can't be read, which writing to it will report."""
    try:
        return {path for path in folder.iterdir() if not (path.name.startswith(".") or is_temporary(path))}
    except OSError:
        return set()
