"""A run's samples follow its settings and are those of the pipeline."""

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKL
from PIL import Image
from transformers import CLIPTextModel

from modules.sampling.generation import generate_images, image_requests


def pixels(image):
    return np.asarray(image, np.float32) / 255


def test_a_run_samples_with_the_sampler_of_its_settings(make_config, start, monkeypatch):
    used = []

    def make_black(pipe, requests, batch_size, sampler):
        used.append(sampler)
        return ((request, Image.new("RGB", (8, 8))) for request in requests)

    monkeypatch.setattr("modules.sampling.SampleRound.generate_images", make_black)
    start(make_config("sampling.sampler=heun", "sampling.samples.0.prompt=a cat")).sample()
    assert used == ["heun"]


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_only_the_denoiser_runs_in_mixed_precision(precision, dtype, make_config, start, monkeypatch):
    def record(owner, method, of, original):
        def recorded(*args, **kwargs):
            computed[of] = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else torch.float32
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, method, recorded)

    sample = {"prompt": "a cat", "width": 32, "height": 32, "steps": 2}
    settings = [f"sampling.samples.0.{name}={value}" for name, value in sample.items()]
    trainer, computed = start(make_config(*settings, f"model.mixed_precision={precision}")), {}
    base = trainer.prepared.base
    layer = base.module("unet").conv_in
    record(layer, "forward", "denoiser", layer.forward)
    record(CLIPTextModel, "forward", "text encoder", CLIPTextModel.forward)
    record(AutoencoderKL, "decode", "VAE", AutoencoderKL.decode)
    trainer.sample()
    assert computed == {"denoiser": dtype, "text encoder": torch.float32, "VAE": torch.float32}
    with Image.open(trainer.callbacks.samples[0]) as picture, base.using(*base.component_names) as pipe:
        ((_, expected),) = generate_images(pipe, image_requests(trainer.config.sampling.samples[0]), 1)
        assert np.abs(pixels(picture) - pixels(expected)).max() < 0.1
    assert computed["denoiser"] == torch.float32


@pytest.mark.parametrize("at_start", [False, True], ids=["between steps", "before the first step"])
def test_a_resumed_run_makes_the_rest_of_the_samples_that_a_stop_has_cut_short(
    at_start, make_config, train, start, tmp_path
):
    """The same images, although the stop came within a batch."""
    sample = {"prompt": "a cat", "width": 32, "height": 32, "steps": 1, "count": 5}
    settings = [f"sampling.samples.0.{name}={value}" for name, value in sample.items()]
    settings += ["sampling.batch_size=2", "sampling.unit=steps", "sampling.every=2", "max_steps=3"]
    settings += [f"sampling.at_start={str(at_start).lower()}", "optimizer.learning_rate=0.01"]
    train(make_config(*settings, f"workspace_dir={tmp_path / 'straight'}"))

    first = start(make_config(*settings))
    first.callbacks.on_sample = lambda *_: first.commands.stop()
    first.train()
    first.end()
    run, number = tmp_path / "run" / "samples", 0 if at_start else 2
    assert (first.step, first.stopped) == (number, True)
    assert [path.name[:3] for path in run.rglob("*.png")] == ["000"]

    second = train(make_config(*settings), resume=True)
    remade = [path for path in second.callbacks.samples if path.parent.name == f"step-{number:09d}"]
    assert [path.name[:3] for path in remade] == ["001", "002", "003", "004"]
    assert contents(run) == contents(tmp_path / "straight" / "samples") != {}


@pytest.mark.parametrize("case", ["within the last samples", "within those of the last step", "in the last step"])
def test_a_finished_run_that_is_started_again_makes_the_rest_of_its_last_samples(
    case, make_config, train, start, tmp_path, monkeypatch
):
    sample = {"prompt": "a cat", "width": 32, "height": 32, "steps": 1, "count": 3}
    settings = [f"sampling.samples.0.{name}={value}" for name, value in sample.items()]
    settings += ["sampling.unit=steps", "sampling.every=2"] if "those of" in case else ["sampling.at_end=true"]
    settings += ["max_steps=2", "optimizer.learning_rate=0.01"]
    train(make_config(*settings, f"workspace_dir={tmp_path / 'straight'}"))

    first = start(make_config(*settings))
    if case == "in the last step":
        first.commands.stop()
    else:
        first.callbacks.on_sample = lambda *_: first.commands.stop()
    first.train()
    first.end()
    assert (first.step, first.stopped) == (2, False)
    num_made = len(contents(tmp_path / "run" / "samples"))
    assert num_made == (case != "in the last step")

    # which the events of a whole run tell
    monkeypatch.setattr("modules.trainer.GenericTrainer.is_complete", lambda folder, step: True)
    second = train(make_config(*settings), resume=True)
    assert [path.name[:3] for path in second.callbacks.samples] == ["000", "001", "002"][num_made:]
    assert contents(tmp_path / "run" / "samples") == contents(tmp_path / "straight" / "samples") != {}
    assert not second.callbacks.saved
    third = train(make_config(*settings), resume=True)
    assert not third.callbacks.samples
    assert any(text.startswith("Nothing is left to do") for text in third.callbacks.statuses)


def contents(folder):
    return {path.relative_to(folder): pixels(Image.open(path)).tobytes() for path in folder.rglob("*.png")}
