"""Divisions by 1 that are left out."""

from __future__ import annotations

import copy

import pytest
import torch
from diffusers.models.attention_processor import Attention
from diffusers.models.resnet import ResnetBlock2D
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from modules.layers.unit_divisors import leave_out_divisions


class Blocks(nn.Module):
    """A residual block and an attention layer, whose results are divided by `factor`."""

    def __init__(self, factor: float = 1.0):
        super().__init__()
        self.block = ResnetBlock2D(in_channels=8, temb_channels=4, groups=2, output_scale_factor=factor)
        self.attention = Attention(8, heads=2, dim_head=4, rescale_output_factor=factor)

    def forward(self, values_BCHW, time_BC):
        values_BCHW = self.block(values_BCHW, time_BC)
        return self.attention(values_BCHW.flatten(2).transpose(1, 2))


class Divisions(TorchDispatchMode):
    """Counts them."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func._schema.name == "aten::div"
        return func(*args, **(kwargs or {}))


def step(net: nn.Module) -> tuple[list[torch.Tensor], int]:
    """The result and all gradients of a step, and its number of divisions of tensors."""
    generator = torch.Generator().manual_seed(1)
    values = torch.randn(2, 8, 4, 4, generator=generator).requires_grad_()
    with Divisions() as divisions:
        result = net(values, torch.randn(2, 4, generator=generator))
        result.square().sum().backward()
    return [result, values.grad, *(param.grad for param in net.parameters())], divisions.count


@pytest.mark.parametrize(("factor", "left"), [(1.0, 0), (2.0, 4)])
def test_a_step_gives_the_same_bits_without_the_divisions_by_one(factor, left):
    torch.manual_seed(0)
    net = Blocks(factor)
    leave_out_divisions(twin := copy.deepcopy(net))
    (expected, num_divisions), (found, num_left) = step(net), step(twin)
    assert (num_divisions, num_left) == (4, left)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
