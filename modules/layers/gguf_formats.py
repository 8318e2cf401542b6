"""The quantized formats of GGUF files, dequantized block by block.

Numbers are unpacked with shifts that are made on the device. Those of Python values, as diffusers makes them, would be
copied there in every pass of every layer, for which the host waits.
Source: the block layouts of ggml, https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

# What the numbers of 4 bits stand for in formats that begin with IQ4.
_TABLE = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def block_sizes() -> dict[str, int]:
    """The name of each format -> the bytes of its blocks."""
    return {name: num_bytes for name, (num_bytes, _) in (*_FORMATS.items(), *_BY_TABLE.items())}


def table_of(name: str) -> Tensor:
    """float32[16] that `dequantize_blocks` needs beside the blocks, on their device; empty for most formats."""
    return torch.tensor(_TABLE if name in _BY_TABLE else (), dtype=torch.float32)


def dequantize_blocks(data: Tensor, name: str, table: Tensor) -> Tensor:
    """float32[blocks, values of a block] of the bytes int8[...] of the blocks. table: as from `table_of`."""
    octets = data.view(torch.uint8)
    if name in _BY_TABLE:
        block_bytes, by_table = _BY_TABLE[name]
        return by_table(octets.reshape(-1, block_bytes), table)
    block_bytes, dequantize = _FORMATS[name]
    return dequantize(octets.reshape(-1, block_bytes))


def _numbers(packed: Tensor, bits: int) -> Tensor:
    """The numbers in bytes [..., width]: [..., 8 / bits, width], those in the lowest bits of all bytes first."""
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=packed.device).unsqueeze(-1)
    return (packed.unsqueeze(-2) >> shifts) & (2**bits - 1)


def _numbers_in_turn(packed: Tensor, bits: int) -> Tensor:
    """The numbers in bytes [blocks, width]: [blocks, width * 8 / bits], all of one byte before those of the next."""
    return _numbers(packed, bits).transpose(1, 2).flatten(1)


def _half(octets: Tensor) -> Tensor:
    return octets.view(torch.float16).float()


# --- blocks of 32 values ----------------------------------------------------------------------------------------------


def _q4_0(blocks: Tensor) -> Tensor:
    scale, low = blocks.split((2, 16), 1)
    return _half(scale) * (_numbers(low, 4).flatten(1).to(torch.int8) - 8)


def _q4_1(blocks: Tensor) -> Tensor:
    scale, least, low = blocks.split((2, 2, 16), 1)
    return _half(scale) * _numbers(low, 4).flatten(1) + _half(least)


def _q5(low: Tensor, high: Tensor) -> Tensor:
    return _numbers(low, 4).flatten(1) | (_numbers_in_turn(high, 1) << 4)


def _q5_0(blocks: Tensor) -> Tensor:
    scale, high, low = blocks.split((2, 4, 16), 1)
    return _half(scale) * (_q5(low, high).to(torch.int8) - 16)


def _q5_1(blocks: Tensor) -> Tensor:
    scale, least, high, low = blocks.split((2, 2, 4, 16), 1)
    return _half(scale) * _q5(low, high) + _half(least)


def _q8_0(blocks: Tensor) -> Tensor:
    scale, values = blocks.split((2, 32), 1)
    return _half(scale) * values.view(torch.int8)


def _iq4_nl(blocks: Tensor, table: Tensor) -> Tensor:
    scale, low = blocks.split((2, 16), 1)
    return _half(scale) * table[_numbers(low, 4).flatten(1).int()]


# --- blocks of 256 values, in parts with a scale each -----------------------------------------------------------------


def _scales_and_offsets(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Twice uint8[blocks, 8], of 6 bits each: the upper 2 bits of the last four are beside the first four."""
    scales, offsets, last = packed.split(4, 1)
    return (
        torch.cat([scales & 63, (last & 15) | ((scales >> 6) << 4)], 1),
        torch.cat([offsets & 63, (last >> 4) | ((offsets >> 6) << 4)], 1),
    )


