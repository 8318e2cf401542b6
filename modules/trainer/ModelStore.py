"""The models of a run, as other programs read them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from modules.trainer.TrainingError import TrainingError
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
        names = (path.name.removesuffix(".safetensors") for path in self.folder.iterdir())
        taken = {name.removesuffix("_kohya") for name in names}
        taken |= {name.removesuffix(AVERAGED_ENDING) for name in taken}
        candidates = (name if number == 1 else f"{name}-{number}" for number in range(1, len(taken) + 2))
        return next(candidate for candidate in candidates if candidate not in taken)

    def write(self, save: Callable[[], list[Path]], step: int, final: bool) -> None:
        """Calls `save`, which writes a model to `folder` and returns its files and folders.

        What can't be written is a warning while training goes on, and a TrainingError at its end (`final`); what could
        be stays.
        """
        before = self._whole()
        try:
            paths = save()
        except (OSError, WeightsError) as error:
            for path in sorted(self._whole() - before):
                self._on_saved(path, step)
            self._tell_of_lost_model(error, final)
            return
        for path in paths:
            self._on_saved(path, step)

    def _whole(self) -> set[Path]:
        """The models that are written whole."""
        return {path for path in self.folder.iterdir() if not path.name.startswith(".")}

    def _tell_of_lost_model(self, error: OSError | WeightsError, final: bool) -> None:
        text = f"A model could not be written to {self.folder}"
        if isinstance(error, WeightsError):
            text, remedy = f"{text}: {str(error).rstrip('.')}", ""
        else:
            text, remedy = f"{text} ({error.strerror or error})", "free some space, "
        if final:
            raise TrainingError(f"{text}: {remedy}then resume from the last backup.") from error
        self._on_warning(f"{text}; training goes on.")
