"""What the card can do at best with the shapes of real models: matrix products, and attention by each backend."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from modules.config.attentions import ATTENTIONS as OTHER_ATTENTIONS
from scripts.gpu.attention import kernel_here
from scripts.gpu.cases import Case, NotHere, is_cuda, needs_cuda

PRODUCTS = ((8192, 8192, 8192), (4608, 3072, 12288), (4608, 3072, 3072), (4096, 1280, 10240))  # rows, inputs, outputs
# Name -> (heads, tokens, width of a head)
ATTENTIONS = {
    "FLUX.1 at 1024": (24, 4608, 128),
    "SDXL, 64x64": (10, 4096, 64),
    "SDXL, 32x32": (20, 1024, 64),
    "Wan, 81 frames of 480p": (12, 32760, 128),
}
BACKENDS = ("FLASH_ATTENTION", "CUDNN_ATTENTION", "EFFICIENT_ATTENTION")
TIMES, LONG, LONG_TIMES = 12, 30_000, 5
WARM_UPS = 3


def matrix_peak(device: str) -> Iterator[Case]:
    for shape in PRODUCTS:
        yield " x ".join(map(str, shape)), partial(product, shape, device)


def product(shape: tuple[int, int, int], device: str) -> dict[str, Any]:
    """TFLOP/s of a product in bfloat16."""
    import torch

    rows, inputs, outputs = shape if is_cuda(device) else (64, 64, 64)
    left = torch.randn(rows, inputs, device=device, dtype=torch.bfloat16)
    right = torch.randn(outputs, inputs, device=device, dtype=torch.bfloat16)
    seconds = median_seconds(lambda: left @ right.T, device)
    return {"seconds": seconds, "tflops": round(2 * rows * inputs * outputs / seconds / 1e12, 3)}


def attention_times(device: str) -> Iterator[Case]:
    for name, sizes in ATTENTIONS.items():
        for backend in BACKENDS:
            yield f"{name}, {backend}", partial(attention, sizes, backend, device)
        for other, facts in OTHER_ATTENTIONS.items():
            yield f"{name}, {facts.label}", partial(other_attention, sizes, other, device)


def attention(sizes: tuple[int, int, int], backend: str, device: str) -> dict[str, Any]:
    """Seconds of a forward and backward pass of one image or clip in bfloat16."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    needs_cuda(device)

    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(getattr(SDPBackend, backend)):
            return torch.nn.functional.scaled_dot_product_attention(query, key, value)

    try:
        return {"seconds": seconds_of(attend, sizes, device)}
    except RuntimeError as error:
        if "No available kernel" in str(error):
            raise NotHere(f"{backend} computes none of these attentions here") from error
        raise


def other_attention(sizes: tuple[int, int, int], name: str, device: str) -> dict[str, Any]:
    """The same of the kernels of another package, which `model.attention` can choose."""
    from modules.distributed.other_attention import attend_by

    return {"seconds": seconds_of(partial(attend_by, kernel_here(name, device)), sizes, device)}


def seconds_of(attend: Callable[..., Any], sizes: tuple[int, int, int], device: str) -> float:
    """Of a forward and backward pass."""
    import torch

    heads, tokens, width = sizes
    shape, options = (1, heads, tokens, width), {"device": device, "dtype": torch.bfloat16}
    inputs = [torch.randn(shape, requires_grad=True, **options) for _ in range(3)]  # type: ignore[call-overload]

    def both() -> None:
        output = attend(*inputs)
        output.backward(output.detach())

    return median_seconds(both, device, LONG_TIMES if tokens > LONG else TIMES)


def median_seconds(call: Callable[[], object], device: str, times: int = TIMES) -> float:
    """Of a call's kernels; on a CPU, of the call."""
    import time

    import torch

    for _ in range(WARM_UPS):
        call()
    if not is_cuda(device):
        begun = time.perf_counter()
        call()
        return time.perf_counter() - begun
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(times + 1)]
    marks[0].record()
    for mark in marks[1:]:
        call()
        mark.record()
    torch.cuda.synchronize()
    spans = sorted(a.elapsed_time(b) for a, b in itertools.pairwise(marks))
    return spans[times // 2] / 1000
