"""Products in 8 bits: whether a layer's are right on this card, and how long they take beside a dequantized weight."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from modules.config.quantizations import EIGHT_BITS
from scripts.gpu.cases import Case, NotHere, is_cuda
from scripts.gpu.ceilings import PRODUCTS, median_seconds

ON_CPU = 64, 64, 64
RIGHT = {"int8": 0.013, "float8": 0.04}  # relative errors of normally distributed numbers, as in docs/memory.md
ROTATION = 256  # the size of its groups in most layers
FEW_ROWS = 2  # as of layers that modulate blocks


def products_in_8_bits(device: str) -> Iterator[Case]:
    for quantization in EIGHT_BITS:
        for rows in (FEW_ROWS, 512):
            for rotation in (0, ROTATION) if quantization == "int8" and rows > FEW_ROWS else (0,):
                for compiled in (False, True) if is_cuda(device) else (False,):
                    name = f"{quantization}, {rows} rows{', rotated' if rotation else ''}"
                    one = partial(close_to_the_layer, quantization, rows, rotation, compiled, device)
                    yield f"{name}{', compiled' if compiled else ''}", one


def close_to_the_layer(quantization: str, rows: int, rotation: int, compiled: bool, device: str) -> dict[str, Any]:
    """Output and gradient of the inputs, beside those of the unquantized layer in float32; twice the same."""
    import torch

    held, plain = _layers(quantization, 512, 768, device, rotation)
    exact = plain.float()
    run = torch.compile(held, fullgraph=True) if compiled else held
    values = torch.randn(rows, 512, device=device, dtype=torch.bfloat16)
    gradient = torch.randn(rows, 768, device=device, dtype=torch.bfloat16)
    results = [_both(layer, values, gradient) for layer in (run, run)]
    expected = _both(exact, values.float(), gradient.float())
    errors = [
        float((found.float() - wanted).norm() / wanted.norm())
        for found, wanted in zip(results[0], expected, strict=True)
    ]
    repeats = all(map(torch.equal, *results))
    return {"ok": repeats and max(errors) <= RIGHT[quantization], "errors": errors, "repeats": repeats}


def times_in_8_bits(device: str) -> Iterator[Case]:
    for shape in PRODUCTS[1:]:
        for quantization in EIGHT_BITS:
            for compiled in (False, True) if is_cuda(device) else (False,):
                name = f"{' x '.join(map(str, shape))}, {quantization}{', compiled' if compiled else ''}"
                yield name, partial(timed, quantization, shape, compiled, device)


def timed(quantization: str, shape: tuple[int, int, int], compiled: bool, device: str) -> dict[str, Any]:
    """Seconds of a forward and backward pass of a layer: in bfloat16, dequantized, in 8 bits, and with rotated inputs.

    ratio: of 8 bits to dequantized; where it is below 1, `model.quantized_matmul` gains by layers of this size.
    """
    import torch

    from modules.layers.hadamard import group_size

    rows, inputs, outputs = shape if is_cuda(device) else ON_CPU
    held, plain = _layers(quantization, inputs, outputs, device)
    values = torch.randn(rows, inputs, device=device, dtype=torch.bfloat16)
    gradient = torch.randn(rows, outputs, device=device, dtype=torch.bfloat16)
    seconds = {}
    for name, layer in (("bfloat16", plain), ("dequantized", held), ("in_8_bits", held), ("rotated", held)):
        held.in_8_bits = name in ("in_8_bits", "rotated")
        held.rotation = group_size(inputs) if name == "rotated" else 0
        run = torch.compile(layer, fullgraph=True) if compiled else layer
        seconds[name] = median_seconds(partial(_both, run, values, gradient), device)
    return {**seconds, "ratio": seconds["in_8_bits"] / seconds["dequantized"], "weights": inputs * outputs}


def _layers(quantization: str, inputs: int, outputs: int, device: str, rotation: int = 0) -> tuple[Any, Any]:
    """(a layer that multiplies in 8 bits, the one that it was made of, in bfloat16)."""
    import torch

    from modules.layers.quantized_matmul import matmul_problem
    from modules.layers.QuantizedLinear import QuantizedLinear

    place = torch.device(device)
    if reason := matmul_problem(place, quantization):
        raise NotHere(f"{quantization} {reason}")
    torch.manual_seed(0)
    plain = torch.nn.Linear(inputs, outputs, device=place, dtype=torch.bfloat16).requires_grad_(False)
    held = QuantizedLinear.of(plain, quantization, place, rotation)
    held.in_8_bits = True
    return held, plain


def _both(layer: Any, values: Any, gradient: Any) -> list[Any]:
    """The output, and the gradient of the inputs."""
    values = values.detach().requires_grad_()
    output = layer(values)
    output.backward(gradient)
    return [output.detach(), values.grad]
