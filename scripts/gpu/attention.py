"""Whether every backend of attention gives right and finite gradients, in all layouts, for the lengths of buckets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from scripts.gpu.cases import Case, NotHere, is_cuda, needs_cuda

WIDTHS = (16, 64, 128)  # of a head: of tiny models, SDXL and FLUX.1
# Of tiny models, SDXL with its texts, and FLUX.1 from 512x512 to 1024x1024: with last tiles of many sizes.
LENGTHS = (
    *((30, 30), (31, 31), (64, 64), (72, 45), (100, 77), (170, 170), (192, 192), (256, 256), (320, 320), (576, 576)),
    *((640, 640), (704, 704), (1088, 1088), (1536, 1536), (1808, 1808)),
    *((4032, 77), (4096, 77), (4032, 4032), (4096, 4096), (4464, 4464), (4544, 4544), (4608, 4608)),
)
FEW_LENGTHS = LENGTHS[:5]  # elsewhere than on a GPU
CUDNN = "CUDNN_ATTENTION"


def gradients(device: str) -> Iterator[Case]:
    """Each backend as runs have it: cuDNN's with gradients laid out like its outputs."""
    from modules.distributed.attention_backends import LABELS

    for backend, label in LABELS.items():
        for width in WIDTHS:
            case = f"{label}, width {width}"
            yield case, partial(tried, backend.name, width, device, backend.name == CUDNN)


def other_gradients(device: str) -> Iterator[Case]:
    """Those of the kernels of other packages, which `model.attention` can choose."""
    from modules.config.attentions import ATTENTIONS

    for name, facts in ATTENTIONS.items():
        for width in filter(facts.takes, WIDTHS):
            yield f"{facts.label}, width {width}", partial(tried_kernel, name, width, device)


def unmatched_gradients(device: str) -> Iterator[Case]:
    """cuDNN's attention as PyTorch takes it by itself; runs are never given it, so that nothing fails by it."""
    for width in WIDTHS:
        yield f"width {width}", partial(_as_fact, width, device)


def _as_fact(width: int, device: str) -> dict[str, Any]:
    found = tried(CUDNN, width, device, is_matched=False)
    return {**found, "ok": True, "is_right": found["ok"]}


def tried(name: str, width: int, device: str, is_matched: bool) -> dict[str, Any]:
    """The number of attentions that a backend computes, and its first wrong result, in bfloat16 against float32.

    Freed memory holds NaN before each, so that what is read without having been written shows.
    """
    import torch
    from torch.nn.attention import SDPBackend

    from modules.distributed.attention_backends import try_backend
    from modules.distributed.attention_trial import AttentionCase
    from modules.distributed.gradient_layouts import match_gradient_layouts

    if name == CUDNN:
        needs_cuda(device)
    place, num_tried, fault = torch.device(device), 0, ""
    match_gradient_layouts(is_matched)
    try:
        for queries, keys in LENGTHS if is_cuda(device) else FEW_LENGTHS:
            for is_masked in (False, True):
                poison(device)
                case = AttentionCase(queries, keys, width, is_masked)
                trial = try_backend(getattr(SDPBackend, name), [case], place, torch.bfloat16)
                num_tried += trial.num_tried
                fault = fault or trial.fault
    finally:
        match_gradient_layouts(False)
    if not num_tried:
        raise NotHere(f"{name} computes none of these attentions here")
    return {"ok": not fault, "fault": fault, "tried": num_tried}


def tried_kernel(name: str, width: int, device: str) -> dict[str, Any]:
    """The number of attentions that a kernel computes, its largest errors in bfloat16, and its first wrong result.

    The errors are relative to memory-efficient attention in float32.
    """
    import torch

    from modules.config.attentions import ATTENTIONS
    from modules.distributed.attention_trial import TOLERANCE, AttentionCase, largest_differences
    from modules.distributed.other_attention import attend_by, exact_attention

    facts, place = ATTENTIONS[name], torch.device(device)
    attend = partial(attend_by, kernel_here(name, device))
    fault, errors, num_tried = "", dict[str, float](), 0
    cases = [AttentionCase(*lengths, width, is_masked) for lengths in LENGTHS for is_masked in (False, True)]
    for case in cases:
        if not facts.takes(case.width, case.masked):
            continue
        poison(device)
        num_tried += 1
        for what, error in largest_differences(attend, exact_attention, case, place, torch.bfloat16).items():
            errors[what] = max(errors.get(what, 0.0), error)
            if not error < TOLERANCE:  # also if it is NaN
                fault = fault or f"the {what} differs by {error:.0%} ({case})"
    return {"ok": not fault, "fault": fault, "tried": num_tried, "errors": errors}


def kernel_here(name: str, device: str) -> Callable[..., Any]:
    """The kernel of a value of `model.attention`. Raises NotHere without its package or its GPU."""
    import torch

    from modules.config.attentions import ATTENTIONS, package_problem
    from modules.config.errors import UserError
    from modules.distributed.attention_kernels import load_kernel

    needs_cuda(device)
    if problem := package_problem(ATTENTIONS[name]):
        raise NotHere(problem)
    try:
        return load_kernel(ATTENTIONS[name], torch.device(device))
    except UserError as error:
        raise NotHere(str(error)) from error


def poison(device: str) -> None:
    """Fills freed memory with NaN; it is handed out again."""
    import torch

    if is_cuda(device):
        held = [torch.full((2**size,), torch.nan, device=device) for size in range(6, 25) for _ in range(4)]
        del held
