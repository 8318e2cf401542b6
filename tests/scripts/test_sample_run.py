"""scripts/sample_run.py makes the samples of a run again, with what the run has saved."""

import numpy as np
import pytest
from PIL import Image

from modules.config.files import apply_overrides, config_from_values, save_config
from modules.session.TrainCommands import TrainCommands
from scripts import sample_run
from tests.support.Recorder import Recorder


def pixels(path):
    return np.asarray(Image.open(path), dtype=int)


@pytest.fixture
def trained(tmp_path, tiny_sd15, picture_folder):
    """Returns a function that trains a few steps, samples at the end, and returns the trainer."""

    def train(*overrides):
        from modules.trainer.GenericTrainer import GenericTrainer

        values = {
            "workspace_dir": str(tmp_path / "run"),
            "cache_dir": str(tmp_path / "cache"),
            "model": {"base": str(tiny_sd15)},
            "concepts": [{"path": str(picture_folder()), "name": "number"}],
            "data": {"resolution": 32, "bucket_step": 16},
            "optimizer": {"learning_rate": 0.01},
            "output": {"format": "diffusers"},
            "sampling": {"at_end": True, "samples": [{"width": 32, "height": 32, "steps": 2, "count": 2}]},
            "max_steps": 2,
            "tensorboard": False,
        }
        config = config_from_values(apply_overrides(values, overrides))
        trainer = GenericTrainer(config, Recorder(), TrainCommands())
        trainer.start()
        trainer.train()
        trainer.end()
        return trainer

    return train


SWAPPED = ("model.gradient_checkpointing=true", "model.blocks_to_swap=1")
WORD = ("embeddings.0.placeholder=number", "embeddings.0.initial_text=dog")


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("model.denoiser_quantization=int8", "model.mixed_precision=bf16", *SWAPPED),
        ("text_encoder.train=true",),
        ("method=full", "optimizer.learning_rate=0.001"),
        ("method=embedding", *WORD),
    ],
    ids=["lora", "quantized and swapped", "text encoder", "full", "embedding"],
)
def test_the_samples_are_those_that_the_run_has_made_at_its_end(options, trained, capsys):
    trainer = trained(*options)
    files = [argument for path in trainer.callbacks.saved for argument in ("--model", str(path))]
    capsys.readouterr()
    assert sample_run.main([str(trainer.run_folder.path), *files, "--step", "2"]) == 0
    made = capsys.readouterr().out.splitlines()
    assert len(made) == len(trainer.callbacks.samples) == 2
    for path, expected in zip(made, trainer.callbacks.samples, strict=True):
        assert np.abs(pixels(path) - pixels(expected)).max() <= 8  # the saved model is rounded to bfloat16 or float16


def test_other_samples_and_a_missing_model(trained, tmp_path, capsys):
    trainer = trained()
    run, (file,) = str(trainer.run_folder.path), trainer.callbacks.saved
    config = config_from_values({"sampling": {"samples": [{"prompt": "a fox", "width": 32, "height": 32, "steps": 1}]}})
    save_config(config, tmp_path / "other.yaml")
    capsys.readouterr()
    for number in (1, 2):  # nothing is overwritten
        assert sample_run.main([run, "--model", str(file), "--config", str(tmp_path / "other.yaml")]) == 0
        assert f"round-{number:03d}" in capsys.readouterr().out
    assert sample_run.main([run, "--model", str(tmp_path / "none.safetensors")]) == 2
    assert "none.safetensors" in capsys.readouterr().err
