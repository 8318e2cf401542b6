"""The figures of a dataset, read by scripts/check_data.py in a process of its own, as far as they are known. No Tk."""

from __future__ import annotations

import copy
import json
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from modules.ui.models.ScriptRun import ScriptRun

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig


@dataclass(frozen=True)
class KnownFigures:
    """statistics: those of DatasetStatistics, without its paths. reading: what is being read, "" at the end.

    resolutions: those that the images train at, in pixels. token_limit: what the base model reads of a caption; None
    if it is not known. num_ranks: GPUs that share a step, or processes on the CPU.
    """

    statistics: dict[str, Any]
    reading: str
    resolutions: tuple[int, ...]
    token_limit: int | None
    num_ranks: int = 1
    has_gpus: bool = True


@dataclass
class _Images:
    files: list[str] = field(default_factory=list)
    places: dict[str, dict[str, list[int]]] = field(default_factory=dict)  # by figure and label


class FiguresReading:
    """One reading of the figures of a concept, or of all that are enabled. `run` may take a while, in a thread; the
    other methods may be called meanwhile.

    number: of the concept; None: all. num_ranks: GPUs that will train together, or processes without `has_gpus`.
    """

    def __init__(self, config: TrainConfig, number: int | None, num_ranks: int, has_gpus: bool = True):
        self._num_ranks, self._has_gpus = num_ranks, has_gpus
        options = ["--figures", "--json", "--ranks", str(num_ranks)]
        self._script = ScriptRun("check_data.py", _only(config, number), options, (0,), heard=self._hear)
        self._lock = threading.Lock()
        self._known: KnownFigures | None = None
        self._images = _Images()

    @property
    def known(self) -> KnownFigures | None:
        """What is known so far; a new object whenever there is more."""
        with self._lock:
            return self._known

    def run(self) -> None:
        """Raises UserError if there are no figures, such as of a dataset that can't train."""
        self._script.run()

    def cancel(self) -> None:
        """End it; `run` then returns."""
        self._script.cancel()

    def paths(self, figure: str, label: str) -> list[str]:
        """The images that a label of a figure counts."""
        with self._lock:
            images = self._images
            return [images.files[place] for place in images.places.get(figure, {}).get(label, ())]

    def _hear(self, line: str) -> None:
        event = json.loads(line)
        with self._lock:
            if event["event"] == "files":
                self._images = _Images(event["paths"])
            elif event["event"] == "images":
                self._images.places[event["figure"]] = event["images"]
            else:
                self._known = KnownFigures(
                    event["statistics"],
                    event["reading"],
                    tuple(event["resolutions"]),
                    event["token_limit"],
                    self._num_ranks,
                    self._has_gpus,
                )


def _only(config: TrainConfig, number: int | None) -> TrainConfig:
    """The settings with this concept alone; None: as they are."""
    if number is None:
        return config
    made = copy.deepcopy(config)
    for place, concept in enumerate(made.concepts):
        concept.enabled = place == number
    return made
