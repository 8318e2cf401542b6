"""Passes that are replayed as graphs: they are the passes that they stand for, and leave no other trace.

On the CPU, recordings stand for the graphs of a GPU; each replay is compared with the pass that it replaces.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import nn

from modules.data.Batch import Batch
from modules.trainer import PassGraphs as module
from modules.trainer import capturing
from modules.trainer.PassGraphs import LEAST_USES, MOST_GRAPHS, WARM_UPS, PassGraphs
from modules.trainer.TrainingPass import TrainingPass
from tests.support.recorded_capture import RecordedCapture, TracedCapture

RUN = ("max_steps=7", "batch_size=2", "data.bucketing=false", "model.cuda_graphs=on")
OF_A_LOSS = (
    "loss.weighting=min_snr_gamma",
    "loss.huber=0.5",
    "loss.huber_schedule=snr",
    "loss.masked_training=true",
    "diffusion.offset_noise=0.1",
    "diffusion.offset_noise_by_timestep=true",
    "diffusion.input_perturbation=0.1",
    "data.caption_dropout=0.3",
    "csv=true",
)
DROPOUT = ("lora.dropout=0.1", "lora.rank_dropout=0.1", "model.mixed_precision=fp16")
PRESERVED = ("loss.output_preservation=true", "concepts.0.trigger_word=number", "concepts.0.class_word=count",
             "loss.blank_preservation=true")  # fmt: skip
FULL = ("method=full", "model.gradient_checkpointing=true", "optimizer.learning_rate=1e-5", "optimizer.name=sgd")
PRIOR = ("loss.prior_by_frozen_model=true", "concepts.1.path={pictures}", "concepts.1.regularisation=true")
PROOF = pytest.mark.proof
KINDS = [
    pytest.param((*OF_A_LOSS, *DROPOUT), RecordedCapture, id="loss, noise, dropout, fp16"),
    pytest.param((*FULL, "gradient_accumulation_steps=2"), RecordedCapture, id="full, checkpointing, accumulation"),
    pytest.param((*PRESERVED, "model.mixed_precision=bf16"), RecordedCapture, id="preservation, bf16", marks=PROOF),
    pytest.param((*PRIOR, "lora.dora=true"), RecordedCapture, id="regularization, DoRA", marks=PROOF),
    pytest.param(("model.denoiser_quantization=int8",), RecordedCapture, id="int8", marks=PROOF),
    pytest.param((*OF_A_LOSS, *DROPOUT), TracedCapture, id="the first, by make_fx", marks=PROOF),
    pytest.param((*FULL, "gradient_accumulation_steps=2"), TracedCapture, id="the second, by make_fx", marks=PROOF),
]


@pytest.fixture
def soon(monkeypatch):
    """Graphs repay themselves in a run of a few steps."""
    monkeypatch.setattr(module, "LEAST_USES", 1)


@pytest.fixture
def use(monkeypatch, soon):
    """A function that gives the next runs a capture in place of a GPU's."""

    def use(capture: RecordedCapture) -> RecordedCapture:
        monkeypatch.setattr(capturing, "capture_on", lambda device: capture)
        return capture

    return use


@pytest.fixture
def settings(make_config, tmp_path):
    def settings(*overrides: str):
        config = make_config(*RUN, *(each.format(pictures=tmp_path / "pictures") for each in overrides))
        if config.loss.masked_training:
            for picture in list(Path(config.concepts[0].path).glob("???.png")):
                with Image.open(picture) as image:
                    Image.linear_gradient("L").resize(image.size).save(picture.with_name(f"{picture.stem}-mask.png"))
        return config

    return settings


@pytest.mark.parametrize(("overrides", "kind"), KINDS)
def test_a_replay_is_the_pass_for_other_inputs_steps_rates_and_seeds(overrides, kind, use, settings, train):
    capture = use(kind())
    trainer = train(settings("schedule.name=cosine", "backup.at_end=false", *overrides))
    assert capture.num_captured
    assert capture.num_replays > capture.num_captured
    assert not trainer.callbacks.warnings


def test_a_run_with_graphs_that_is_resumed_ends_bit_for_bit_as_one_without(use, settings, train, tmp_path):
    capture = use(RecordedCapture())
    overrides = ("data.resolution=16", "lora.dropout=0.1")
    plain = train(settings("model.cuda_graphs=off", *overrides))
    state = torch.get_rng_state()
    shutil.rmtree(tmp_path / "run")
    train(settings("max_steps=5", *overrides))
    resumed = train(settings(*overrides), resume=True)
    assert capture.num_captured
    assert capture.num_replays
    assert torch.equal(torch.get_rng_state(), state)
    assert resumed.callbacks.losses == plain.callbacks.losses[5:]
    for name, weight in plain.loop.trainable.items():
        assert torch.equal(resumed.loop.trainable[name], weight), name


def test_without_such_a_gpu_a_warning_says_that_there_are_no_graphs(settings, start):
    trainer = start(settings("max_steps=1"))
    trainer.train()
    assert trainer.callbacks.warnings[-1].startswith("model.cuda_graphs on: only NVIDIA and AMD GPUs have them")
    assert trainer.callbacks.losses


