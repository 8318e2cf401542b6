"""Short real trainings that show whether several ranks train like one on this machine."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from modules.config.installation import ROOT, command_name
from modules.config.presets import load_preset
from modules.config.visible_text import visible_text
from modules.machine.backend import Backend
from modules.machine.doctor.CheckResult import CheckResult
from modules.machine.doctor.child import ChildAnswer, run_child
from modules.session.atomic import remove_folder
from modules.session.events import read_events
from modules.session.RunFolder import RunFolder
from modules.session.StepInfo import StepInfo

DOCTOR = command_name("doctor")

STEPS = 6
BACKUP_STEP = 3
BATCH_PER_RANK = 2
RUN_SECONDS = 300  # a start from a cold disk, and six steps of the demo's model
# Ranks sum the gradients in another order than one device does, so results differ by rounding: 1e-7 on CPUs, more on
# GPUs, whose kernels depend on the size of the micro-batch.
LOSS_TOLERANCE = 1e-3
WEIGHT_TOLERANCE = 1e-2

Run = Callable[[Sequence[str], float], ChildAnswer]


class TrialRuns:
    """Trains the demo's model on one rank and on several, which the checks compare. `folder` must exist.

    num_ranks: of the runs on several; on devices, their GPUs, or on the CPU if there are none.
    """

    def __init__(
        self, folder: Path, num_ranks: int, devices: Sequence[int], backend: Backend, run: Run = run_child
    ) -> None:
        self.folder = folder
        self.num_ranks = num_ranks
        self.num_images = 4 * BATCH_PER_RANK * num_ranks
        self._devices = list(devices)
        self._backend = backend
        self._run = run

    def checks(self) -> Iterator[CheckResult]:
        """The results, each as soon as it is there. A run that fails is the last one."""
        self._copy_images()
        for name, num_ranks in (("one rank", 1), ("several ranks", self.num_ranks)):
            result = self._train(name, num_ranks)
            yield result
            if result.state == "fails":
                return
        alone, together = RunFolder(self.folder / "one-rank"), RunFolder(self.folder / "several-ranks")
        yield compare_losses("same losses", read_losses(alone), read_losses(together))
        yield compare_weights("same weights", *(read_backup(run, "model") for run in (alone, together)))
        yield compare_weights("same EMA", *(read_backup(run, "ema") for run in (alone, together)))
        yield check_shares(self._cached_images(), self.num_images)
        for source, target, num_ranks in (("one", "several", self.num_ranks), ("several", "one", 1)):
            yield self._resume(f"{source} to {target}", f"{source}-rank{'s' * (source == 'several')}", num_ranks, alone)

    def _train(self, name: str, num_ranks: int) -> CheckResult:
        failed = self._start(name, name.replace(" ", "-"), num_ranks)
        return failed or CheckResult(name, "ok", f"{STEPS} steps of {self._batch_size} images")

    def _resume(self, name: str, source: str, num_ranks: int, expected: RunFolder) -> CheckResult:
        """Resumes a copy of the run `source` from its first backup on `num_ranks` ranks."""
        name = f"resume {name}"
        target = name.replace(" ", "-")
        folder = RunFolder(shutil.copytree(self.folder / source, self.folder / target))
        remove_folder(folder.events_dir)
        remove_folder(folder.backup_dir / f"step-{STEPS:09d}")
        if failed := self._start(name, target, num_ranks, "--resume"):
            return failed
        remaining = {step: loss for step, loss in read_losses(expected).items() if step > BACKUP_STEP}
        return compare_losses(name, remaining, read_losses(folder))

    def _start(self, name: str, folder: str, num_ranks: int, *options: str) -> CheckResult | None:
        """Runs scripts/train.py to its end; the failed check if it fails."""
        path = self.folder / f"{folder}.json"
        path.write_text(json.dumps(self._settings(folder, num_ranks)), encoding="utf-8")
        command = [sys.executable, str(ROOT / "scripts" / "train.py"), f"--config={path}", *options]
        answer = self._run(command, RUN_SECONDS)
        if answer.code == 0:
            return None
        remedy = f"Run {DOCTOR}, and read the logs in {self.folder / folder / 'log'}."
        if answer.code is None:
            return CheckResult(name, "fails", f"the training did not end within {RUN_SECONDS} s", remedy)
        return CheckResult(name, "fails", visible_text(answer.last_words), remedy)

    @property
    def _batch_size(self) -> int:
        return BATCH_PER_RANK * self.num_ranks

    def _settings(self, folder: str, num_ranks: int) -> dict[str, Any]:
        """Of a deterministic run in float32, whose backups hold everything that is compared."""
        several = num_ranks > 1
        demo = load_preset("demo")
        return {
            "family": demo["family"],
            "method": demo["method"],
            "workspace_dir": str(self.folder / folder),
            "cache_dir": str(self.folder / f"cache-{folder}"),
            "enable_multi_gpu": several,
            "world_size": num_ranks if several else None,
            "device_indexes": self._devices if several else self._devices[:1],
            "distributed_backend": self._backend,
            "use_torchrun": False,
            "batch_size": self._batch_size,
            "batch_size_mode": "global",
            "epochs": STEPS,
            "max_steps": STEPS,
            "model": {
                "base": str(ROOT / "resources" / "demo" / "model"),
                "weight_dtype": "float32",
                "mixed_precision": "no",
                "tf32": False,
            },
            "lora": {"rank": 4, "alpha": 4.0},
            "data": {"resolution": 32, "bucketing": False, "bucket_step": 8},
            "concepts": [{"path": str(self.folder / "images")}],
            "optimizer": {"learning_rate": 1e-3},
            "ema": {"enabled": True, "decay": 0.9},
            "backup": {"every": BACKUP_STEP, "unit": "steps", "keep": 2, "at_end": True},
            "tensorboard": False,
        }

    def _copy_images(self) -> None:
        images = self.folder / "images"
        images.mkdir()
        for path in sorted((ROOT / "resources" / "demo" / "pictures").glob("*.png"))[: self.num_images]:
            shutil.copy(path, images)
            shutil.copy(path.with_suffix(".txt"), images)

    def _cached_images(self) -> list[int]:
        """The number of images that each rank of the run on several has cached."""
        caches = [self.folder / "cache-several-ranks" / f"rank-{rank}" / "latents" for rank in range(self.num_ranks)]
        return [sum(len(files) for _, _, files in os.walk(cache)) for cache in caches]


def read_losses(folder: RunFolder) -> dict[int, float]:
    """Step -> loss, as rank 0 recorded it; NaN if it was not finite."""
    records, _ = read_events(folder.event_path(0))
    steps = [record.event for record in records if isinstance(record.event, StepInfo)]
    return {step.step: math.nan if step.loss is None else step.loss for step in steps}


def read_backup(folder: RunFolder, name: str) -> Mapping[str, Any]:
    """The tensors of one file of the run's last backup, by name."""
    from modules.weights.safe import load_tensors

    return load_tensors(folder.backup_dir / f"step-{STEPS:09d}" / f"{name}.safetensors")


