"""Tries whether an attention gives right outputs and gradients, before a run relies on it.

Legend: B batch, N tokens, H heads, D width of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

BATCH, HEADS = 2, 2
WIDER = 5  # rows in which an output is joined with others are this many times as wide
TOLERANCE = 0.03  # of the norm; in bfloat16, right results differ by less than 0.01
# torch's errors if the allowed backends can't compute an attention, on GPUs and elsewhere
NO_KERNEL = ("No available kernel", "No viable backend")
NAMES = ("output", "gradient of the queries", "gradient of the keys", "gradient of the values")

Attend = Callable[..., Tensor]  # as torch.nn.functional.scaled_dot_product_attention


@dataclass(frozen=True)
class AttentionCase:
    """queries, keys: numbers of tokens. width: of a head. masked: whether a quarter of the keys is padding."""

    queries: int
    keys: int
    width: int
    masked: bool = False

    def __str__(self) -> str:
        mask = "with" if self.masked else "without"
        return f"{self.queries} queries and {self.keys} keys of width {self.width} {mask} a mask"


class Trial(NamedTuple):
    """num_tried: cases that this attention can compute. fault: what is wrong in the first wrong one, "" if none is."""

    num_tried: int
    fault: str


def try_attention(
    attend: Attend, reference: Attend, cases: Iterable[AttentionCase], device: torch.device, dtype: torch.dtype
) -> Trial:
    """Compares `attend` in `dtype` with `reference` in float32, forward and backward.

    Each case is tried with the layouts that models have: queries, keys and values from layers of their own or from a
    common one, and gradients of an output that goes on by itself, then of one that is joined with others.
    """
    num_tried = 0
    for case in cases:
        try:
            differences = list(_differences(attend, reference, case, device, dtype))
        except RuntimeError as error:
            if not any(words in str(error) for words in NO_KERNEL):
                raise
            continue
        num_tried += 1
        for name, difference in differences:
            if not difference < TOLERANCE:  # also if it is NaN
                return Trial(num_tried, f"the {name} differs by {difference:.0%} ({case})")
    return Trial(num_tried, "")


def largest_differences(
    attend: Attend, reference: Attend, case: AttentionCase, device: torch.device, dtype: torch.dtype
) -> dict[str, float]:
    """Of the NAMES, over all layouts: how far `attend` is from `reference`, relative to the norm."""
    found: dict[str, float] = {}
    for name, difference in _differences(attend, reference, case, device, dtype):
        found[name] = max(found.get(name, 0.0), difference)
    return found


def _differences(
    attend: Attend, reference: Attend, case: AttentionCase, device: torch.device, dtype: torch.dtype
) -> Iterator[tuple[str, float]]:
    """(name, relative difference) of all results, in every layout."""
    for has_common_layer in (False, True) if case.queries == case.keys else (False,):
        inputs = _inputs(case, has_common_layer, device, dtype)
        rows = _draw(device, 2, (BATCH, case.queries, WIDER * HEADS * case.width), dtype)
        expected = _results(reference, case, [each.float() for each in inputs], rows.float(), is_joined=False)
        for is_joined in (False, True):
            found = _results(attend, case, inputs, rows, is_joined)
            distances = [(a.float() - b).norm() / b.norm() for a, b in zip(found, expected, strict=True)]
            yield from zip(NAMES, torch.stack(distances).tolist(), strict=True)


def _inputs(case: AttentionCase, has_common_layer: bool, device: torch.device, dtype: torch.dtype) -> list[Tensor]:
    """Queries, keys and values, [B, H, N, D], as views of the [B, N, ...] that layers give."""
    if has_common_layer:
        common = _draw(device, 1, (BATCH, case.queries, 3, HEADS, case.width), dtype)
        return [part.transpose(1, 2) for part in common.unbind(2)]
    lengths = (case.queries, case.keys, case.keys)
    parts = [_draw(device, seed, (BATCH, length, HEADS, case.width), dtype) for seed, length in enumerate(lengths, 3)]
    return [part.transpose(1, 2) for part in parts]


def _results(attend: Attend, case: AttentionCase, inputs: list[Tensor], rows: Tensor, is_joined: bool) -> list[Tensor]:
    """The output and the gradients of the inputs. rows: [B, N, WIDER * H * D], of which the first have the gradient."""
    inputs = [each.detach().requires_grad_() for each in inputs]
    mask = None
    if case.masked:
        mask = torch.ones(BATCH, 1, 1, case.keys, dtype=torch.bool, device=rows.device)
        mask[..., case.keys - case.keys // 4 :] = False
    output = attend(*inputs, attn_mask=mask)
    own = output.transpose(1, 2).flatten(2)
    if is_joined:
        torch.cat([own, torch.zeros_like(rows[..., own.shape[2] :])], 2).backward(rows)
    else:
        own.backward(rows[..., : own.shape[2]].contiguous())
    gradients = [each.grad for each in inputs]
    return [output.detach(), *(each for each in gradients if each is not None)]


def _draw(device: torch.device, seed: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Random numbers that leave the generators of the run as they are."""
    return torch.randn(shape, device=device, dtype=dtype, generator=torch.Generator(device).manual_seed(seed))