class Toy(nn.Module):
    """Two layers, of which a pass uses the one that is as wide as its noise."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({str(width): nn.Linear(width, 1) for width in range(1, 12)})
        self.factor = 1.0
        self.drops = False

    def forward(self, batch: Batch) -> torch.Tensor:
        values = self.layers[str(batch.noise.shape[1])](batch.noise) * self.factor
        return (nn.functional.dropout(values) if self.drops else values).square().sum()


class ToyRun:
    """`graphs` of passes of a Toy, with the numbers of expected passes by width."""

    def __init__(self, planned: dict[Any, float], waits: str = "", can_draw: bool = True):
        self.toy = Toy()
        self.capture = RecordedCapture(waits)
        self.warnings: list[str] = []
        self.graphs = PassGraphs(self.toy, self.run_pass, self.capture, planned, can_draw, self.warnings.append)

    def run_pass(self, batch: Batch) -> TrainingPass:
        loss = self.toy(batch)
        loss.backward()
        return TrainingPass(loss.detach().double().reshape(1), batch.count, ())

    def step(self, *widths: int, clears: bool = True) -> None:
        """The passes of a step."""
        self.toy.zero_grad(set_to_none=clears)
        for width in widths:
            noise = torch.randn(2, width)
            self.graphs.run(Batch(weight=noise[:, 0], count=2, noise=noise, u=noise[:, 0], prompts=["", ""]), width)


def test_a_number_that_is_frozen_is_found_and_named():
    run = ToyRun({2: 100})
    for _ in range(WARM_UPS + 1):
        run.step(2)
    run.toy.factor = 3.0
    with pytest.raises(AssertionError, match=r"frozen: .*aten\.mul\.Tensor: \[1\.0\] and \[3\.0\]"):
        run.step(2)


def test_only_what_repays_its_capture_is_captured_and_no_more_than_the_most():
    run = ToyRun({1: WARM_UPS + LEAST_USES, 2: WARM_UPS + LEAST_USES - 1})
    for width in (1, 2) * (WARM_UPS + 1):
        run.step(width)
    assert (run.capture.num_captured, run.capture.num_replays) == (1, 1)
    many = ToyRun(dict.fromkeys(range(1, 12), 1000.0))
    for width in tuple(range(1, 12)) * (WARM_UPS + 1):
        many.step(width)
    assert many.capture.num_captured == MOST_GRAPHS


def test_a_kind_whose_texts_have_many_lengths_counts_each_by_its_share():
    run = ToyRun({"any": 2 * (WARM_UPS + LEAST_USES) - 1})
    for width in (1, 2) * (WARM_UPS + 1):
        noise = torch.randn(2, width)
        run.toy.zero_grad()
        run.graphs.run(Batch(weight=noise[:, 0], count=2, noise=noise, u=noise[:, 0], prompts=[]), "any")
    assert run.capture.num_captured == 0


def test_gradients_of_replayed_and_usual_passes_add_up_and_others_stay_empty():
    run = ToyRun({2: 100})
    for _ in range(WARM_UPS + 1):
        run.step(2)
    for widths in ((2, 2), (3, 2), (2, 3)):
        torch.manual_seed(0)
        run.step(*widths)
        found: dict[str, Any] = {name: param.grad for name, param in run.toy.named_parameters()}
        expected = ToyRun({})
        expected.toy.load_state_dict(run.toy.state_dict())
        torch.manual_seed(0)
        expected.step(*widths)
        for name, param in expected.toy.named_parameters():
            assert (found[name] is None) == (param.grad is None)
            assert param.grad is None or torch.equal(found[name], param.grad)
    assert run.capture.num_replays == 1 + 4


@pytest.mark.parametrize(
    ("options", "drops", "text"),
    [
        ({"waits": "model.py:12"}, False, r"a pass waits for the GPU \(model.py:12\), so that steps run without"),
        ({"can_draw": False}, True, "blocks draw random numbers, which a graph could not draw again"),
    ],
)
def test_what_cannot_be_captured_is_said_once_and_runs_as_usual(options, drops, text):
    run = ToyRun({2: 100, 3: 100}, **options)
    run.toy.drops = drops
    for width in (2, 3) * (WARM_UPS + 2):
        run.step(width)
    assert run.capture.num_captured == 0
    (warning,) = run.warnings
    assert warning.startswith("model.cuda_graphs on: ")
    assert re.search(text, warning)


def test_weights_that_an_action_has_moved_are_captured_anew():
    run = ToyRun({2: 100})
    for _ in range(WARM_UPS + 1):
        run.step(2)
    run.graphs.check_places()
    run.step(2)
    assert run.capture.num_captured == 1
    weight: Any = run.toy.layers["2"].weight
    weight.data = weight.data.clone()
    run.graphs.check_places()
    run.step(2)
    assert (run.capture.num_captured, run.warnings) == (2, [])


def test_an_optimizer_that_moves_weights_ends_the_replays():
    run = ToyRun({2: 100})
    for _ in range(WARM_UPS + 3):
        weight: Any = run.toy.layers["2"].weight
        weight.data = weight.data.clone()
        run.step(2)
    assert run.capture.num_replays == 1
    assert "puts weights elsewhere" in run.warnings[0]
