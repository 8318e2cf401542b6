"""Settings of short runs on tiny models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from modules.config.families import load_families
from modules.config.files import apply_overrides, config_from_values, save_config
from modules.config.TrainConfig import TrainConfig
from modules.session.TrainCommands import TrainCommands
from tests.support.Recorder import Recorder
from tests.support.videos import write_video

# Eleven images in three buckets: with a batch size of 4, an epoch has steps of 4, 4 and 3, one with mixed shapes.
SIZES = ((32, 32),) * 5 + ((48, 32),) * 3 + ((32, 48),) * 3

# Steps of 8 and 3 of `SIZES`, of mixed shapes; with four ranks one has no samples in the second.
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
def family_data(picture_folder, layer_folder, tmp_path) -> Callable[[str], dict[str, object]]:
    """Returns a function that makes what a family trains on beside images: videos, layers or references.

    It returns their settings, {path: value}; empty if the family needs none of them.
    """

    def make(name: str) -> dict[str, object]:
        family = load_families()[name]
        if family.needs_first_frame:
            frames = family.frame_step + 1
            video = write_video(tmp_path / "videos" / "000.mp4", frames, size=(48, 32))
            video.with_suffix(".txt").write_text("a video of a cat, number 0", encoding="utf-8")
            return {"concepts.0.path": video.parent, "data.frames": frames}
        if family.layered:
            images = picture_folder(name="whole")
            return {"concepts.0.path": images, "concepts.0.layer_folder": layer_folder(images)}
        if family.needs_references:
            after, before = picture_folder(name="after"), picture_folder(name="before")
            return {"concepts.0.path": after, "concepts.0.reference_folder": before}
        return {}

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
