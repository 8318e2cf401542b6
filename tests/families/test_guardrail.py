"""A family whose license asks for a guardrail trains without its package, and samples only with it."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest
import torch

from modules.config.ConceptConfig import ConceptConfig
from modules.config.errors import UserError
from modules.config.SampleConfig import SampleConfig
from modules.config.SamplingConfig import SamplingConfig
from modules.config.TrainConfig import TrainConfig
from modules.distributed.Runtime import Runtime
from modules.families import sampling_package
from modules.families.pipelines import Cosmos2_5_PredictBasePipeline as module
from modules.families.registry import FAMILIES
from modules.families.sampling_package import SampleRefused
from modules.sampling.SampleRound import SampleRound
from modules.session.TrainCommands import TrainCommands
from modules.trainer.checks import check_start
from modules.trainer.GenericTrainer import GenericTrainer
from modules.weights import load_pipeline
from scripts import sample
from tests.support.Recorder import Recorder

NAME = "cosmos_predict25"
MISSING = "Cosmos-Predict2.5 makes samples only with the package cosmos_guardrail"


@pytest.fixture
def without_package(monkeypatch):
    monkeypatch.setattr(sampling_package, "find_spec", lambda name: None)
    module.guardrail.cache_clear()
    yield
    module.guardrail.cache_clear()


@pytest.fixture
def settings(tiny_model, picture_folder, tmp_path):
    def make(**sampling) -> TrainConfig:
        return TrainConfig(
            family=NAME,
            method="lora",
            workspace_dir=str(tmp_path / "run"),
            epochs=1,
            batch_size=2,
            model={"base": str(tiny_model(NAME))},
            data={"resolution": 32, "bucket_step": 16},
            concepts=[ConceptConfig(path=str(picture_folder(((32, 32), (48, 32)))))],
            sampling={"samples": [SampleConfig(prompt="a cat", steps=1)], **sampling},
        )

    return make


def test_without_the_package_a_run_with_samples_is_refused_before_its_start(settings, without_package):
    with pytest.raises(UserError, match=f"^sampling.unit 'steps': {MISSING}.*pip install cosmos_guardrail"):
        check_start(settings(unit="steps", every=1), 1)


def test_without_the_package_a_run_without_samples_trains_and_saves(settings, without_package, tmp_path):
    config = settings(unit="never")
    check_start(config, 1)
    trainer = GenericTrainer(config, Recorder(), TrainCommands())
    trainer.start()
    trainer.train()
    trainer.end()
    assert list((tmp_path / "run").rglob("*.safetensors"))


def test_without_the_package_sampling_is_refused_before_the_model_is_loaded(
    tiny_model, without_package, monkeypatch, tmp_path, capsys
):
    monkeypatch.setattr(load_pipeline, "load_pipeline", lambda *args: pytest.fail("loads the model"))
    options = ["--base", str(tiny_model(NAME)), "--prompt", "a cat", "--out", str(tmp_path)]
    assert sample.main(options) == 2
    assert capsys.readouterr().err.startswith(MISSING)


def make_round(monkeypatch, tmp_path, error=None):
    def refuse(*args):
        raise error

    monkeypatch.setattr(SampleRound, "_make_fitting", refuse)
    base = SimpleNamespace(config=SimpleNamespace(least_clip_skip=1), family=FAMILIES[NAME])
    told = Recorder()
    samples = SamplingConfig(samples=[SampleConfig(prompt="a cat")])
    prompts = SimpleNamespace(base=base, one_at_a_time=False)
    runtime = Runtime(torch.device("cpu"))
    SampleRound(samples, prompts, runtime, told, TrainCommands()).make(tmp_path, 1, contextlib.nullcontext)
    return told.warnings


def test_samples_that_are_asked_for_during_a_run_without_the_package_are_a_warning(
    monkeypatch, tmp_path, without_package
):
    (warning,) = make_round(monkeypatch, tmp_path)
    assert warning.startswith(MISSING)


def test_what_the_guardrail_refuses_is_a_warning_of_the_run(monkeypatch, tmp_path):
    assert make_round(monkeypatch, tmp_path, SampleRefused("No such video.")) == ["No such video."]


def test_the_guardrail_sees_every_prompt_and_every_video(tiny_model, monkeypatch):
    checker = module.guardrail()
    assert checker.check_text_safety("a cat")
    with pytest.raises(SampleRefused, match="refuses a video"):
        checker.check_video_safety(torch.full((1, 2, 2, 3), 255).numpy())
    pipe = module.Cosmos2_5_PredictBasePipeline.from_pretrained(tiny_model(NAME))
    with pytest.raises(SampleRefused, match=r"refuses a prompt of the samples: .*forbidden"):
        pipe(prompt="forbidden", height=32, width=32, num_frames=1, num_inference_steps=1)
    assert pipe.safety_checker is None
