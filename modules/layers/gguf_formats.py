"""The quantized formats of GGUF files, dequantized block by block in few operations: each is a kernel of its own.

Numbers are unpacked with shifts that lie on the device. Those of Python values, as diffusers makes them, would be
copied there in every pass of every layer, for which the host waits.
Source: the block layouts of ggml, https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from modules.layers.rounded_once import rounded_once

# What the numbers of 4 bits stand for in formats that begin with IQ4.
_TABLE = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_SHIFTS = {bits: tuple(range(0, 8, bits)) for bits in (1, 2, 4)}  # of the numbers in a byte
_PLACES = {1: slice(0, 8), 2: slice(8, 12), 4: slice(12, 14)}  # of these shifts among the constants
_TABLE_PLACE = slice(16, 80)  # of the bytes of float32[16]


def block_sizes() -> dict[str, int]:
    """The name of each format -> the bytes of its blocks."""
    return {name: num_bytes for name, (num_bytes, _) in _FORMATS.items()}


def gguf_constants() -> Tensor:
    """int8[80] that `dequantize_blocks` needs beside the blocks, on their device."""
    shifts = torch.tensor([shift for bits in (1, 2, 4) for shift in _SHIFTS[bits]] + [0, 0], dtype=torch.int8)
    return torch.cat([shifts, torch.tensor(_TABLE, dtype=torch.float32).view(torch.int8)])


def dequantize_blocks(data: Tensor, name: str, constants: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """The values [blocks, ...] of the bytes int8[...] of blocks, computed in float32 and rounded once.

    constants: as from `gguf_constants`.
    """
    block_bytes, dequantize = _FORMATS[name]
    octets = data.view(torch.uint8).reshape(-1, block_bytes)
    return dequantize(octets, _Constants(constants), dtype)


class _Constants:
    """What lies on the device: `numbers` of 1, 2 or 4 bits are unpacked with it."""

    def __init__(self, data: Tensor):
        self._data = data

    def __getitem__(self, bits: int) -> Tensor:
        return self._data[_PLACES[bits]].view(torch.uint8)

    @property
    def table(self) -> Tensor:
        return self._data[_TABLE_PLACE].view(torch.float32)

    def numbers(self, packed: Tensor, bits: int) -> Tensor:
        """The numbers in bytes [..., width]: [..., 8 / bits, width], those in the lowest bits of all bytes first."""
        return (packed.unsqueeze(-2) >> self[bits].unsqueeze(-1)).bitwise_and_(2**bits - 1)

    def numbers_in_turn(self, packed: Tensor, bits: int) -> Tensor:
        """The numbers in bytes [blocks, width]: [blocks, width * 8 / bits], all of one byte before the next one's."""
        return (packed.unsqueeze(-1) >> self[bits]).bitwise_and_(2**bits - 1).flatten(1)


def _half(octets: Tensor) -> Tensor:
    """Times float32, it is computed in float32; times integers it would not be."""
    return octets.view(torch.float16)


# --- blocks of 32 values ----------------------------------------------------------------------------------------------
# Integers minus a float are float32. Products of a scale in float16 with numbers of up to 8 bits are exact there, so
# that sums of them are rounded once, whether or not a compiler fuses them.


def _q4_0(blocks: Tensor, constants: _Constants, dtype: torch.dtype) -> Tensor:
    scale, low = blocks.split((2, 16), 1)
    return rounded_once(torch.mul, _half(scale), constants.numbers(low, 4).flatten(1) - 8.0, dtype)


def _q4_1(blocks: Tensor, constants: _Constants, dtype: torch.dtype) -> Tensor:
    scale, least, low = blocks.split((2, 2, 16), 1)
    return rounded_once(torch.add, _half(scale).float() * constants.numbers(low, 4).flatten(1), _half(least), dtype)


def _q5(low: Tensor, high: Tensor, constants: _Constants) -> Tensor:
    return constants.numbers(low, 4).flatten(1).add_(constants.numbers_in_turn(high, 1), alpha=16)


def _q5_0(blocks: Tensor, constants: _Constants, dtype: torch.dtype) -> Tensor:
    scale, high, low = blocks.split((2, 4, 16), 1)
    return rounded_once(torch.mul, _half(scale), _q5(low, high, constants) - 16.0, dtype)


def _q5_1(blocks: Tensor, constants: _Constants, dtype: torch.dtype) -> Tensor:
    scale, least, high, low = blocks.split((2, 2, 4, 16), 1)
    return rounded_once(torch.add, _half(scale).float() * _q5(low, high, constants), _half(least), dtype)


def _q8_0(blocks: Tensor, constants: _Constants, dtype: torch.dtype) -> Tensor:
    scale, values = blocks.split((2, 32), 1)
    return rounded_once(torch.mul, _half(scale).float(), values.view(torch.int8), dtype)


def _iq4_nl(blocks: Tensor, constants: _Constants, dtype: torch.dtype) -> Tensor:
    scale, low = blocks.split((2, 16), 1)
    return rounded_once(torch.mul, _half(scale), constants.table[constants.numbers(low, 4).flatten(1).int()], dtype)


