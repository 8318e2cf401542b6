"""Has models compute attention by the kernels of another package, where `model.attention` asks for them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from modules.config.attentions import ATTENTIONS, AttentionFacts, without_gradients
from modules.config.errors import UserError
from modules.distributed.attention_kernels import Kernel, load_kernel, make_attend, torch_dtypes
from modules.distributed.attention_trial import AttentionCase, Trial, try_attention
from modules.distributed.cudnn_attention import BACKEND_VARIABLE

if TYPE_CHECKING:
    from modules.distributed.Runtime import Runtime

_of_torch = functional.scaled_dot_product_attention  # or what another library has put in its place
_ours: Callable[..., Tensor] | None = None  # what stands in its place now


def check_attention(kind: str, device: torch.device, env: Mapping[str, str] = os.environ) -> None:
    """Raises UserError if this process can't compute attention as `model.attention` says. Before a model is loaded."""
    asked = env.get(BACKEND_VARIABLE, "").lower()
    if asked not in ("", "native"):
        what = without_gradients(asked)
        why = f"{what} has no backward pass" if what else "some models of diffusers would use it, and not the setting"
        raise UserError(
            f"{BACKEND_VARIABLE} {asked!r} with model.attention {kind}: {why}; unset the variable, and choose by "
            "model.attention.",
            "model.attention",
        )
    if kind in ATTENTIONS and device.type == "cuda":
        load_kernel(ATTENTIONS[kind], device)


def use_other_attention(
    facts: AttentionFacts,
    runtime: Runtime,
    make_cases: Callable[[], Sequence[AttentionCase]],
    dtype: torch.dtype,
    tell: Callable[[str], None],
) -> tuple[str, list[str]]:
    """Puts kernels in the place of PyTorch's attention, unless they are wrong or fail on some rank.

    All models call that by its name in torch.nn.functional, whichever of diffusers' processors they have. All ranks
    call it. Returns and arguments: as of `choose_attention`.
    """
    kernel = load_kernel(facts, runtime.device)
    cases = make_cases() if dtype in torch_dtypes(facts) else ()
    trial = try_kernel(facts, kernel, cases, runtime.device, dtype)
    faults = enumerate(runtime.gather(trial.fault, "trying attention"))
    for rank, fault in faults:
        if fault:
            where = f"the GPU of rank {rank}" if runtime.world_size > 1 else "this GPU"
            return "", [f"On {where}, {facts.label} {fault}; PyTorch's attention is used instead."]
    put_in_place(facts, kernel, tell)
    return f"Attention by {facts.label}, and by PyTorch where that can't compute it", []


def try_kernel(
    facts: AttentionFacts, kernel: Kernel, cases: Sequence[AttentionCase], device: torch.device, dtype: torch.dtype
) -> Trial:
    """Tries those of the cases that a kernel takes, against memory-efficient attention in float32.

    The fault follows its name in a sentence.
    """
    taken = [case for case in cases if facts.takes(case.width, case.masked)]
    try:
        trial = try_attention(partial(attend_by, kernel), exact_attention, taken, device, dtype)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError, ValueError, AssertionError, ImportError) as error:
        reason = " ".join(str(error).split())
        return Trial(0, f"fails ({type(error).__name__}: {reason})")
    return trial._replace(fault=f"is wrong: {trial.fault}") if trial.fault else trial


def attend_by(kernel: Kernel, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
    """A kernel called as PyTorch's attention."""
    return kernel(query, key, value, attn_mask, None)


def exact_attention(*args: Any, **kwargs: Any) -> Tensor:
    """PyTorch's attention, by what kernels are compared with."""
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
        return functional.scaled_dot_product_attention(*args, **kwargs)


def put_in_place(facts: AttentionFacts, kernel: Kernel, tell: Callable[[str], None]) -> None:
    """From now on, models in this process compute attention by `kernel` where they can. tell: gets each reason why
    they can't once, as a sentence."""
    global _of_torch, _ours
    stop_other_attention()
    told: set[str] = set()

    def tell_once(reason: str) -> None:
        if reason not in told:
            told.add(reason)
            tell(f"model.attention {facts.name}: {facts.label} takes no attentions {reason}; PyTorch computes those.")

    _of_torch = functional.scaled_dot_product_attention
    _ours = make_attend(facts, kernel, _of_torch, tell_once)
    functional.scaled_dot_product_attention = _ours


def stop_other_attention() -> None:
    """PyTorch computes all attentions again; what another library has put in our place stays."""
    global _ours
    if functional.scaled_dot_product_attention is _ours:
        functional.scaled_dot_product_attention = _of_torch
    _ours = None
