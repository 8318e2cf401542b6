"""Chooses what computes attention in a run, and tries it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from modules.config.attentions import ATTENTIONS
from modules.distributed.attention_trial import AttentionCase, Trial, try_attention
from modules.distributed.cudnn_attention import switch_cudnn_attention_off
from modules.distributed.gradient_layouts import match_gradient_layouts
from modules.distributed.other_attention import exact_attention, stop_other_attention, use_other_attention

if TYPE_CHECKING:
    from modules.distributed.Runtime import Runtime

LABELS = {
    SDPBackend.CUDNN_ATTENTION: "cuDNN's attention",
    SDPBackend.FLASH_ATTENTION: "flash attention",
    SDPBackend.EFFICIENT_ATTENTION: "memory-efficient attention",
}
"""In the order in which they are preferred; after them, torch has one that is always right and takes more memory."""

MakeCases = Callable[[], Sequence[AttentionCase]]
Try = Callable[[SDPBackend, Sequence[AttentionCase], torch.device, torch.dtype], Trial]


def try_backend(backend: SDPBackend, cases: Sequence[AttentionCase], device: torch.device, dtype: torch.dtype) -> Trial:
    """Tries one backend, against memory-efficient attention in float32."""

    def attend(*args: Any, **kwargs: Any) -> Tensor:
        with sdpa_kernel(backend):
            return functional.scaled_dot_product_attention(*args, **kwargs)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's reasons why a backend can't compute a case
        return try_attention(attend, exact_attention, cases, device, dtype)


def choose_attention(
    kind: str,
    runtime: Runtime,
    make_cases: MakeCases,
    dtype: torch.dtype,
    tell: Callable[[str], None],
    try_one: Try = try_backend,
) -> tuple[str, list[str]]:
    """Has this process compute attention as `model.attention` says, without what gives wrong results on some rank.

    All ranks call it, before anything is compiled: compiled code keeps what held when it was compiled.
    make_cases: gives attentions like those of the run, to try; called where they are tried. dtype: of the run; nothing
    is tried of PyTorch in float32 and float64. tell: gets a warning during training, from one process.
    Returns (what a run says of it, "" for nothing; warnings), the same on all ranks.
    Raises UserError if the environment asks for cuDNN's attention and the setting does not.
    """
    device = runtime.device
    uses_cudnn, facts = kind == "cudnn" and device.type == "cuda", ATTENTIONS.get(kind)
    stop_other_attention()
    match_gradient_layouts(uses_cudnn)
    if device.type != "cuda":
        missing = "there is no cuDNN" if kind == "cudnn" else f"there is no {facts.label}" if facts else ""
        return "", [f"model.attention {kind}: {missing} for {device}; PyTorch's attention is used."] if missing else []
    if uses_cudnn:
        torch.backends.cuda.enable_cudnn_sdp(True)
    else:
        switch_cudnn_attention_off()
    backends = [backend for backend in LABELS if _is_on(backend)]
    cases = make_cases() if dtype in (torch.bfloat16, torch.float16) else ()
    trials = {backend.name: tuple(try_one(backend, cases, device, dtype)) for backend in backends}
    told = _switch_faulty_off(runtime.gather(trials, "trying attention"))
    if not _is_on(SDPBackend.CUDNN_ATTENTION):
        match_gradient_layouts(False)
        if facts:
            text, more = use_other_attention(facts, runtime, make_cases, dtype, tell)
            return text, [*told, *more]
        return "Attention by PyTorch; cuDNN's is off, because its gradients can be wrong", told
    if cases and not trials[SDPBackend.CUDNN_ATTENTION.name][0]:
        told.append("model.attention cudnn: cuDNN can't compute this run's attention; PyTorch's is used.")
    return "Attention by cuDNN, with gradients laid out like its outputs", told


def _switch_faulty_off(trials: Sequence[Mapping[str, Sequence[Any]]]) -> list[str]:
    """Switches the backends off that failed on some rank; returns the warnings. trials: of each rank, by name."""
    told = []
    for backend, label in LABELS.items():
        faults = [
            (rank, fault) for rank, of in enumerate(trials) for _, fault in [of.get(backend.name, (0, ""))] if fault
        ]
        if not faults:
            continue
        _switch(backend, False)
        rank, fault = faults[0]
        where = f"the GPU of rank {rank}" if len(trials) > 1 else "this GPU"
        rest = [other for at, other in LABELS.items() if _is_on(at)]
        instead = rest[0] if rest else "PyTorch's plain attention, which takes more memory,"
        told.append(f"On {where}, {label} is wrong: {fault}; {instead} is used instead.")
    return told


def _is_on(backend: SDPBackend) -> bool:
    return {
        SDPBackend.CUDNN_ATTENTION: torch.backends.cuda.cudnn_sdp_enabled,
        SDPBackend.FLASH_ATTENTION: torch.backends.cuda.flash_sdp_enabled,
        SDPBackend.EFFICIENT_ATTENTION: torch.backends.cuda.mem_efficient_sdp_enabled,
    }[backend]()


def _switch(backend: SDPBackend, on: bool) -> None:
    {
        SDPBackend.CUDNN_ATTENTION: torch.backends.cuda.enable_cudnn_sdp,
        SDPBackend.FLASH_ATTENTION: torch.backends.cuda.enable_flash_sdp,
        SDPBackend.EFFICIENT_ATTENTION: torch.backends.cuda.enable_mem_efficient_sdp,
    }[backend](on)
