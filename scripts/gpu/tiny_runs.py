"""Runs of tiny models on a device, and where their steps wait for it."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modules.config.files import apply_overrides, config_from_values
from scripts.gpu.cases import is_cuda
from tests.support.small_runs import SIZES, small_run

if TYPE_CHECKING:
    from torch import Tensor

    from modules.config.TrainConfig import TrainConfig

Trained = Any  # a GenericTrainer whose callbacks are a Recorder
ROOT = Path(__file__).resolve().parents[2]
UNWATCHED_STEPS = 2  # the first makes the optimizer's state, and kernels are loaded

MIXED = ("model.mixed_precision=bf16", "model.weight_dtype=bfloat16", "model.gradient_checkpointing=true")
SAMPLED = ("sampling.at_end=true", "sampling.samples=[{prompt: 'a photo of a cat', width: 32, height: 32, steps: 2}]")
VALIDATED = ("ema.enabled=true", "validation.every=2", "validation.unit=steps", "data.validation_share=0.3")


@functools.cache
def work_folder() -> Path:
    """Of this process; removed at its end."""
    folder = Path(tempfile.mkdtemp(prefix="chorus-gpu-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@functools.cache
def tiny_model(name: str) -> Path:
    """The folder of the tiny model of a family."""
    from tests.support import tiny_models
    from tests.support.small_inputs import shrink_inputs

    shrink_inputs(name)
    return tiny_models.make_tiny(name, work_folder() / "models" / name)


@functools.cache
def pictures() -> Path:
    from tests.support.pictures import write_pictures

    return write_pictures(work_folder() / "pictures", SIZES)


def config_of(run: str, *overrides: str, family: str = "sd15") -> TrainConfig:
    """The settings of a quick run that writes into a folder called `run`."""
    folder = work_folder()
    values = small_run(folder, tiny_model(family), pictures())
    values |= {"family": family, "workspace_dir": str(folder / "runs" / run), "cache_dir": str(folder / "cache")}
    return config_from_values(apply_overrides(values, overrides))


def train(config: TrainConfig, device: str, resume: bool = False, waits: Waits | None = None) -> Trained:
    """A run from start to end."""
    import torch

    from modules.distributed.Runtime import Runtime
    from modules.session.TrainCommands import TrainCommands
    from modules.trainer.GenericTrainer import GenericTrainer
    from tests.support.Recorder import Recorder

    trainer = GenericTrainer(config, Recorder(), TrainCommands(), Runtime(torch.device(device)), resume=resume)
    trainer.start()
    if waits:
        waits.watch(trainer)
    trainer.train()
    trainer.end()
    return trainer


class Waits:
    """The lines at which steps wait for the GPU, as torch's own debug mode says, and how often."""

    def __init__(self, device: str):
        self._device = device
        self.lines: dict[str, int] = {}

    def watch(self, trainer: Trained) -> None:
        """From now on, the steps of the trainer are watched, but for its first ones."""
        train_step, count = trainer.loop.train_step, 0

        def watched_step(step: object) -> None:
            nonlocal count
            count += 1
            if count <= UNWATCHED_STEPS:
                train_step(step)
                return
            with self.seen():
                train_step(step)

        trainer.loop.train_step = watched_step

    @contextmanager
    def seen(self) -> Iterator[None]:
        """Adds the lines that wait in the body."""
        import torch

        if not is_cuda(self._device):
            yield
            return
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                yield
            finally:
                torch.cuda.set_sync_debug_mode("default")
        for warning in seen:
            if "synchroniz" in str(warning.message):
                place = f"{_short(warning.filename)}:{warning.lineno}"
                self.lines[place] = self.lines.get(place, 0) + 1

    @property
    def ours(self) -> dict[str, int]:
        return {line: count for line, count in self.lines.items() if line.startswith("modules/")}

    @property
    def of_libraries(self) -> dict[str, int]:
        return {line: count for line, count in self.lines.items() if line not in self.ours}


def _short(file: str) -> str:
    """Its path in Chorus or in the package that it belongs to."""
    path = Path(file)
    if path.is_relative_to(ROOT):
        return path.relative_to(ROOT).as_posix()
    parts = path.parts
    places = [number for number, part in enumerate(parts) if part in ("site-packages", "dist-packages", "site")]
    return "/".join(parts[places[-1] + 1 :]) if places else path.as_posix()


def weights_of(trainer: Trained) -> dict[str, Tensor]:
    """Copies of what trains, in float32 on the CPU."""
    return {name: param.detach().float().cpu().clone() for name, param in trainer.loop.trainable.items()}


def largest_difference(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """Relative to the largest weight."""
    assert one.keys() == other.keys()
    scale = max(float(value.abs().max()) for value in one.values()) or 1.0
    return max(float((one[name] - other[name]).abs().max()) for name in one) / scale


def furthest(losses: list[float | None], expected: list[float | None]) -> float:
    """The largest relative difference of two curves of the same length; NaN if a loss is missing."""
    nan = float("nan")
    pairs = zip(losses, expected, strict=True)
    off = [abs(a - b) / abs(b) if a is not None and b is not None else nan for a, b in pairs]
    return nan if any(value != value for value in off) else max(off)


def problems_of(trainer: Trained) -> list[str]:
    """What is wrong with a run that has trained, validated, sampled and saved."""
    import math

    told = trainer.callbacks
    found = []
    if not told.losses or not all(loss is not None and math.isfinite(loss) for loss in told.losses):
        found.append(f"losses {told.losses}")
    if not all(math.isfinite(loss) for *_, loss, of_ema in told.validations for loss in (loss, of_ema or 0.0)):
        found.append(f"validations {told.validations}")
    if not told.samples or not all(_has_contents(path) for path in told.samples):
        found.append("samples of a single color, or none")
    if not told.saved:
        found.append("nothing saved")
    found += [text for text in told.warnings if "finite" in text]
    return found


def _has_contents(path: Path) -> bool:
    """Whether an image is not of one color, which is what NaN gives."""
    import numpy as np
    from PIL import Image

    with Image.open(path) as image:
        return float(np.asarray(image).std()) > 0
