"""Against torch.nn.BatchNorm, as the only rank of a group; tests/trainer/test_batch_norm_on_ranks.py has several."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import batch_norm

from modules.distributed.synchronized_batch_norm import synchronized_batch_norm

LAYERS = {
    "1d": (nn.BatchNorm1d(3), (5, 3)),
    "1d, sequences": (nn.BatchNorm1d(3, eps=1e-2), (2, 3, 4)),
    "2d, cumulative": (nn.BatchNorm2d(3, momentum=None), (2, 3, 4, 5)),
    "2d, not affine": (nn.BatchNorm2d(3, affine=False, momentum=0.7), (2, 3, 4, 5)),
    "2d, no bias": (nn.BatchNorm2d(3, bias=False), (2, 3, 4, 5)),
    "3d, no statistics": (nn.BatchNorm3d(3, track_running_stats=False), (2, 3, 2, 2, 3)),
}


@pytest.fixture(scope="module", autouse=True)
def only_rank():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class NormalizedAndSquashed(nn.BatchNorm2d):
    """A class with its own forward."""

    def forward(self, images):
        return torch.tanh(super().forward(images))


def passed_through(layer: nn.Module, inputs: torch.Tensor) -> list[torch.Tensor]:
    """The output, the gradients and the buffers after a forward and backward pass."""
    inputs = inputs.clone().requires_grad_()
    output = layer(inputs)
    output.sin().sum().backward()
    return [output.detach(), inputs.grad, *(param.grad for param in layer.parameters()), *layer.buffers()]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-4), (torch.bfloat16, 0.1)])
@pytest.mark.parametrize("name", LAYERS)
def test_every_kind_of_layer_equals_plain_batch_norm(name, dtype, tolerance):
    layer, shape = LAYERS[name]
    generator = torch.Generator().manual_seed(1)
    plain = copy.deepcopy(layer).to(dtype)
    synchronized = copy.deepcopy(plain)
    for _ in range(3):
        inputs = (2 * torch.randn(shape, generator=generator) + 5).to(dtype)
        plain.zero_grad()
        synchronized.zero_grad()
        expected = passed_through(plain, inputs)
        with synchronized_batch_norm([synchronized]):
            found = passed_through(synchronized, inputs)
        for own, value in zip(found, expected, strict=True):
            torch.testing.assert_close(own, value, rtol=tolerance, atol=tolerance)


def test_the_gradient_passes_gradcheck():
    layer = nn.BatchNorm1d(2).double()
    inputs = torch.randn(4, 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    parameters = (layer.weight, layer.bias)
    with synchronized_batch_norm([layer]):
        torch.autograd.gradcheck(lambda inputs, *_: layer(inputs), (inputs, *parameters))


def test_large_means_do_not_reduce_the_precision_of_the_variance():
    layer = nn.BatchNorm1d(1, affine=False)
    inputs = torch.tensor([[1e4 - 0.5], [1e4 + 0.5], [1e4 - 0.5], [1e4 + 0.5]])
    with synchronized_batch_norm([layer]):
        assert layer(inputs).flatten().tolist() == pytest.approx([-1, 1, -1, 1], rel=1e-4)


def test_a_class_with_its_own_forward_keeps_it():
    layer = NormalizedAndSquashed(3)
    inputs = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    expected = copy.deepcopy(layer)(inputs)
    with synchronized_batch_norm([layer]):
        torch.testing.assert_close(layer(inputs), expected)


def test_layers_in_evaluation_mode_do_not_communicate(monkeypatch):
    monkeypatch.setattr(dist, "all_gather", None)  # a call would fail
    layer = nn.BatchNorm1d(2).eval()
    with synchronized_batch_norm([layer]):
        assert torch.equal(layer(torch.ones(3, 2)), copy.deepcopy(layer)(torch.ones(3, 2)))
        batch_norm(torch.ones(3, 2), None, None, training=True)  # not called by a layer


def test_the_layers_are_restored_afterwards(monkeypatch):
    layer, hooked = nn.BatchNorm1d(2), nn.BatchNorm1d(2)
    hooked.forward = own = lambda inputs: inputs
    with pytest.raises(RuntimeError, match="inside"), synchronized_batch_norm([layer, hooked]):
        raise RuntimeError("inside")
    assert "forward" not in vars(layer)
    assert hooked.forward is own
    assert type(pickle.loads(pickle.dumps(layer))) is nn.BatchNorm1d  # noqa: S301
    monkeypatch.setattr(dist, "all_gather", None)
    layer(torch.ones(3, 2))
