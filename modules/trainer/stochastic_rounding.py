"""Steps of an optimizer over bfloat16 weights: computed in float32 and rounded by chance.

A bfloat16 has 8 bits of precision, so an update below 1/512 of a weight is lost when it is rounded to the nearest.
Rounded up or down with the probability that keeps the mean, such updates add up (Zamirai et al. 2021, "Revisiting
BFloat16 Training", arXiv 2010.06192). Only a part of the weights is in float32 at a time, so that the memory saved by
bfloat16 stays saved; the optimizer's own state is in float32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from modules.data.draws import hash64

if TYPE_CHECKING:
    from torch import Tensor, nn

CHUNK_ELEMENTS = 2**26  # 256 MiB in float32, as much again for their gradients


def split_into_chunks(params: list[nn.Parameter]) -> list[list[nn.Parameter]]:
    """`params` in order, in parts of one dtype and at most CHUNK_ELEMENTS, or a single larger one."""
    parts: list[list[nn.Parameter]] = []
    size = 0
    for param in params:
        if not parts or size + param.numel() > CHUNK_ELEMENTS or parts[-1][0].dtype != param.dtype:
            parts.append([])
            size = 0
        parts[-1].append(param)
        size += param.numel()
    return parts


@torch.no_grad()
def step_with_stochastic_rounding(optimizer: torch.optim.Optimizer, seed: int, step: int) -> None:
    """`optimizer.step()`, a group at a time, with float32 copies in the place of that group's bfloat16 weights.

    Takes the gradients of these weights away. seed, step: decide the roundings, the same on every rank and after a
    resume.
    """
    groups = optimizer.param_groups
    try:
        for number, group in enumerate(groups):
            optimizer.param_groups = [group]
            _step_group(optimizer, group, (seed, step, number))  # a function, so that its copies are gone by the next
    finally:
        optimizer.param_groups = groups


def _step_group(optimizer: torch.optim.Optimizer, group: dict, draw: tuple[int, ...]) -> None:
    params = group["params"]
    copies = {param: _precise_copy(param) for param in params if _is_rounded(param)}
    _move_state(optimizer, copies)
    group["params"] = [copies.get(param, param) for param in params]
    optimizer.step()
    group["params"] = params
    _move_state(optimizer, {copy: param for param, copy in copies.items()})
    for index, (param, copy) in enumerate(copies.items()):
        param.copy_(stochastic_round(copy, hash64(*draw, index, "rounding")))


def _is_rounded(param: nn.Parameter) -> bool:
    return param.dtype == torch.bfloat16 and param.grad is not None


def _precise_copy(param: nn.Parameter) -> nn.Parameter:
    """Not the parameter itself with other data: with another dtype it would lose the hooks of data parallelism."""
    copy = torch.nn.Parameter(param.detach().float())
    gradient, param.grad = param.grad, None
    copy.grad = gradient.float()
    return copy


def _move_state(optimizer: torch.optim.Optimizer, places: dict[nn.Parameter, nn.Parameter]) -> None:
    for source, target in places.items():
        if source in optimizer.state:
            optimizer.state[target] = optimizer.state.pop(source)


def stochastic_round(values: Tensor, seed: int) -> Tensor:
    """float32 `values` as bfloat16, up or down with the probability that keeps the mean; exact ones stay.

    The upper half of a float32's bits is its bfloat16; adding 16 random bits to the lower half carries into it with
    that probability. The bits are a hash of seed and place rather than of a generator, whose numbers differ between
    models of GPUs. Method of hashing: C. Wellons, "Prospecting for hash functions", lowbias32.
    """
    places = torch.arange(values.numel(), dtype=torch.int32, device=values.device).view(values.shape)
    noise = places.bitwise_xor_(_as_int32(seed))
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        # int32 shifts keep the sign: what it fills in is masked out
        noise.bitwise_xor_((noise >> shift) & ((1 << (32 - shift)) - 1)).mul_(_as_int32(factor))
    noise.bitwise_xor_((noise >> 16) & 0xFFFF).bitwise_and_(0xFFFF)
    bits = values.detach().view(torch.int32) + noise
    # not finite: a carry would make a NaN of an infinity, or the other way round
    rounded = bits.bitwise_and_(-0x10000).view(torch.float32)
    return torch.where(values.isfinite(), rounded, values).to(torch.bfloat16)


def _as_int32(value: int) -> int:
    value &= 0xFFFFFFFF
    return value - 2**32 if value >= 2**31 else value