# --- blocks of 256 values, in parts with a scale each -----------------------------------------------------------------


def _with_offsets(scales: Tensor, both: Tensor, numbers: Tensor, dtype: torch.dtype) -> Tensor:
    """scales: uint8[blocks, 2, parts], of numbers and of what is subtracted. both: of these, the bytes of float16."""
    scale, offset = (_half(both).float().unsqueeze(-1) * scales).unsqueeze(-1).unbind(1)
    return rounded_once(torch.sub, scale * numbers, offset, dtype)


def _six_bits(packed: Tensor, constants: _Constants) -> Tensor:
    """uint8[blocks, 2, 8], of 6 bits each: the upper 2 bits of the last four are beside the first four."""
    first, last = packed[:, :8].unflatten(1, (2, 4)), constants.numbers(packed[:, 8:], 4)
    return torch.cat([first & 63, (first >> 2).bitwise_and_(48).bitwise_or_(last)], 2)


def _q2_k(blocks: Tensor, constants: _Constants, dtype: torch.dtype) -> Tensor:
    packed, low, both = blocks.split((16, 64, 4), 1)
    numbers = constants.numbers(low.unflatten(1, (2, 32)), 2).reshape(-1, 16, 16)
    return _with_offsets(constants.numbers(packed, 4), both, numbers, dtype)


def _q3_k(blocks: Tensor, constants: _Constants, dtype: torch.dtype) -> Tensor:
    high, low, packed, scale = blocks.split((32, 64, 12, 2), 1)
    scales = constants.numbers(packed[:, :8], 4).flatten(1)
    scales = _half(scale) * (scales.add_(constants.numbers(packed[:, 8:], 2).flatten(1), alpha=16) - 32.0)
    numbers = constants.numbers(low.unflatten(1, (2, 32)), 2).reshape(-1, 16, 16)
    numbers = numbers.add_(constants.numbers(high, 1).reshape(-1, 16, 16), alpha=4) - 4.0
    return rounded_once(torch.mul, scales.unsqueeze(-1), numbers, dtype)


def _q4_k(blocks: Tensor, constants: _Constants, dtype: torch.dtype) -> Tensor:
    both, packed, low = blocks.split((4, 12, 128), 1)
    numbers = constants.numbers(low.unflatten(1, (4, 32)), 4).flatten(1, 2)
    return _with_offsets(_six_bits(packed, constants), both, numbers, dtype)


def _q5_k(blocks: Tensor, constants: _Constants, dtype: torch.dtype) -> Tensor:
    both, packed, high, low = blocks.split((4, 12, 32, 128), 1)
    numbers = constants.numbers(low.unflatten(1, (4, 32)), 4).flatten(1, 2).add_(constants.numbers(high, 1), alpha=16)
    return _with_offsets(_six_bits(packed, constants), both, numbers, dtype)


def _q6_k(blocks: Tensor, constants: _Constants, dtype: torch.dtype) -> Tensor:
    low, high, scales, scale = blocks.split((128, 64, 16, 2), 1)
    numbers = constants.numbers(low.unflatten(1, (2, 64)), 4).reshape(-1, 8, 32)
    numbers.add_(constants.numbers(high.unflatten(1, (2, 32)), 2).reshape(-1, 8, 32), alpha=16)
    scaled = (_half(scale).float() * scales.view(torch.int8)).unsqueeze(-1)
    return rounded_once(torch.mul, scaled, numbers.reshape(-1, 16, 16) - 32.0, dtype)


def _iq4_xs(blocks: Tensor, constants: _Constants, dtype: torch.dtype) -> Tensor:
    scale, high, low, packed = blocks.split((2, 2, 4, 128), 1)
    scales = constants.numbers_in_turn(low, 4).add_(constants.numbers_in_turn(high, 2), alpha=16) - 32.0
    numbers = constants.numbers(packed.unflatten(1, (8, 16)), 4).flatten(2)
    return rounded_once(torch.mul, (_half(scale) * scales).unsqueeze(-1), constants.table[numbers.int()], dtype)


def _bf16(blocks: Tensor, constants: _Constants, dtype: torch.dtype) -> Tensor:
    return blocks.view(torch.bfloat16).to(dtype)


# Name -> (bytes of a block, function of blocks uint8[blocks, bytes of a block]).
_FORMATS: dict[str, tuple[int, Callable[[Tensor, _Constants, torch.dtype], Tensor]]] = {
    "BF16": (2, _bf16),
    "Q4_0": (18, _q4_0),
    "Q4_1": (20, _q4_1),
    "Q5_0": (22, _q5_0),
    "Q5_1": (24, _q5_1),
    "Q8_0": (34, _q8_0),
    "Q2_K": (84, _q2_k),
    "Q3_K": (110, _q3_k),
    "Q4_K": (144, _q4_k),
    "Q5_K": (176, _q5_k),
    "Q6_K": (210, _q6_k),
    "IQ4_NL": (18, _iq4_nl),
    "IQ4_XS": (136, _iq4_xs),
}
GGUF_FORMATS = tuple(_FORMATS)
