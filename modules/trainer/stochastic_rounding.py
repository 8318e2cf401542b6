"""Optimizer steps over bfloat16 weights, computed in float32 and rounded stochastically.

bfloat16 has 8 bits of precision, so rounding to nearest loses updates smaller than 1/512 of a weight. Rounded up or
down with the probabilities that preserve the mean, such updates accumulate (Zamirai et al. 2021, "Revisiting BFloat16
Training", arXiv 2010.06192). Only one chunk of the weights is in float32 at a time, to keep the memory that bfloat16
saves; the optimizer's state is in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from modules.data.draws import hash64

if TYPE_CHECKING:
    from torch import Tensor, nn

CHUNK_ELEMENTS = 2**26  # 256 MiB in float32, and the same for the gradients


def split_into_chunks(params: list[nn.Parameter], most: int | None = None) -> list[list[nn.Parameter]]:
    """`params` in order, in chunks of one dtype and at most `most` elements; a larger parameter is its own chunk.

    most: CHUNK_ELEMENTS by default.
    """
    most = CHUNK_ELEMENTS if most is None else most
    chunks: list[list[nn.Parameter]] = []
    size = 0
    for param in params:
        if not chunks or size + param.numel() > most or chunks[-1][0].dtype != param.dtype:
            chunks.append([])
            size = 0
        chunks[-1].append(param)
        size += param.numel()
    return chunks


@torch.no_grad()
def step_with_stochastic_rounding(optimizer: torch.optim.Optimizer, seed: int, step: int) -> None:
    """Calls `optimizer.step()` one group at a time, with float32 copies in place of the group's bfloat16 weights.

    Removes the gradients of these weights. seed, step: seed the rounding, which is the same on every rank and after a
    resume.
    """
    for number, group in enumerate(optimizer.param_groups):
        step_part(optimizer, group, range(len(group["params"])), (seed, step, number))


@torch.no_grad()
def step_part(
    optimizer: torch.optim.Optimizer, group: dict, positions: Sequence[int], draw: tuple[int, ...] | None
) -> None:
    """Calls `optimizer.step()` for some parameters of one of its groups only.

    positions: of these parameters in the group. draw: seeds the rounding of bfloat16 weights, which are stepped and
        lose their gradients as in `step_with_stochastic_rounding`, by their positions, so that it does not matter what
        is stepped together. None: without rounding.
    """
    groups, own = optimizer.param_groups, group["params"]
    params = [own[position] for position in positions]
    copies = {param: _precise_copy(param) for param in params if _is_rounded(param)} if draw is not None else {}
    _move_state(optimizer, copies)
    try:
        optimizer.param_groups, group["params"] = [group], [copies.get(param, param) for param in params]
        optimizer.step()
    finally:
        optimizer.param_groups, group["params"] = groups, own
    _move_state(optimizer, {copy: param for param, copy in copies.items()})
    for position, param in zip(positions, params, strict=True):
        if draw is not None and param in copies:
            param.copy_(stochastic_round(copies[param], hash64(*draw, position, "rounding")))


def _is_rounded(param: nn.Parameter) -> bool:
    return param.dtype == torch.bfloat16 and param.grad is not None


def _precise_copy(param: nn.Parameter) -> nn.Parameter:
    """A new float32 parameter. Changing the dtype of the original in place would remove its DDP hooks."""
    copy = torch.nn.Parameter(param.detach().float())
    gradient, param.grad = param.grad, None
    assert gradient is not None  # only such parameters are rounded
    copy.grad = gradient.float()
    return copy


def _move_state(optimizer: torch.optim.Optimizer, targets: dict[nn.Parameter, nn.Parameter]) -> None:
    for source, target in targets.items():
        if source in optimizer.state:
            optimizer.state[target] = optimizer.state.pop(source)


def stochastic_round(values: Tensor, seed: int) -> Tensor:
    """float32 `values` as bfloat16, rounded up or down with the probabilities that preserve the mean.

    The upper 16 bits of a float32 are its bfloat16; adding 16 random bits to the lower half carries into them with the
    right probability. The bits are a hash of seed and index, because generators give different numbers on different GPU
    models. Hash function: C. Wellons, "Prospecting for hash functions", lowbias32.
    """
    indexes = torch.arange(values.numel(), dtype=torch.int32, device=values.device).view(values.shape)
    noise = indexes.bitwise_xor_(_as_int32(seed))
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        # int32 shifts extend the sign; the mask removes it
        noise.bitwise_xor_((noise >> shift) & ((1 << (32 - shift)) - 1)).mul_(_as_int32(factor))
    noise.bitwise_xor_((noise >> 16) & 0xFFFF).bitwise_and_(0xFFFF)
    bits = values.detach().view(torch.int32) + noise
    # for values that are not finite, a carry could turn infinity into NaN or NaN into infinity
    rounded = bits.bitwise_and_(-0x10000).view(torch.float32)
    return torch.where(values.isfinite(), rounded, values).to(torch.bfloat16)


def _as_int32(value: int) -> int:
    value &= 0xFFFFFFFF
    return value - 2**32 if value >= 2**31 else value
