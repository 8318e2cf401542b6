"""Runs of scripts/train.py in processes of their own, on a tiny model."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import yaml
from PIL import Image

from tests.support.ports import free_port
from tests.support.StartedRun import StartedRun

SIZES = ((32, 32),) * 5 + ((48, 32),) * 3 + ((32, 48),) * 3
STEPS = 6

# Where the claim is about what ranks and those above them do, not about how they come to be.
FORKED = (
    "alone",
    "slurm",
    "forked spawn",
    "forked own torchrun",
    "forked torchrun",
    "forked agent",
    "forked accelerate",
)

Start = Callable[..., StartedRun]


@pytest.fixture(scope="module")
def settings(tiny_sd15, tmp_path_factory) -> dict:
    """Of a quick run, as in a file; the runs of this module share the cache."""
    folder = tmp_path_factory.mktemp("ranks")
    pictures = folder / "pictures"
    pictures.mkdir()
    random = np.random.default_rng(0)
    for index, (width, height) in enumerate(SIZES):
        pixels_HWC = random.integers(0, 256, (height, width, 3), dtype=np.uint8)
        Image.fromarray(pixels_HWC).save(pictures / f"{index:03d}.png")
        (pictures / f"{index:03d}.txt").write_text(f"a photo of a cat, number {index}", encoding="utf-8")
    return {
        "family": "sd15",
        "cache_dir": str(folder / "cache"),
        "model": {"base": str(tiny_sd15)},
        "concepts": [{"path": str(pictures)}],
        "data": {"resolution": 32, "bucket_step": 8},
        "lora": {"rank": 4, "alpha": 4.0},
        "optimizer": {"learning_rate": 1e-3},
        "output": {"format": "diffusers"},
        "batch_size": 4,
        "batch_size_mode": "global",
        "epochs": 1000,
        "max_steps": STEPS,
        "distributed_backend": "auto",
        "tensorboard": False,
    }


@pytest.fixture(scope="module")
def open_run(settings, tmp_path_factory) -> Iterator[Start]:
    """A function that starts a run in a folder of its own: open_run(launcher, *arguments, fault="", **changes).

    launcher: one of LAUNCHERS, or "forked spawn", which takes a tenth of the time of "spawn".
    fault: the value of CHORUS_FAULT. changes: of the settings. folder: of another run, to start in the same.
    variables: for the environment.
    """
    with contextlib.ExitStack() as stack:

        def start(launcher, *arguments, fault="", folder=None, variables=None, **changes) -> StartedRun:
            place = tmp_path_factory.mktemp(launcher.replace(" ", "_"))
            folder = folder or place / "run"
            values = {**settings, "workspace_dir": str(folder), "initial_port": str(free_port()), **changes}
            config_file = place / "settings.yaml"
            config_file.write_text(yaml.safe_dump(values), encoding="utf-8")
            variables = {**(variables or {}), **({"CHORUS_FAULT": fault} if fault else {})}
            name, forked = launcher.removeprefix("forked "), launcher in FORKED
            run = StartedRun(name, config_file, folder, *arguments, variables=variables, forked=forked)
            return stack.enter_context(run)

        yield start