def _with_offsets(scale: Tensor, offset: Tensor, packed: Tensor, numbers: Tensor) -> Tensor:
    scales, offsets = _scales_and_offsets(packed)
    scaled = (_half(scale) * scales).unsqueeze(-1) * numbers
    return (scaled - (_half(offset) * offsets).unsqueeze(-1)).flatten(1)


def _q2_k(blocks: Tensor) -> Tensor:
    packed, low, scale, offset = blocks.split((16, 64, 2, 2), 1)
    numbers = _numbers(low.unflatten(1, (2, 32)), 2).reshape(-1, 16, 16)
    scaled = (_half(scale) * (packed & 15)).unsqueeze(-1) * numbers
    return (scaled - (_half(offset) * (packed >> 4)).unsqueeze(-1)).flatten(1)


def _q3_k(blocks: Tensor) -> Tensor:
    high, low, packed, scale = blocks.split((32, 64, 12, 2), 1)
    scales = _numbers(packed[:, :8], 4).flatten(1) | (_numbers(packed[:, 8:], 2).flatten(1) << 4)
    numbers = _numbers(low.unflatten(1, (2, 32)), 2).reshape(-1, 16, 16).to(torch.int8)
    lowered = _numbers(high, 1).reshape(-1, 16, 16) ^ 1  # a bit that is not set stands for 4 less
    scaled = (_half(scale) * (scales.to(torch.int8) - 32)).unsqueeze(-1) * (numbers - (lowered << 2).to(torch.int8))
    return scaled.flatten(1)


def _q4_k(blocks: Tensor) -> Tensor:
    scale, offset, packed, low = blocks.split((2, 2, 12, 128), 1)
    return _with_offsets(scale, offset, packed, _numbers(low.unflatten(1, (4, 32)), 4).flatten(1, 2))


def _q5_k(blocks: Tensor) -> Tensor:
    scale, offset, packed, high, low = blocks.split((2, 2, 12, 32, 128), 1)
    numbers = _numbers(low.unflatten(1, (4, 32)), 4).flatten(1, 2) | (_numbers(high, 1) << 4)
    return _with_offsets(scale, offset, packed, numbers)


def _q6_k(blocks: Tensor) -> Tensor:
    low, high, scales, scale = blocks.split((128, 64, 16, 2), 1)
    lower = _numbers(low.unflatten(1, (2, 64)), 4).reshape(-1, 8, 32)
    numbers = lower | (_numbers(high.unflatten(1, (2, 32)), 2).reshape(-1, 8, 32) << 4)
    scaled = (_half(scale) * scales.view(torch.int8)).unsqueeze(-1) * (numbers.to(torch.int8) - 32).reshape(-1, 16, 16)
    return scaled.flatten(1)


def _iq4_xs(blocks: Tensor, table: Tensor) -> Tensor:
    scale, high, low, packed = blocks.split((2, 2, 4, 128), 1)
    scales = (_numbers_in_turn(low, 4) | (_numbers_in_turn(high, 2) << 4)).to(torch.int8) - 32
    numbers = _numbers(packed.unflatten(1, (8, 16)), 4).flatten(2)
    return ((_half(scale) * scales).unsqueeze(-1) * table[numbers.int()]).flatten(1)


def _bf16(blocks: Tensor) -> Tensor:
    return blocks.view(torch.bfloat16).float()


# Name -> (bytes of a block, function of blocks uint8[blocks, bytes of a block]).
_FORMATS: dict[str, tuple[int, Callable[[Tensor], Tensor]]] = {
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
}
_BY_TABLE: dict[str, tuple[int, Callable[[Tensor, Tensor], Tensor]]] = {
    "IQ4_NL": (18, _iq4_nl),
    "IQ4_XS": (136, _iq4_xs),
}
GGUF_FORMATS = (*_FORMATS, *_BY_TABLE)
