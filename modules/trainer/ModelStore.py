"""The saved models of a run, in formats that other programs read."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from modules.config.busy_files import retry_busy
from modules.session.atomic import remove_folder
from modules.trainer.FinalSave import FinalSave, Written
from modules.weights.errors import WeightsError

AVERAGED_ENDING = "_ema"  # added to the name if the weights without averaging are saved as well


class ModelStore:
    """The models in `folder`; each may consist of several files.

    keep: how many of those that are written during training stay; None for all.
    on_saved(path, step) is called for every completed file or folder, on_warning(text) if one can't be written.
    """

    def __init__(
        self,
        folder: Path,
        on_saved: Callable[[Path, int], None],
        on_warning: Callable[[str], None],
        keep: int | None = None,
    ):
        self.folder = folder
        self._keep = keep
        self._on_saved = on_saved
        self._on_warning = on_warning

    def unused_name(self, name: str) -> str:
        """`name`, with a number appended if it is taken: a resumed run may end twice and must not overwrite a model."""
        names = (path.name.removesuffix(".safetensors") for path in _complete(self.folder))
        taken = {name.removesuffix("_kohya") for name in names}
        taken |= {name.removesuffix(AVERAGED_ENDING) for name in taken}
        candidates = (name if number == 1 else f"{name}-{number}" for number in range(1, len(taken) + 2))
        return next(candidate for candidate in candidates if candidate not in taken)

    def step_name(self, name: str, step: int) -> str:
        """An unused name for a model that is saved during training, after `step` steps."""
        return self.unused_name(f"{name}-step{step:06d}")

    def write(self, save: Callable[[Path], list[Path]], name: str, step: int) -> None:
        """Saves a model during training. Files that can't be written are a warning; the others stay.

        name: the one that `step_name` got; models with that name of earlier steps are removed, except the last ones.
        """
        paths, error = _attempt(save, self.folder)
        for path in paths:
            self._on_saved(path, step)
        if error is not None:
            reason = str(error).rstrip(".") if isinstance(error, WeightsError) else error.strerror or error
            self._on_warning(f"A model could not be written to {self.folder} ({reason}); training continues.")
        elif self._keep is not None:
            self._remove_old(name, step, self._keep)

    def _remove_old(self, name: str, step: int, keep: int) -> None:
        """Later models, which a resume from an earlier step has passed over, are not counted and stay."""
        of_step: dict[int, list[Path]] = {}
        for path in _complete(self.folder):
            # behind the step: a number, the kind of weights or format, an extension
            match = re.fullmatch(rf"{re.escape(name)}-step(\d+)([-_.].*)?", path.name)
            if match and int(match[1]) <= step:
                of_step.setdefault(int(match[1]), []).append(path)
        for old in sorted(of_step)[:-keep]:
            for path in of_step[old]:
                with contextlib.suppress(OSError):  # if it is still open on Windows, it stays until the next model
                    if path.is_dir():
                        remove_folder(path)
                    else:
                        retry_busy(path.unlink)

    def final_save(self, save: Callable[[Path], list[Path]], step: int, num_bytes: int) -> FinalSave:
        """The final model of a run, which may be saved to a fallback folder. num_bytes: its approximate size."""
        return FinalSave(
            "model", self.folder, num_bytes, partial(_attempt, save), lambda path: self._on_saved(path, step)
        )


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
        return {path for path in folder.iterdir() if not path.name.startswith(".")}
    except OSError:
        return set()
