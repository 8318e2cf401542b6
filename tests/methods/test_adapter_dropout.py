"""Rank and module dropout: what is left out, for whom, and with which scale."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from modules.config.LoraConfig import LoraConfig
from modules.config.TrainConfig import TrainConfig
from modules.config.validation import find_problems
from modules.methods.adapter_dropout import add_dropout
from modules.weights.adapters.kinds import ADAPTER
from tests.support.prepared import prepared

NUM_SAMPLES, RANK = 2000, 8


def adapted(kind: str, **options: float) -> tuple[nn.Module, torch.Tensor]:
    """A layer with an adapter of eight ranks, all of whose weights are 1, and inputs of ones."""
    import peft

    layer = {"linear": nn.Linear(4, 3), "conv": nn.Conv2d(4, 3, 3)}[kind]
    inputs = torch.ones(NUM_SAMPLES, 5, 4) if kind == "linear" else torch.ones(NUM_SAMPLES, 4, 3, 3)
    module = peft.inject_adapter_in_model(peft.LoraConfig(r=RANK, target_modules=["0"]), nn.Sequential(layer), ADAPTER)
    for name, param in module.named_parameters():
        param.data.fill_(1.0 if "lora_" in name else 0.0)
    add_dropout(module, LoraConfig(**options))
    return module, inputs


def ranks_kept(kind: str, **options: float) -> torch.Tensor:
    """(samples, ranks): the outputs of the first matrix, divided by what they are without dropout."""
    torch.manual_seed(0)
    module, inputs = adapted(kind, **options)
    whole = 4 if kind == "linear" else 36
    values = module[0].lora_A[ADAPTER](inputs) / whole
    if kind == "linear":
        assert torch.equal(values, values[:, :1].expand_as(values))  # the tokens of a sample alike
        return values[:, 0]
    return values[:, :, 0, 0]


@pytest.mark.parametrize("kind", ["linear", "conv"])
def test_ranks_are_left_out_and_the_others_scaled_up(kind):
    kept = ranks_kept(kind, rank_dropout=0.25)
    assert kept.shape == (NUM_SAMPLES, RANK)
    torch.testing.assert_close(kept.unique(), torch.tensor([0.0, 1 / 0.75]))
    assert (kept == 0).double().mean() == pytest.approx(0.25, abs=0.02)
    assert len(kept.unique(dim=0)) > 100  # each sample draws by itself


@pytest.mark.parametrize("kind", ["linear", "conv"])
def test_whole_adapters_are_left_out_without_a_scale(kind):
    kept = ranks_kept(kind, module_dropout=0.25)
    assert torch.equal(kept.unique(dim=0), torch.tensor([[0.0] * RANK, [1.0] * RANK]))
    assert (kept[:, 0] == 0).double().mean() == pytest.approx(0.25, abs=0.04)


@pytest.mark.parametrize("kind", ["linear", "conv"])
def test_nested_ranks_are_the_first_ones_without_a_scale(kind):
    kept = ranks_kept(kind, nested_unit=3)  # of eight: three, six or all
    counts = kept.sum(1)
    assert torch.equal(kept, (torch.arange(RANK) < counts[:, None]).float())
    shares = [(counts == count).double().mean().item() for count in (3, 6, 8)]
    assert shares == pytest.approx([1 / 3] * 3, abs=0.04)


def test_nothing_is_left_out_outside_training_or_without_the_settings():
    module, inputs = adapted("linear", rank_dropout=0.5, module_dropout=0.5, nested_unit=2)
    plain, _ = adapted("linear")
    state = torch.get_rng_state()
    assert torch.equal(module.eval()(inputs), plain.train()(inputs))
    assert torch.equal(torch.get_rng_state(), state)


def test_the_settings_reach_every_adapter(tiny_sd15):
    base, _ = prepared(tiny_sd15, "lora", lora={"rank_dropout": 0.25})
    layers = [layer for layer in base.module("unet").modules() if hasattr(layer, "lora_A") and layer.lora_A]
    assert layers
    assert all(len(layer.lora_A[ADAPTER]._forward_hooks) == 1 for layer in layers)


def test_what_it_can_not_be_combined_with():
    for options in ({"dora": True}, {"adapter": "loha"}):
        for name, value in (("rank_dropout", 0.2), ("module_dropout", 0.2), ("nested_unit", 2)):
            config = TrainConfig(lora=LoraConfig(**options, **{name: value}))
            assert [problem.path for problem in find_problems(config) if problem.path.startswith("lora.")] == [
                f"lora.{name}"
            ]
