"""Rotary embeddings of diffusers' transformers in few operations.

diffusers turns pairs of values by adding two products in float32, for which it makes another tensor with the values of
each pair swapped: eight operations, and about as many for the gradient. Where a pair lies side by side, it is a complex
number, and one product turns it. Where it lies half a head apart, the values and their swapped halves take one each.

Some of diffusers' functions stand within the methods that call them. There, the code of such a function is replaced by
a call, in the constants of the method's code.

Source: Su et al. 2021, arXiv 2104.09864, section 3.4.2.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
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
        for method in _methods_of(functions):
            _replace_within(method)


def turning(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """What replaces this function of diffusers, which it calls for what it can't compute.

    Raises ValueError if it is none of those that are replaced.
    """
    form = _form_of(function)
    if form is None:
        raise ValueError(f"{function.__module__}.{function.__name__} turns pairs in another way")
    return form(function)


_NAMES = {"apply_rotary_emb", "apply_interleaved_rotary_emb", "apply_split_rotary_emb"}  # of diffusers' functions
_WITHIN = "apply_rotary_emb"  # of those within a method
_PARAMETERS_WITHIN = ("hidden_states", "freqs_cos", "freqs_sin")
_READS_PAIRS = {"unflatten", "unbind", "empty_like", "type_as"}  # what that of each value and its neighbor calls


def _form_of(function: Callable[..., Tensor]) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]] | None:
    """What replaces a function; None for one that has such a name, but computes something else."""
    if function.__module__ == _EMBEDDINGS:
        return _of_heads
    parameters = [*inspect.signature(function).parameters]
    if function.__module__.startswith("diffusers.") and parameters == ["x", "freqs"]:
        # several files of transformers have a copy of each
        return _of_split_heads if function.__name__ == "apply_split_rotary_emb" else _of_tokens
    if parameters == [*_PARAMETERS_WITHIN]:
        return _of_heads_last
    return None


def _methods_of(functions: dict[str, Any]) -> Iterator[FunctionType]:
    """Those of the classes that a file of diffusers defines."""
    file = functions["__name__"]
    classes = [one for one in functions.values() if isinstance(one, type) and one.__module__ == file]
    for one in classes if file.startswith("diffusers.") else ():
        yield from (method for method in vars(one).values() if isinstance(method, FunctionType))


def _replace_within(method: FunctionType) -> None:
    """Where a method has a function `_WITHIN` of its own that reads pairs, what turns them is called in its place."""
    constants = method.__code__.co_consts
    found = [one for one in constants if isinstance(one, CodeType) and _is_turning(one)]
    if not found:
        return
    (code,) = found
    name = f"_turned_in_{method.__qualname__.replace('.', '_')}"
    method.__globals__[name] = _of_heads_last(FunctionType(code, method.__globals__))
    call = _calls_a_global.__code__.replace(co_names=(name,), co_name=code.co_name)
    method.__code__ = method.__code__.replace(co_consts=tuple(call if one is code else one for one in constants))


def _calls_a_global(hidden_states: Tensor, freqs_cos: Tensor, freqs_sin: Tensor) -> Tensor:
    """Its code is what replaces a function within a method, with the name of the one that is called."""
    return _replaced_name(hidden_states, freqs_cos, freqs_sin)  # type: ignore[name-defined]  # noqa: F821


def _is_turning(code: CodeType) -> bool:
    parameters = code.co_varnames[: code.co_argcount]
    is_alike = code.co_name == _WITHIN and parameters == _PARAMETERS_WITHIN and not code.co_freevars
    return is_alike and set(code.co_names) >= _READS_PAIRS


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
        (crossed,) = _halves(*freqs_cis)
        return _TurnHalves.apply(x, freqs_cis[0][place], crossed[place])

    return _marked(apply_rotary_emb)


def _of_tokens(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """For values [B, S, C], before they are split into heads, and frequencies [B, S, C]."""

    @functools.wraps(original)
    def apply_rotary_emb(x: Tensor, freqs: Frequencies) -> Tensor:
        if x.ndim != 3 or not is_training_pass() or not _are_fitting(freqs, x, 3):
            return original(x, freqs)
        return _Turn.apply(x, *_factors(*freqs))

    return _marked(apply_rotary_emb)


def _of_heads_last(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """For values [B, S, H, D] and frequencies that can be broadcast to them, [1, S, 1, D]."""

    @functools.wraps(original)
    def apply_rotary_emb(hidden_states: Tensor, freqs_cos: Tensor, freqs_sin: Tensor) -> Tensor:
        frequencies = freqs_cos, freqs_sin
        if hidden_states.ndim != 4 or not is_training_pass() or not _are_fitting(frequencies, hidden_states, 4):
            return original(hidden_states, freqs_cos, freqs_sin)
        return _Turn.apply(hidden_states, *_factors(*frequencies))

    return _marked(apply_rotary_emb)


def _of_split_heads(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """For values [B, S, C], before they are split into heads, and frequencies [B, H, S, D / 2]."""

    @functools.wraps(original)
    def apply_split_rotary_emb(x: Tensor, freqs: Frequencies) -> Tensor:
        if x.ndim != 3 or not is_training_pass() or not _are_fitting(freqs, x, 4, x.shape[-1] // 2):
            return original(x, freqs)
        factors, crossed = _split_halves(*freqs)
        return _TurnHalves.apply(x.unflatten(-1, factors.shape[-2:]), factors, crossed).flatten(-2)

    return _marked(apply_split_rotary_emb)


_MARK = "_turns_pairs"


def _marked(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    setattr(function, _MARK, True)
    return function


def _are_fitting(frequencies: Any, x: Tensor, dimensions: int, of_all_heads: int = 0) -> bool:
    """Whether these are cosines and sines, without gradients, for values of this dtype on this device.

    of_all_heads: how many there are for a token, where heads are an axis of theirs and not of the values.
    """
    if not isinstance(frequencies, (tuple, list)) or len(frequencies) != 2:
        return False
    return (x.dtype == torch.float32 or x.dtype in _LOW) and all(
        isinstance(each, Tensor)
        and each.ndim == dimensions
        and each.dtype == torch.float32
        and each.device == x.device
        and (each.shape[1] * each.shape[-1] == of_all_heads if of_all_heads else each.shape[-1] == x.shape[-1])
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
    """Values times factors plus their swapped halves times crossed, which is subtracted for gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factors: Tensor, crossed: Tensor) -> Tensor:
        ctx.factors, ctx.crossed = factors, crossed
        return _turned_halves(x, factors, crossed, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return _turned_halves(gradient, ctx.factors, ctx.crossed, -1), None, None


def _turned_halves(x: Tensor, factors: Tensor, crossed: Tensor, sign: int) -> Tensor:
    product = x * factors  # in float32, as these are
    swapped = x.roll(x.shape[-1] // 2, -1)
    out = product if x.dtype == torch.float32 else torch.empty_like(product, dtype=x.dtype)  # rounded once
    return torch.addcmul(product, swapped, crossed, value=sign, out=out)


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
def _halves(_: Tensor, sines: Tensor) -> tuple[Tensor, ...]:
    """What the swapped halves are multiplied by."""
    first, second = sines.chunk(2, -1)
    return (torch.cat([-first, second], -1),)


@_once
def _split_halves(cosines: Tensor, sines: Tensor) -> tuple[Tensor, ...]:
    """What values [B, S, H, D] and their swapped halves are multiplied by. Both halves have the same angles."""
    cosines, sines = cosines.transpose(1, 2), sines.transpose(1, 2)
    return torch.cat([cosines, cosines], -1), torch.cat([-sines, sines], -1)
