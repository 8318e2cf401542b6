"""Noise and loss options in complete runs: they take effect, resume exactly, and are the same on two ranks."""

import itertools
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image

from modules.config.ConceptConfig import ConceptConfig
from modules.config.files import save_config
from modules.families.registry import FAMILIES
from tests.support import rank_scenarios
from tests.support.RankPool import run_alone

EVERYTHING = (
    "data.caption_dropout=0.3",
    "diffusion.timesteps=logit_normal",
    "diffusion.shift_by=resolution",
    "diffusion.min_timestep=100",
    "diffusion.offset_noise=0.1",
    "diffusion.offset_noise_random=true",
    "diffusion.multires_noise_iterations=6",
    "diffusion.input_perturbation=0.1",
    "loss.mse=0.5",
    "loss.mae=0.3",
    "loss.huber=0.2",
    "loss.smooth_l1=0.1",
    "loss.log_cosh=0.1",
    "loss.huber_schedule=snr",
    "loss.masked_training=true",
    "loss.normalize_masked_area_loss=true",
    "tensorboard=true",
)
PRIOR = (
    "loss.masked_prior_preservation_weight=0.5",
    "loss.prior_by_frozen_model=true",
    "loss.output_preservation=true",
    "loss.blank_preservation=true",
    "concepts.0.trigger_word=cat",
    "concepts.0.class_word=animal",
    "lora.dropout=0.2",
)
BASES = ("sd15", "sdxl", "sd3", "wan21")  # the last has latents with frames
RESUMED = [("sd15", "lora"), ("sd3", "lora")]
ALIGNED = "data.bucket_step=16"


@pytest.fixture
def full_config(make_config, picture_folder, tiny_model):
    """Returns a function that makes the settings of a run with some masks and a regularization concept."""

    def make(family, *overrides):
        weighting = "sigma_sqrt" if FAMILIES[family].objective == "flow" else "min_snr_gamma"
        options = (f"family={family}", f"model.base={tiny_model(family)}", ALIGNED, f"loss.weighting={weighting}")
        config = make_config(*EVERYTHING, *options, *overrides)
        folder = Path(config.concepts[0].path)
        mask = Image.new("L", (32, 32), 0)
        mask.paste(255, (0, 0, 16, 32))
        for number in range(3):
            mask.save(folder / f"{number:03d}-mask.png")
        other = folder.parent / "others"
        if not other.exists():
            picture_folder(((32, 32),) * 3, name="others")
        config.concepts = [config.concepts[0], ConceptConfig(path=str(other), regularisation=True)]
        return config

    return make


@pytest.mark.parametrize(
    ("family", "method"),
    [case for case in itertools.product(BASES, ("lora", "full")) if case not in RESUMED],
)
def test_everything_at_once_trains(family, method, full_config, train):
    options = PRIOR if method == "lora" else ()
    trainer = train(full_config(family, f"method={method}", *options))
    assert_trained(trainer.callbacks, family)


def assert_trained(told, family):
    assert len(told.losses) == 4
    assert all(loss is not None for loss in told.losses)
    assert "8 images have no mask (trained unmasked)." not in told.warnings
    assert "11 images have no mask (trained unmasked)." in told.warnings  # 8 of 11, and 3 of the other concept
    shown = [name for info in told.steps for name in info.metrics]
    assert {name for name in shown if name.startswith("loss_t")} <= {f"loss_t{part}" for part in range(4)}
    assert any(name.startswith("loss_t") for name in shown)
    assert ("cosine" in shown) == (FAMILIES[family].objective == "flow")


def test_the_quarters_add_up_to_the_loss(make_config, train):
    told = train(make_config("tensorboard=true", "batch_size=1")).callbacks
    for info in told.steps:
        (quarter,) = [value for name, value in info.metrics.items() if name.startswith("loss_t")]
        assert quarter == pytest.approx(info.loss)


def test_metrics_change_no_loss(make_config, train, tmp_path):
    shown = train(make_config("tensorboard=true")).callbacks.losses
    shutil.rmtree(tmp_path / "run")
    assert train(make_config()).callbacks.losses == shown


@pytest.mark.parametrize(("family", "method"), RESUMED)
def test_everything_at_once_trains_and_a_run_with_it_resumes_exactly(family, method, full_config, train, tmp_path):
    options = (*PRIOR, f"method={method}")
    whole = train(full_config(family, *options, f"workspace_dir={tmp_path / 'whole'}"))
    assert_trained(whole.callbacks, family)
    train(full_config(family, *options, "max_steps=2", "backup.at_end=true"))
    resumed = train(full_config(family, *options), resume=True)
    assert resumed.callbacks.losses == whole.callbacks.losses[2:]
    for name, value in whole.loop.trainable.items():
        assert torch.equal(resumed.loop.trainable[name], value)


@pytest.mark.parametrize(("family", "method"), [("sd15", "lora"), ("sdxl", "full"), ("sd3", "lora")])
def test_two_ranks_train_with_everything_on_as_one(family, method, full_config, two_ranks, tmp_path):
    common = ("model.weight_dtype=float64", "batch_size_mode=global", "batch_size=8", f"method={method}")
    prior = PRIOR[:-1] if method == "lora" else ()  # each rank draws its own dropout

    def settings(name, *overrides):
        config = full_config(family, *common, *prior, *overrides, f"workspace_dir={tmp_path / name}")
        save_config(config, tmp_path / f"{name}.yaml")
        return str(tmp_path / f"{name}.yaml")

    alone = run_alone(rank_scenarios.train, config=settings("one"))
    first, second = two_ranks.run(rank_scenarios.train, config=settings("two", "gradient_accumulation_steps=2"))
    assert first["losses"] == pytest.approx(alone["losses"], rel=1e-9)
    assert first["norms"] == pytest.approx(alone["norms"], rel=1e-8)
    assert first["digest"] == second["digest"]
