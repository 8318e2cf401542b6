"""LoRA layers that compute base and adapter in one function, beside PEFT's own and float64."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from scripts.gpu.cases import Case, is_cuda
from scripts.gpu.step_speed import drained

WIDTH, ROWS, RANK = 3072, 4096, 16  # of a layer of FLUX.1
ON_CPU = 64, 8, 4
TIMED = 20  # passes
NO_WORSE = 1.3  # times the error of PEFT's layer


def lora(device: str) -> Iterator[Case]:
    for precision in ("float32", "bfloat16", "bfloat16, int8"):
        yield precision, partial(as_peft, precision, device)


def as_peft(precision: str, device: str) -> dict[str, Any]:
    """Outputs and gradients are no further from float64's than those of PEFT's layer; and what both take."""
    import torch

    from modules.layers.LoraLinear import LoraLinear, fuse_lora

    width, rows, rank = (WIDTH, ROWS, RANK) if is_cuda(device) else ON_CPU
    values = torch.randn(2, rows // 2, width, generator=torch.Generator().manual_seed(1)).to(device)
    model, exact = _model(width, rank, precision, device)
    fused = copy.deepcopy(model)
    fuse_lora(fused)
    is_low = precision != "float32"
    expected = _results(exact, values.double(), False)
    found: dict[str, Any] = {"ok": type(fused[0]) is LoraLinear}
    for program, layer in (("PEFT", model), ("fused", fused)):
        results = _results(layer, values, is_low)
        pairs = zip(results, expected, strict=True)
        found[f"error of {program}"] = max(float((own.double() - right).norm() / right.norm()) for own, right in pairs)
        begun = drained(device)
        for _ in range(TIMED):
            _results(layer, values, is_low)
        launched = time.perf_counter()
        found[f"host ms of {program}"] = round((launched - begun) / TIMED * 1e3, 3)
        found[f"ms of {program}"] = round((drained(device) - begun) / TIMED * 1e3, 3)
    found["ok"] = found["ok"] and found["error of fused"] <= NO_WORSE * found["error of PEFT"] + 1e-7
    return found


def _model(width: int, rank: int, precision: str, device: str) -> tuple[Any, Any]:
    """A linear layer with an adapter in float32, and the same in float64."""
    import peft
    import torch

    from modules.layers.QuantizedLinear import QuantizedLinear

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(width, width)).to(device).requires_grad_(False)
    if precision != "float32":
        model.bfloat16()
    plain: Any = model[0]
    if "int8" in precision:
        held = QuantizedLinear.of(plain, "int8", torch.device(device))
        plain.weight.data = held.dequantize()
    config = peft.LoraConfig(r=rank, lora_alpha=int(1.5 * rank), target_modules=["0"], init_lora_weights="gaussian")
    peft.inject_adapter_in_model(config, model)
    adapted: Any = model[0]
    for factors in (adapted.lora_A, adapted.lora_B):
        factors.float()
    torch.nn.init.normal_(adapted.lora_B["default"].weight, std=0.05)
    exact = copy.deepcopy(model).double()
    if "int8" in precision:
        adapted.base_layer = held
    return model, exact


def _results(model: Any, values: Any, is_low: bool) -> list[Any]:
    """The output, and the gradients of the input and the adapter."""
    import torch

    values = values.clone().requires_grad_()
    with torch.autocast(values.device.type, torch.bfloat16, enabled=is_low):
        output = model(values)
    output.square().mean().backward()
    trained = [param for param in model.parameters() if param.requires_grad]
    gradients = [param.grad for param in trained]
    for param in trained:
        param.grad = None
    return [output.detach(), values.grad, *gradients]
