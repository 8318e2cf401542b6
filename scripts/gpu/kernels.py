"""Kernels whose results must not depend on the device."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any

from scripts.gpu.cases import Case, NotHere
from scripts.gpu.tiny_runs import Waits

ROWS, COLUMNS = 512, 256


def rounding(device: str) -> Iterator[Case]:
    yield "stochastic rounding", partial(rounded_alike, device)


def rounded_alike(device: str) -> dict[str, Any]:
    """Stochastic rounding gives the bits of the CPU; those of NaN may differ."""
    import torch

    from modules.trainer.stochastic_rounding import stochastic_round

    values = _values()
    here, there = stochastic_round(values, 12345), stochastic_round(values.to(device), 12345).cpu()
    number = here.isnan().logical_not()
    same = torch.equal(here[number].view(torch.int16), there[number].view(torch.int16))
    return {"ok": same and bool(there[~number].isnan().all())}


def checksums(device: str) -> Iterator[Case]:
    yield "tensors on both devices", partial(summed_alike, device)


def summed_alike(device: str) -> dict[str, Any]:
    """The checksum of tensors is the same wherever they are."""
    import torch

    from modules.weights.checksum import checksum

    values = _values()
    tensors = {"a": values, "b": values.bfloat16(), "c": torch.arange(7), "d": torch.ones(3, dtype=torch.bool)}
    mixed = {name: value.to(device) if name in "ac" else value for name, value in tensors.items()}
    return {"ok": checksum(tensors) == checksum(mixed)}


def quantized(device: str) -> Iterator[Case]:
    for kind in ("int8", "float8", "nf4"):
        yield kind, partial(quantized_alike, kind, device)
    from modules.layers.gguf_formats import block_sizes

    for name, num_bytes in block_sizes().items():
        yield f"GGUF {name}", partial(dequantized_alike, name, num_bytes, device)


def quantized_alike(kind: str, device: str) -> dict[str, Any]:
    """A quantized layer is dequantized as on the CPU, bit for bit, and gives its inputs finite gradients."""
    import torch

    from modules.layers.dequantize import dequantize
    from modules.layers.QuantizedLinear import QuantizedLinear

    if kind == "nf4" and not find_spec("bitsandbytes"):
        raise NotHere("needs the package bitsandbytes")
    torch.manual_seed(0)
    layer = torch.nn.Linear(COLUMNS, ROWS).bfloat16()
    held = QuantizedLinear.of(layer, kind, torch.device(device))
    on_cpu = dequantize(held.weight.cpu(), held.scale.cpu(), kind, (ROWS, COLUMNS), torch.bfloat16)
    same = torch.equal(on_cpu, held.dequantize().cpu())
    inputs = torch.randn(4, COLUMNS, device=device, requires_grad=True)
    with torch.autocast(torch.device(device).type, torch.bfloat16):
        output = held(inputs)
    output.float().square().sum().backward()
    exact = layer.to(device)(inputs.detach().bfloat16()).float()
    error = float((output.detach().float() - exact.detach()).norm() / exact.detach().norm())
    has_gradient = inputs.grad is not None and bool(inputs.grad.isfinite().all())
    return {"ok": same and has_gradient, "same": same, "error": round(error, 4), "has_gradient": has_gradient}


def dequantized_alike(name: str, num_bytes: int, device: str) -> dict[str, Any]:
    """A format of GGUF is dequantized as on the CPU, bit for bit; and the lines that wait for the GPU meanwhile.

    num_bytes: of a block.
    """
    import torch

    from modules.layers.gguf_formats import dequantize_blocks, gguf_constants

    draws, constants = torch.Generator().manual_seed(3), gguf_constants()
    blocks = torch.randint(0, 256, (ROWS, num_bytes), dtype=torch.uint8, generator=draws).view(torch.int8)
    expected = dequantize_blocks(blocks, name, constants)
    there, constants, waits = blocks.to(device), constants.to(device), Waits(device)
    dequantize_blocks(there, name, constants)  # loads the kernels
    with waits.seen():
        found = dequantize_blocks(there, name, constants)
    same = torch.equal(expected.nan_to_num(), found.cpu().nan_to_num())
    return {"ok": same and not waits.lines, "same": same, "waits": waits.lines}


def skipping(device: str) -> Iterator[Case]:
    for name in ("AdamW", "SGD"):
        yield f"fused {name}", partial(skips, name, device)


def skips(name: str, device: str) -> dict[str, Any]:
    """With `found_inf` set, a fused optimizer leaves weights, state and counters as they are."""
    import torch

    param = torch.nn.Parameter(torch.ones(33, 7, device=device))
    optimizer: Any = getattr(torch.optim, name)([param], lr=0.1, fused=True)
    means = []
    for is_bad in (False, True, False):
        param.grad = torch.full_like(param, math.nan if is_bad else 2.0)
        optimizer.grad_scale = torch.tensor(2.0, device=device)
        optimizer.found_inf = torch.tensor(float(is_bad), device=device)
        optimizer.step()
        means.append(float(param.detach().mean()))
    return {"ok": means[0] == means[1] > means[2] and math.isfinite(means[2]), "means": means}


def _values() -> Any:
    import torch

    values = torch.randn(1000, 333, generator=torch.Generator().manual_seed(1))
    values[0, :3] = torch.tensor([math.inf, -math.inf, math.nan])
    return values
