"""Norm layers as a model has them, on a device, for tests/layers/test_frozen_norms.py."""

from __future__ import annotations

import copy
from typing import Any

import torch
from diffusers.models import normalization
from torch import Tensor, nn

from modules.layers.frozen_norms import fuse_norms
from tests.support.OperationCounter import OperationCounter

WIDTH = 16


class Modulated(nn.Module):
    """One whose modulation is made of a second input."""

    def __init__(self, norm: nn.Module):
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        normed, gate, *_ = self.norm(x, emb=time)
        return normed + 0 * gate.sum()


KINDS = {
    "LayerNorm": lambda: nn.LayerNorm(WIDTH),
    "LayerNorm without weights": lambda: nn.LayerNorm(WIDTH, elementwise_affine=False),
    "RMSNorm": lambda: nn.RMSNorm(WIDTH, eps=1e-6),
    "RMSNorm of diffusers": lambda: normalization.RMSNorm(WIDTH, eps=1e-6, bias=True),
    "RMSNorm without weights": lambda: normalization.RMSNorm(WIDTH, eps=1e-6, elementwise_affine=False),
    "FP32LayerNorm": lambda: normalization.FP32LayerNorm(WIDTH),
    "AdaLayerNormZero": lambda: Modulated(normalization.AdaLayerNormZero(WIDTH)),
    "AdaLayerNormZero, float32": lambda: Modulated(normalization.AdaLayerNormZero(WIDTH, norm_type="fp32_layer_norm")),
    "AdaLayerNormZeroSingle": lambda: Modulated(normalization.AdaLayerNormZeroSingle(WIDTH)),
}


LEFT = {  # (the norm, the dtype of its weights, that of its input, that of autocast)
    "weights that train": (lambda: nn.LayerNorm(WIDTH), torch.bfloat16, torch.bfloat16, torch.bfloat16),
    "float32 weights": (lambda: normalization.RMSNorm(WIDTH, 1e-6), torch.float32, torch.bfloat16, torch.bfloat16),
    "float32 values": (lambda: nn.RMSNorm(WIDTH), torch.bfloat16, torch.float32, torch.bfloat16),
    "float16": (lambda: nn.RMSNorm(WIDTH), torch.float16, torch.float16, torch.float16),
    "group norms": (lambda: nn.GroupNorm(1, 7), torch.bfloat16, torch.bfloat16, torch.bfloat16),
}


def norm_of(kind: str, dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    layer = KINDS[kind]()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, 0.5, 0.3)
    return layer.requires_grad_(False).to(dtype)


def given(layer: nn.Module, batch: int, dtype: torch.dtype) -> list[Tensor]:
    draw = torch.Generator().manual_seed(1)
    inputs = [3 * torch.randn(batch, 7, WIDTH, generator=draw) + 0.5]
    if isinstance(layer, Modulated):
        inputs.append(torch.randn(batch, WIDTH, generator=draw))
    return [each.to(dtype) for each in inputs]


def results(layer: nn.Module, inputs: list[Tensor]) -> list[Tensor]:
    """The output and the gradients of the inputs."""
    inputs = [each.detach().requires_grad_() for each in inputs]
    output = layer(*inputs)
    (output.double() * torch.linspace(-1, 1, WIDTH, dtype=torch.float64, device=output.device)).sum().backward()
    return [output.detach(), *(each.grad for each in inputs)]


def under_autocast(_: Any, kind: str, batch: int) -> dict[str, Any]:
    """Of a norm in bfloat16 on a GPU, as it is and as it is fused: errors of its results, operations, and dtypes."""
    from tests.support.pretended_gpu import GPU

    plain = norm_of(kind, torch.bfloat16)
    inputs = given(plain, batch, torch.bfloat16)
    exact = results(copy.deepcopy(plain).double(), [each.double() for each in inputs])
    fuse_norms(fused := nn.Sequential(copy.deepcopy(plain)))
    found: dict[str, Any] = {}
    for name, layer in (("plain", plain), ("fused", fused[0])):
        layer.to(GPU)
        with OperationCounter() as operations, torch.autocast(GPU.type, torch.bfloat16):
            made = results(layer, [each.to(GPU) for each in inputs])
        errors = [
            float((each.cpu().double() - right).norm() / right.norm()) for each, right in zip(made, exact, strict=True)
        ]
        found[name] = {"errors": errors, "operations": operations.count, "dtype": str(made[0].dtype)}
    return found


def left(_: Any, case: str) -> dict[str, Any]:
    """The results of a norm on a GPU, as it is and as it is fused, and their dtype."""
    from tests.support.pretended_gpu import GPU

    make, own, of_input, lower = LEFT[case]
    plain = make().to(own).requires_grad_(case == "weights that train")
    fuse_norms(fused := nn.Sequential(copy.deepcopy(plain)))
    inputs = given(plain, 1, of_input)
    found = {}
    for name, layer in (("plain", plain), ("fused", fused[0])):
        with torch.autocast(GPU.type, lower):
            made = results(layer.to(GPU), [each.to(GPU) for each in inputs])
        found[name] = [[str(each.dtype), each.cpu().float().tolist()] for each in made]
    return found
