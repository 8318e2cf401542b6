"""First values of models that were built on the meta device."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from modules.config.errors import UserError
from modules.engine.MetaWeights import MetaWeights
from modules.weights.safe import save_tensors

CPU = torch.device("cpu")


class Net(nn.Module):
    """Its last layer has the weights of its first."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(5, 4)
        self.norm = nn.BatchNorm1d(4)
        self.scale = nn.Parameter(torch.ones(4))
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.words.weight


def on_meta() -> nn.Module:
    with torch.device("meta"):
        return Net()


def fill_scale(module: nn.Module) -> None:
    if isinstance(module, Net):
        module.scale.fill_(2.0)


def test_values_are_those_of_the_modules_and_depend_on_the_seed_only():
    models = []
    for seed in (1, 1, 2):
        torch.rand(len(models))  # they don't depend on what was drawn before
        models.append(on_meta())
        MetaWeights(models[-1], fill_scale, seed, CPU).fill(models[-1])
    first, again, other = (model.state_dict() for model in models)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["words.weight"], other["words.weight"])
    assert first["scale"].tolist() == [2.0] * 4
    assert first["norm.running_var"].tolist() == [1.0] * 4
    assert models[0].head.weight is models[0].words.weight


def test_the_generator_of_the_program_is_left_alone():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    model = on_meta()
    MetaWeights(model, fill_scale, 1, CPU).fill(model)
    assert torch.equal(torch.rand(1), expected)


def test_a_file_gives_the_values_of_its_names(tmp_path):
    saved, model = Net(), on_meta()
    save_tensors(tmp_path / "net.safetensors", saved.state_dict())
    MetaWeights(model, tmp_path / "net.safetensors", 1, CPU).fill(model)
    assert all(torch.equal(value, saved.state_dict()[name]) for name, value in model.state_dict().items())


def test_what_gets_no_values_and_what_does_not_fit_is_refused(tmp_path):
    model = on_meta()
    with pytest.raises(UserError, match=r"^model: scale is on the meta device and gets no values; give Net a method"):
        MetaWeights(model, None, 1, CPU).fill(model)
    with pytest.raises(UserError, match=r"^init_weights: the model has values already"):
        MetaWeights(Net(), fill_scale, 1, CPU)
    save_tensors(tmp_path / "other.safetensors", {**Net().state_dict(), "scale": torch.zeros(3)})
    with pytest.raises(UserError, match=r"scale is \(3,\), and the model needs \(4,\)"):
        MetaWeights(on_meta(), tmp_path / "other.safetensors", 1, CPU)
