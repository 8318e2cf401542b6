"""The models of a run, as other programs read them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from modules.trainer.FinalSave import FinalSave, Written
from modules.weights.errors import WeightsError

AVERAGED_ENDING = "_ema"  # of a model's name, where the weights as trained are saved beside it


class ModelStore:
    """The models in `folder`, which may have several files each.

    on_saved(path, step) hears of every file or folder that is written whole, on_warning(text) of what could not be.
    """

    def __init__(self, folder: Path, on_saved: Callable[[Path, int], None], on_warning: Callable[[str], None]):
        self.folder = folder
        self._on_saved = on_saved
        self._on_warning = on_warning

    def unused_name(self, name: str) -> str:
        """`name`, or with a number. A resumed run may end twice: an earlier model is never overwritten."""
        names = (path.name.removesuffix(".safetensors") for path in _whole(self.folder))
        taken = {name.removesuffix("_kohya") for name in names}
        taken |= {name.removesuffix(AVERAGED_ENDING) for name in taken}
        candidates = (name if number == 1 else f"{name}-{number}" for number in range(1, len(taken) + 2))
        return next(candidate for candidate in candidates if candidate not in taken)

    def write(self, save: Callable[[Path], list[Path]], step: int) -> None:
        """Saves a model while training goes on: what can't be written is a warning, and what could be stays."""
        paths, error = _attempt(save, self.folder)
        for path in paths:
            self._on_saved(path, step)
        if error is not None:
            words = str(error).rstrip(".") if isinstance(error, WeightsError) else error.strerror or error
            self._on_warning(f"A model could not be written to {self.folder} ({words}); training goes on.")

    def final_save(self, save: Callable[[Path], list[Path]], step: int, num_bytes: int) -> FinalSave:
        """The model that a run ends with, which may be written elsewhere. num_bytes: about what it takes."""
        return FinalSave(
            "model", self.folder, num_bytes, partial(_attempt, save), lambda path: self._on_saved(path, step)
        )


def _attempt(save: Callable[[Path], list[Path]], folder: Path) -> Written:
    """Calls `save`, which writes a model into the folder that it is given and returns its files and folders."""
    before = _whole(folder)
    try:
        return save(folder), None
    except (OSError, WeightsError) as error:
        return sorted(_whole(folder) - before), error


def _whole(folder: Path) -> set[Path]:
    """The models in `folder` that are written whole; none where it can't be read, which writing to it will tell."""
    try:
        return {path for path in folder.iterdir() if not path.name.startswith(".")}
    except OSError:
        return set()
