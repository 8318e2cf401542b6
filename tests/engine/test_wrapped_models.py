"""Models that a program has wrapped, or compiled, before it gives them to TrainingEngine."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.parallel import DataParallel
from torch.utils.data import DataLoader

from modules.config.errors import UserError
from modules.engine.bare_model import bare_model
from modules.engine.TrainingEngine import TrainingEngine
from modules.weights.safe import load_tensors
from tests.support.engine_data import adamw, points, small_net


def train(model, folder):
    engine = TrainingEngine(model, device="cpu", output_dir=folder)
    loader = DataLoader(points(), batch_size=16)
    return engine, engine.train(loader, optimizer=adamw(engine), criterion=nn.CrossEntropyLoss(), num_epochs=1)


@pytest.mark.parametrize("wrap", [lambda model: torch.compile(model, backend="eager"), DataParallel])
def test_a_wrapped_model_is_trained_and_saved_as_the_model_itself(wrap, tmp_path):
    _, plain = train(small_net(), tmp_path / "plain")
    engine, history = train(wrap(small_net()), tmp_path / "wrapped")
    assert history["train_loss"] == pytest.approx(plain["train_loss"], rel=1e-12)
    small_net().load_state_dict(load_tensors(engine.last_checkpoint / "model.safetensors"))


def test_a_compiled_model_stays_compiled():
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    model = bare_model(torch.compile(nn.Sequential(nn.Linear(2, 2)), backend=backend))
    assert type(model) is nn.Sequential
    model(torch.zeros(1, 2))
    assert len(graphs) == 1


def test_a_sharded_model_is_refused():
    class FullyShardedDataParallel(nn.Linear):
        pass

    with pytest.raises(UserError, match="it is sharded already"):
        bare_model(FullyShardedDataParallel(2, 2))
