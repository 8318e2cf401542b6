"""Rotary embeddings and frozen norms of a step, beside diffusers' own and float64."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from scripts.gpu.cases import Case, is_cuda
from scripts.gpu.step_speed import drained

TOKENS, HEADS, WIDTH = 4608, 24, 128  # of FLUX.1 at 1024 pixels
ON_CPU = 8, 2, 8
TIMED = 20  # passes
NO_WORSE = 1.3  # times the error of diffusers' results, rounded to bfloat16


def fewer_operations(device: str) -> Iterator[Case]:
    sizes = (TOKENS, HEADS, WIDTH) if is_cuda(device) else ON_CPU
    for precision in ("float32", "bfloat16"):
        for name, half in (("pairs", -1), ("halves", -2)):
            yield f"rotary, {name}, {precision}", partial(_rotary, half, precision, device, sizes)
        for name in ("LayerNorm", "RMSNorm", "AdaLayerNormZeroSingle"):
            yield f"{name}, {precision}", partial(_norm, name, precision, device, sizes)


def _rotary(half: int, precision: str, device: str, sizes: tuple[int, int, int]) -> dict[str, Any]:
    import torch
    from diffusers.models import embeddings

    from modules.layers import rotary

    tokens, heads, width = sizes
    # Any: diffusers declares a pair of tensors for the one that it returns
    plain: Any = getattr(embeddings.apply_rotary_emb, "__wrapped__", embeddings.apply_rotary_emb)
    angles = torch.rand(tokens, width // 2, device=device) * 6
    angles = torch.cat([angles, angles], -1) if half == -2 else angles.repeat_interleave(2, -1)
    pair = angles.cos(), angles.sin()
    options = {"use_real_unbind_dim": half, "sequence_dim": 1}
    fused = rotary.turning(plain)
    x = torch.randn(1, tokens, heads, width, device=device)
    programs = {"diffusers": partial(plain, **options), "fused": partial(fused, **options)}
    return _compared(precision, (x, pair), programs, partial(plain, **options))


def _norm(name: str, precision: str, device: str, sizes: tuple[int, int, int]) -> dict[str, Any]:
    import torch
    from diffusers.models import normalization

    from modules.layers.frozen_norms import fuse_norms

    tokens, heads, width = sizes
    channels = heads * width
    made = {
        "LayerNorm": lambda: torch.nn.LayerNorm(channels),
        "RMSNorm": lambda: normalization.RMSNorm(channels, eps=1e-6),
        "AdaLayerNormZeroSingle": lambda: normalization.AdaLayerNormZeroSingle(channels),
    }
    torch.manual_seed(0)
    plain = made[name]().to(device, getattr(torch, precision)).requires_grad_(False)
    fuse_norms(fused := torch.nn.Sequential(copy.deepcopy(plain)))
    inputs = [torch.randn(1, tokens, channels, device=device)]
    if "Ada" in name:
        inputs.append(torch.randn(1, channels, device=device))
    programs = {"diffusers": plain, "fused": fused[0]}
    return _compared(precision, tuple(inputs), programs, copy.deepcopy(plain).double())


def _compared(
    precision: str, inputs: tuple[Any, ...], programs: Mapping[str, Callable[..., Any]], exact: Callable[..., Any]
) -> dict[str, Any]:
    """exact: is asked in float64, or, if it computes in float32 in any case, in that."""
    import torch

    dtype = getattr(torch, precision)
    x, *others = inputs
    device = x.device.type
    low = [each.to(dtype) if isinstance(each, torch.Tensor) else each for each in others]
    high = [each.to(dtype).double() if isinstance(each, torch.Tensor) else each for each in others]
    expected = _results(exact, x.to(dtype).double(), high, False)
    found: dict[str, Any] = {}
    for name, program in programs.items():
        made = _results(program, x.to(dtype), low, precision != "float32")
        errors = [(own.to(dtype) - right).norm() / right.norm() for own, right in zip(made, expected, strict=True)]
        found[f"error of {name}"] = max(map(float, errors))
        begun = drained(device)
        for _ in range(TIMED):
            _results(program, x.to(dtype), low, precision != "float32")
        launched = time.perf_counter()
        found[f"host ms of {name}"] = round((launched - begun) / TIMED * 1e3, 3)
        found[f"ms of {name}"] = round((drained(device) - begun) / TIMED * 1e3, 3)
    found["ok"] = found["error of fused"] <= NO_WORSE * found["error of diffusers"] + 1e-6
    return found


def _results(program: Callable[..., Any], x: Any, others: list[Any], is_low: bool) -> list[Any]:
    """The output and the gradient of x."""
    import torch

    x = x.detach().requires_grad_()
    with torch.autocast(x.device.type, torch.bfloat16, enabled=is_low):
        output = program(x, *others)
    output = output[0] if isinstance(output, tuple) else output
    output.sin().sum().backward()  # unlike gradients
    return [output.detach(), x.grad]
