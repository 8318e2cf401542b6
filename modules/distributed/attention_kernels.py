"""Kernels of other packages for attention, called as torch.nn.functional.scaled_dot_product_attention is.

diffusers can choose such kernels, too, but only in models whose processors ask its dispatch, and with mistakes: its
flex takes a mask of keys for one of queries, and its xformers takes a mask of booleans for values to be added.

Legend: B batch, H heads, Q queries, K keys, D width of a head.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from modules.config.attentions import AttentionFacts
from modules.config.errors import UserError
from modules.machine.devices import is_gpu

MAX_GRAPHS = 64  # of flex: for each width, kind of mask and pass; beyond torch's own 8, it would compute uncompiled
MASK_STEP = 8  # rows of masks begin at multiples of so many values

# (query, key, value, mask, scale) -> output, all of them [B, H, Q or K, D], the mask expandable to [B, H, Q, K]
Kernel = Callable[[Tensor, Tensor, Tensor, Tensor | None, float | None], Tensor]


def load_kernel(facts: AttentionFacts, device: torch.device) -> Kernel:
    """Imports what computes an attention; that of the Hub is downloaded.

    Raises UserError if that fails, or if the GPU is none for which it is made.
    """
    start = f"model.attention {facts.name}"
    capability = torch.cuda.get_device_capability(device)
    if capability < facts.least_capability or facts.only_capability not in (None, capability):
        least = ".".join(map(str, facts.least_capability))
        made_for = least if facts.only_capability else f"{least} and newer"
        raise UserError.at(
            "model.attention",
            f"{facts.name}: {facts.label} is made for compute capability {made_for}, and "
            f"{torch.cuda.get_device_name(device)} has {capability[0]}.{capability[1]}; use auto.",
        )
    try:
        return LOADERS[facts.name]()
    except Exception as error:  # of a package built for another PyTorch, of the Hub, or of a missing compiler
        reason = " ".join(str(error).split())
        raise UserError(
            f"{start}: {facts.label} can't be loaded ({type(error).__name__}: {reason}); repair or update its package, "
            "or use auto.",
            "model.attention",
        ) from error


def obstacle(facts: AttentionFacts, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> str:
    """Why a kernel can't compute an attention, for the end of "attentions ..."; "" if it can.

    It only asks for what is known on the host. Tensors are [B, H, Q or K, D], with dtypes as they come to the kernel.
    """
    if not is_gpu(query.device):
        return f"on {query.device.type}"
    shapes = [tensor.shape for tensor in (query, key, value)]
    if len(shapes[0]) != 4 or len({shape[0] for shape in shapes}) > 1 or shapes[0][1] % shapes[1][1]:
        return "of an unusual form"
    if query.dtype not in torch_dtypes(facts) or key.dtype != query.dtype or value.dtype != query.dtype:
        return f"in {str(query.dtype).removeprefix('torch.')}"
    if len({shape[-1] for shape in shapes}) > 1 or not facts.takes(shapes[0][-1]):
        return f"with heads of width {shapes[0][-1]}"
    if mask is not None and (not facts.masks or mask.requires_grad):
        return "with a mask that is trained" if mask.requires_grad else "with a mask"
    return ""


def torch_dtypes(facts: AttentionFacts) -> list[torch.dtype]:
    return [getattr(torch, name) for name in facts.dtypes]


def make_attend(
    facts: AttentionFacts, kernel: Kernel, fall_back: Callable[..., Tensor], tell: Callable[[str], None]
) -> Callable[..., Tensor]:
    """A function to put in the place of scaled_dot_product_attention, for models that call that.

    fall_back: computes what the kernel can't. tell: gets the reason, as of `obstacle`, whenever that happens to an
    attention with gradients, but for compiled code.
    """

    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        if facts.is_compiled and not torch.is_grad_enabled():
            return fall_back(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        low = autocast_dtype(query)
        inputs = (query, key, value) if low is None else (query.to(low), key.to(low), value.to(low))
        reason = "with dropout" if dropout_p else "with a causal mask" if is_causal else ""
        reason = reason or obstacle(facts, *inputs, attn_mask)
        if not reason:
            with torch.autocast(query.device.type, enabled=False):
                return kernel(*inputs, attn_mask, scale)
        if query.requires_grad and torch.is_grad_enabled() and not torch.compiler.is_compiling():
            tell(reason)
        return fall_back(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)

    return attend


def autocast_dtype(tensor: Tensor) -> torch.dtype | None:
    """In which autocast computes attention here; None without it. scaled_dot_product_attention is cast by it."""
    kind = tensor.device.type
    if not torch.is_autocast_enabled(kind) or not tensor.is_floating_point() or tensor.dtype == torch.float64:
        return None
    return torch.get_autocast_dtype(kind)


# --- the kernels ------------------------------------------------------------------------------------------------------


def load_flash() -> Kernel:
    """FlashAttention 2, of the package flash-attn. It takes [B, N, H, D], and fewer heads of keys than of queries."""
    return _flash(importlib.import_module("flash_attn").flash_attn_func)


def load_flash3() -> Kernel:
    """FlashAttention 3, from the repository of the Hub that diffusers names, with diffusers' checks of who made it."""
    dispatch = importlib.import_module("diffusers.models.attention_dispatch")
    name = dispatch.AttentionBackendName._FLASH_3_HUB
    dispatch._check_attention_backend_requirements(name)
    dispatch._maybe_download_kernel_for_backend(name)
    return _flash(dispatch._HUB_KERNELS_REGISTRY[name].kernel_fn)