def compare_losses(name: str, expected: Mapping[int, float], found: Mapping[int, float]) -> CheckResult:
    """expected: step -> loss of the run on one rank."""
    remedy = f"Ranks compute other results than one device: run {DOCTOR}, or try the backend gloo."
    if not expected or expected.keys() != found.keys():
        return CheckResult(name, "fails", f"steps {sorted(found)} instead of {sorted(expected)}", remedy)
    differences = {step: abs(found[step] - loss) / max(abs(loss), 1e-12) for step, loss in expected.items()}
    differences = {step: math.inf if math.isnan(value) else value for step, value in differences.items()}
    step = max(differences, key=differences.__getitem__)
    if differences[step] > LOSS_TOLERANCE:
        text = f"at step {step} the loss is {found[step]:.6g}, on one rank {expected[step]:.6g}"
        return CheckResult(name, "fails", text, remedy)
    return CheckResult(name, "ok", f"steps {min(expected)} to {max(expected)}, to {differences[step]:.0e}")


def compare_weights(name: str, expected: Mapping[str, Any], found: Mapping[str, Any]) -> CheckResult:
    """expected: tensors of the run on one rank, by name."""
    remedy = f"The ranks do not add up their gradients: run {DOCTOR}, or try the backend gloo."
    if not expected or expected.keys() != found.keys():
        return CheckResult(name, "fails", f"{len(found)} tensors instead of {len(expected)}", remedy)
    squares = sum(tensor.double().square().sum().item() for tensor in expected.values())
    errors = sum((found[key].double() - tensor.double()).square().sum().item() for key, tensor in expected.items())
    difference = (errors / max(squares, 1e-24)) ** 0.5
    if not difference <= WEIGHT_TOLERANCE:  # written so that NaN fails
        return CheckResult(name, "fails", f"they differ by {difference:.0e} of their norm from those of one", remedy)
    return CheckResult(name, "ok", f"{len(expected)} tensors, to {difference:.0e}")


def check_shares(cached: Sequence[int], num_images: int) -> CheckResult:
    """cached: the number of images that each rank has cached."""
    text = f"{num_images} images, cached {' + '.join(map(str, cached))}"
    if sum(cached) == num_images and max(cached) - min(cached) <= 1:
        return CheckResult("shared data", "ok", text)
    return CheckResult(
        "shared data", "fails", text, "Check that all ranks see the same images and can write the cache."
    )
