"""Settings of short runs on tiny models."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from modules.config.files import apply_overrides, config_from_values, save_config
from modules.config.TrainConfig import TrainConfig
from modules.session.TrainCommands import TrainCommands
from tests.support.Recorder import Recorder

# Eleven images in three buckets: with a batch size of 4, an epoch has steps of 4, 4 and 3, one with mixed shapes.
SIZES = ((32, 32),) * 5 + ((48, 32),) * 3 + ((32, 48),) * 3


@pytest.fixture
def make_config(tmp_path, tiny_sd15, picture_folder) -> Callable[..., TrainConfig]:
    """Returns a function that makes the settings of a quick run on `SIZES`, changed by "path=value" arguments."""
    folders = []

    def make(*overrides: str) -> TrainConfig:
        if not folders:
            folders.append(picture_folder(SIZES))
        values = {
            "family": "sd15",
            "workspace_dir": str(tmp_path / "run"),
            "cache_dir": str(tmp_path / "cache"),
            "model": {"base": str(tiny_sd15)},
            "concepts": [{"path": str(folders[0])}],
            "data": {"resolution": 32, "bucket_step": 8},
            "lora": {"rank": 4, "alpha": 4.0},
            "optimizer": {"learning_rate": 1e-3},
            "output": {"format": "diffusers"},
            "epochs": 100,
            "max_steps": 4,
            "tensorboard": False,
        }
        return config_from_values(apply_overrides(values, overrides))

    return make


@pytest.fixture
def train() -> Callable[..., object]:
    """Returns a function that trains from `start` to `end` in this process and returns the trainer."""

    def run(config: TrainConfig, resume: bool = False):
        trainer = prepared(config, resume)
        trainer.train()
        trainer.end()
        return trainer

    return run


def prepared(config: TrainConfig, resume: bool = False):
    from modules.trainer.GenericTrainer import GenericTrainer

    trainer = GenericTrainer(config, Recorder(), TrainCommands(), resume=resume)
    trainer.start()
    return trainer


@pytest.fixture
def start() -> Callable[..., object]:
    """Returns a function that returns a started trainer before its first step."""
    return prepared


@pytest.fixture
def config_file(tmp_path) -> Callable[..., str]:
    """Returns a function that writes settings to a file and returns its path."""

    def write(config: TrainConfig) -> str:
        path = tmp_path / "settings.yaml"
        save_config(config, path)
        return str(path)

    return write
