"""The demo: teaches a small model two new digits, then shows samples from before and after."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from modules.launch.run import FINISHED
from modules.launch.start import start_training
from modules.sampling.image_grid import save_sample_grid
from modules.session.printing import print_line
from modules.session.RunFolder import RunFolder

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig


def run_demo(config: TrainConfig) -> int:
    """Train with the demo preset, perhaps modified, and print where the results are. Returns the exit code."""
    print("A small model that draws handwritten digits, but only zero to seven, learns eight and nine.", flush=True)
    code = start_training(_alone_without_gloo(config))
    if code != FINISHED:
        return code
    folder = RunFolder(config.workspace_dir)
    print()
    print_line(f"Before and after: {save_before_and_after(folder)}")
    print_line(f"Samples:          {folder.samples_dir}")
    for path in sorted(folder.models_dir.iterdir()):
        print_line(f"LoRA:             {path}")
    return code


def _alone_without_gloo(config: TrainConfig) -> TrainConfig:
    """`config`, changed to a single rank where gloo does not work, which is known to happen only on Windows."""
    if sys.platform != "win32" or not config.enable_multi_gpu:
        return config
    from modules.distributed.setup_distributed import gloo_problem

    problem = gloo_problem()
    if problem:
        print_line(f"One process trains alone: {problem}.")
    return replace(config, enable_multi_gpu=not problem)


def save_before_and_after(folder: RunFolder) -> Path:
    """Save a grid of the run's first and last samples as one image."""
    rounds = sorted(folder.samples_dir.iterdir())
    return save_sample_grid({"before": rounds[0], "after": rounds[-1]}, folder.path / "before_after.png")
