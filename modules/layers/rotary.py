"""Rotary embeddings of diffusers' transformers in few operations.

diffusers turns pairs of values by adding two products in float32, for which it makes another tensor with the values of
each pair swapped: eight operations, and about as many for the gradient. Where a pair lies side by side, it is a complex
number, and one product turns it. Where it lies half a head apart, the values and their swapped halves take one each.

Source: Su et al. 2021, arXiv 2104.09864, section 3.4.2.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.weak import WeakTensorKeyDictionary

from modules.layers.training_passes import is_training_pass

Frequencies = tuple[Tensor, Tensor]  # cosines and sines, float32

_EMBEDDINGS = "diffusers.models.embeddings"
_LOW = (torch.bfloat16, torch.float16)


def fuse_rotary(module: nn.Module) -> None:
    """Lets the layers of a diffusers transformer turn queries and keys as above in training passes.

    Replaces diffusers' functions where the files of these layers look them up, for the whole process; outside of
    training passes, and for what they can't compute, they call the ones they replace.
    """
    files = {type(part).__module__ for part in module.modules()} | {_EMBEDDINGS}
    for functions in (vars(sys.modules[name]) for name in files if name in sys.modules):
        for name in _NAMES & functions.keys():
            function = functions[name]
            if not hasattr(function, _MARK) and (form := _form_of(function)):
                functions[name] = form(function)


def turning(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """What replaces this function of diffusers, which it calls for what it can't compute.

    Raises ValueError if it is none of those that are replaced.
    """
    form = _form_of(function)
    if form is None:
        raise ValueError(f"{function.__module__}.{function.__name__} turns pairs in another way")
    return form(function)


_NAMES = {"apply_rotary_emb", "apply_interleaved_rotary_emb"}  # of diffusers' functions


def _form_of(function: Callable[..., Tensor]) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]] | None:
    """What replaces a function; None for one that has such a name, but computes something else."""
    if function.__module__ == _EMBEDDINGS:
        return _of_heads
    if function.__module__.startswith("diffusers.") and [*inspect.signature(function).parameters] == ["x", "freqs"]:
        return _of_tokens  # several files of transformers have a copy of it
    return None


def _of_heads(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """For values [B, H, S, D] or [B, S, H, D] and frequencies [S, D]."""

    @functools.wraps(original)
    def apply_rotary_emb(
        x: Tensor, freqs_cis: Any, use_real: bool = True, use_real_unbind_dim: int = -1, sequence_dim: int = 2
    ) -> Tensor:
        fits = use_real and sequence_dim in (1, 2) and use_real_unbind_dim in (-1, -2) and x.ndim == 4
        if not fits or not is_training_pass() or not _are_fitting(freqs_cis, x, 2):
            return original(x, freqs_cis, use_real, use_real_unbind_dim, sequence_dim)
        place = (None, None) if sequence_dim == 2 else (None, slice(None), None)
        if use_real_unbind_dim == -1:
            factors, inverse = _factors(*freqs_cis)
            return _Turn.apply(x, factors[place], inverse[place])
        crossed, inverse = _halves(*freqs_cis)
        return _TurnHalves.apply(x, freqs_cis[0][place], crossed[place], inverse[place])

    return _marked(apply_rotary_emb)


def _of_tokens(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """For values [B, S, C], before they are split into heads, and frequencies [B, S, C]."""

    @functools.wraps(original)
    def apply_rotary_emb(x: Tensor, freqs: Frequencies) -> Tensor:
        if x.ndim != 3 or not is_training_pass() or not _are_fitting(freqs, x, 3):
            return original(x, freqs)
        return _Turn.apply(x, *_factors(*freqs))

    return _marked(apply_rotary_emb)


_MARK = "_turns_pairs"


def _marked(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    setattr(function, _MARK, True)
    return function


def _are_fitting(frequencies: Any, x: Tensor, dimensions: int) -> bool:
    """Whether these are cosines and sines, without gradients, for values of this dtype on this device."""
    if not isinstance(frequencies, (tuple, list)) or len(frequencies) != 2:
        return False
    return (x.dtype == torch.float32 or x.dtype in _LOW) and all(
        isinstance(each, Tensor)
        and each.ndim == dimensions
        and each.dtype == torch.float32
        and each.device == x.device
        and each.shape[-1] == x.shape[-1]
        and not each.requires_grad
        for each in frequencies
    )


# --- pairs side by side -----------------------------------------------------------------------------------------------


class _Turn(torch.autograd.Function):
    """Values times factors, as complex numbers. factors, inverse: complex64[..., D / 2], broadcast."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factors: Tensor, inverse: Tensor) -> Tensor:
        ctx.inverse = inverse  # all layers share it, so that there is nothing to save, to offload or to compute again
        return _turned(x, factors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return _turned(gradient, ctx.inverse), None, None


def _turned(x: Tensor, factors: Tensor) -> Tensor:
    values = x.float()
    if values.stride(-1) != 1 or any(step % 2 for step in (*values.stride()[:-1], values.storage_offset())):
        values = values.contiguous()  # else torch can't view pairs as complex numbers
    pairs = torch.view_as_complex(values.unflatten(-1, (-1, 2)))
    turned = pairs * factors if values is x else pairs.mul_(factors)  # of a copy of its own, in place
    return torch.view_as_real(turned).flatten(-2).to(x.dtype)


# --- pairs half a head apart ------------------------------------------------------------------------------------------


class _TurnHalves(torch.autograd.Function):
    """Values times factors plus their swapped halves times crossed. inverse: in place of `crossed` for gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factors: Tensor, crossed: Tensor, inverse: Tensor) -> Tensor:
        ctx.factors, ctx.inverse = factors, inverse
        return _turned_halves(x, factors, crossed)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return _turned_halves(gradient, ctx.factors, ctx.inverse), None, None, None


def _turned_halves(x: Tensor, factors: Tensor, crossed: Tensor) -> Tensor:
    product = x * factors  # in float32, as these are
    swapped = x.roll(x.shape[-1] // 2, -1)
    out = product if x.dtype == torch.float32 else torch.empty_like(product, dtype=x.dtype)  # rounded once
    return torch.addcmul(product, swapped, crossed, out=out)


# --- what all layers share --------------------------------------------------------------------------------------------


class _Kept(NamedTuple):
    """What was made of frequencies. versions: of the two when it was made."""

    sines: Tensor
    versions: tuple[int, int]
    made: tuple[Tensor, ...]


def _once(make: Callable[[Tensor, Tensor], tuple[Tensor, ...]]) -> Callable[[Tensor, Tensor], tuple[Tensor, ...]]:
    """Makes it once for a pair of tensors, which all layers of a pass share, and keeps it as long as that lives."""
    kept = WeakTensorKeyDictionary()

    @functools.wraps(make)
    def made(cosines: Tensor, sines: Tensor) -> tuple[Tensor, ...]:
        versions = cosines._version, sines._version
        found: _Kept | None = kept.get(cosines)
        if found is None or found.sines is not sines or found.versions != versions:
            with torch.no_grad():
                found = kept[cosines] = _Kept(sines, versions, make(cosines, sines))
        return found.made

    return made


@_once
def _factors(cosines: Tensor, sines: Tensor) -> tuple[Tensor, ...]:
    """exp(i angle) of each pair and exp(-i angle). diffusers repeats the frequency of a pair for both of its values."""
    factors = torch.complex(cosines[..., ::2], sines[..., ::2])
    return factors, factors.conj_physical()


@_once
def _halves(cosines: Tensor, sines: Tensor) -> tuple[Tensor, ...]:
    """Of the halves swapped: what they are multiplied by, and their gradients."""
    first, second = sines.chunk(2, -1)
    return torch.cat([-first, second], -1), torch.cat([second, -first], -1)
