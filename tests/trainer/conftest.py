"""Settings of short runs on tiny models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from modules.config.files import apply_overrides, config_from_values, save_config
from modules.config.TrainConfig import TrainConfig
from modules.session.TrainCommands import TrainCommands
from tests.support import small_runs
from tests.support.Recorder import Recorder
from tests.support.small_runs import SIZES, small_run

# Steps of 8 and 3 of `SIZES`, all of them cropped to squares; with four ranks one has no samples in the second.
RANKS_RUN = (
    "batch_size=8",
    "batch_size_mode=global",
    "gradient_accumulation_steps=2",
    "data.bucket_step=16",
    "data.caption_dropout=0.1",
    "optimizer.max_grad_norm=0.05",
    "backup.at_end=false",
    "enable_multi_gpu=true",
    "distributed_strategy=fsdp",  # so that what is tested here is not refused
)


@pytest.fixture
def make_config(tmp_path, tiny_sd15, picture_folder) -> Callable[..., TrainConfig]:
    """Returns a function that makes the settings of a quick run on `SIZES`, changed by "path=value" arguments."""
    folders = []

    def make(*overrides: str) -> TrainConfig:
        if not folders:
            folders.append(picture_folder(SIZES))
        values = small_run(tmp_path, tiny_sd15, folders[0])
        return config_from_values(apply_overrides(values, overrides))

    return make


@pytest.fixture
def family_data(tmp_path) -> Callable[[str], dict[str, object]]:
    """Returns a function that makes what a family trains on beside images, and returns its settings."""
    return lambda name: small_runs.family_data(name, tmp_path)


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


@pytest.fixture(scope="module")
def shared_cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def settings(make_config, tiny_model, shared_cache, tmp_path) -> Callable[..., str]:
    """Returns a function that writes the settings of a run in the folder `name` and returns their file."""

    def write(name: str, *overrides: str, family: str = "sd15") -> str:
        model = (f"family={family}", f"model.base={tiny_model(family)}")
        folders = (f"cache_dir={shared_cache}", f"workspace_dir={tmp_path / name}")
        config = make_config(*RANKS_RUN, *model, *folders, *overrides)
        path = tmp_path / f"{name}.yaml"
        save_config(config, path)
        return str(path)

    return write