def _flash(flash_attn_func: Callable[..., Any]) -> Kernel:
    def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None) -> Tensor:
        inputs = [each.transpose(1, 2) for each in (query, key, value)]
        output = flash_attn_func(*inputs, softmax_scale=scale)
        # some versions of FlashAttention 3 also return sums of the rows
        return (output[0] if isinstance(output, tuple) else output).transpose(1, 2)

    return attend


def load_flex() -> Kernel:
    """FlexAttention of PyTorch, which is only fast and economical when compiled."""
    from torch.utils._triton import has_triton

    if not has_triton():
        raise ImportError("torch finds no Triton for this GPU; install triton, or triton-windows on Windows")
    import torch._dynamo

    torch._dynamo.config.recompile_limit = max(MAX_GRAPHS, torch._dynamo.config.recompile_limit)
    return torch.compile(flex_attend)


def flex_attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None) -> Tensor:
    """FlexAttention with a mask of booleans, or of values to be added. Rows without any key give 0, as in PyTorch."""
    from torch.nn.attention.flex_attention import flex_attention

    change: Callable[..., Tensor] | None = None
    if mask is not None:
        every = mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])

        def hide(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return torch.where(every[b, h, q, k], score, -float("inf"))

        def add(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return score + every[b, h, q, k]

        change = hide if mask.dtype == torch.bool else add
    gqa = query.shape[1] != key.shape[1]
    output = flex_attention(query, key, value, score_mod=change, scale=scale, enable_gqa=gqa)
    assert isinstance(output, Tensor)  # else it was asked for more
    return output


def load_xformers() -> Kernel:
    """xFormers, which takes [B, N, H, D], and chooses among its own kernels."""
    attention = importlib.import_module("xformers.ops").memory_efficient_attention

    def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None) -> Tensor:
        if query.shape[1] != key.shape[1]:
            times = query.shape[1] // key.shape[1]
            key, value = (each.repeat_interleave(times, 1) for each in (key, value))
        bias = None if mask is None else added_mask(mask, query, key.shape[2])
        output = attention(*(each.transpose(1, 2) for each in (query, key, value)), attn_bias=bias, scale=scale)
        output = output.transpose(1, 2)
        if mask is not None and mask.dtype == torch.bool:  # its rows without any key are no numbers, or a mean
            output = output.masked_fill(~mask.any(-1, keepdim=True), 0)
        return output

    return attend


def added_mask(mask: Tensor, query: Tensor, num_keys: int) -> Tensor:
    """A mask as values to be added to the scores, [B, H, Q, K]. Its rows begin at multiples of MASK_STEP values.

    Hidden keys get the least number, not the infinite one, with which a row without any key would have no mean.
    """
    values = mask
    if mask.dtype == torch.bool:
        values = torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, torch.finfo(query.dtype).min)
    values = values.to(query.dtype).expand(*mask.shape[:-1], num_keys)
    values = functional.pad(values, (0, -num_keys % MASK_STEP))[..., :num_keys]
    return values.expand(*query.shape[:3], num_keys)


LOADERS: dict[str, Callable[[], Kernel]] = {
    "flash": load_flash,
    "flash3": load_flash3,
    "flex": load_flex,
    "xformers": load_xformers,
}
"""By the names of modules/config/attentions.py."""
