"""System memory for copies: hardly more of it than is needed, in sizes that PyTorch pins as they are."""

from __future__ import annotations

import gc

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from modules.layers.HostMemory import ALIGNMENT, SPLIT_SLAB_BYTES, HostMemory
from modules.layers.transfers import DirectTransfers

MIB = 2**20
ON_ANY_MACHINE = settings(derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])


class Rounding:
    """Gives slabs without memory, and adds up what PyTorch would pin for them: the next power of two."""

    def __init__(self):
        self.sizes: list[int] = []

    def __call__(self, num_bytes: int) -> torch.Tensor:
        self.sizes.append(num_bytes)
        return torch.empty(num_bytes, dtype=torch.uint8, device="meta")

    @property
    def pinned(self) -> int:
        return sum(1 << (size - 1).bit_length() for size in self.sizes)


# --- how much is pinned ----------------------------------------------------------------------------------------------


def matrices(*shapes: tuple[int, int], bytes_per_weight: int = 2) -> list[int]:
    """Bytes of weights and biases."""
    return [size * bytes_per_weight for rows, columns in shapes for size in (rows * columns, rows)]


# the repeated blocks of published transformers
FLUX1_DOUBLE = [(18432, 3072)] * 2 + [(3072, 3072)] * 8 + [(12288, 3072), (3072, 12288)] * 2
FLUX1_SINGLE = [(9216, 3072)] + [(3072, 3072)] * 3 + [(12288, 3072), (3072, 15360)]
QWEN_IMAGE = [(18432, 3072)] * 2 + [(3072, 3072)] * 8 + [(12288, 3072), (3072, 12288)] * 2
WAN_14B = [(5120, 5120)] * 8 + [(13824, 5120), (5120, 13824)]
Z_IMAGE = [(3840, 3840)] * 4 + [(10240, 3840)] * 2 + [(3840, 10240)] + [(15360, 256)]
SD15_CONVOLUTIONS = [(320, 2880)] * 4 + [(320, 320)] * 9 + [(2560, 320), (320, 1280)]
MODELS = {
    "flux1": [FLUX1_DOUBLE] * 19 + [FLUX1_SINGLE] * 38,
    "qwen_image": [QWEN_IMAGE] * 60,
    "wan_14b": [WAN_14B] * 40,
    "zimage": [Z_IMAGE] * 30,
    "sd15": [SD15_CONVOLUTIONS] * 16,
}


@pytest.mark.parametrize("bytes_per_weight", [1, 2, 4])
@pytest.mark.parametrize("name", MODELS)
def test_the_blocks_of_models_take_at_most_five_per_cent_more_than_their_weights(name, bytes_per_weight):
    blocks = [matrices(*shapes, bytes_per_weight=bytes_per_weight) for shapes in MODELS[name]]
    pin = Rounding()
    memory = HostMemory(pin)
    to_come = needed = sum(map(sum, blocks))
    buffers = []
    for block in blocks:
        to_come -= sum(block)
        buffers.append(memory.tensors(block, to_come))
    assert memory.num_bytes == pin.pinned
    assert pin.pinned <= 1.05 * needed + MIB
    assert max(len(buffer._pieces) for buffer in buffers) <= 6  # few copies for each block


@ON_ANY_MACHINE
@given(st.lists(st.lists(st.integers(1, 64 * MIB), min_size=1, max_size=12), min_size=1, max_size=40))
def test_tensors_of_any_sizes_take_few_per_cent_and_the_size_of_few_tensors_more(groups):
    pin = Rounding()
    memory = HostMemory(pin)
    to_come = needed = sum(map(sum, groups))
    buffers = []
    for sizes in groups:
        to_come -= sum(sizes)
        buffer = memory.tensors(sizes, to_come)
        buffers.append(buffer)
        assert all(
            buffer[start : start + size].numel() == size for start, size in zip(buffer.starts, sizes, strict=True)
        )
    assert pin.pinned == memory.num_bytes
    assert pin.pinned <= 1.07 * needed + 4 * max(MIB, *map(max, groups))


@ON_ANY_MACHINE
@given(st.lists(st.integers(1, 400 * MIB), min_size=1, max_size=40))
def test_bytes_that_may_be_split_leave_less_than_a_small_slab_unused(sizes):
    pin = Rounding()
    memory = HostMemory(pin)
    buffers = [memory.split(size) for size in sizes]
    assert all(buffer.num_bytes >= size for buffer, size in zip(buffers, sizes, strict=True))
    assert pin.pinned < sum(sizes) + SPLIT_SLAB_BYTES + ALIGNMENT * len(sizes)


def test_room_is_used_again_once_nothing_refers_to_it():
    pin = Rounding()
    memory = HostMemory(pin)
    for number in range(20):
        buffers = [memory.split((1 + number % 3 + place) * 10 * MIB) for place in range(8)]
        while buffers:
            buffers.pop(0 if number % 2 else -1)
        gc.collect()
    assert pin.pinned <= sum((3 + place) * 10 * MIB for place in range(8)) + SPLIT_SLAB_BYTES
    before = memory.num_bytes
    memory.tensors([50 * MIB] * 4)
    assert memory.num_bytes == before


# --- what is in it ---------------------------------------------------------------------------------------------------


@pytest.fixture
def small_slabs(monkeypatch):
    monkeypatch.setattr("modules.layers.HostMemory.SLAB_BYTES", 4096)
    monkeypatch.setattr("modules.layers.HostMemory.LEAST_SLAB_BYTES", 1024)
    monkeypatch.setattr("modules.layers.HostMemory.SPLIT_SLAB_BYTES", 1024)
    monkeypatch.setattr("modules.layers.HostMemory._TENSORS_PER_SLAB", 2)


def test_copies_in_several_pieces_hold_the_bytes_that_were_copied(small_slabs):
    transfers = DirectTransfers()
    memory = HostMemory(transfers.host_buffer)
    sizes = [100, 3000, 1500, 700, 2048, 1, 513]
    kept = []
    for number in range(6):
        tensors = memory.tensors(sizes, (5 - number) * sum(sizes))
        split = memory.split(5000)
        device = torch.randint(256, (tensors.num_bytes,), dtype=torch.uint8)
        other = torch.randint(256, (5000,), dtype=torch.uint8)
        tensors.copy_from(device, transfers)
        split.copy_from(other, transfers)
        kept += [(tensors, device), (split, other)]
    assert max(len(buffer._pieces) for buffer, _ in kept) > 1
    for buffer, values in kept:
        there = torch.zeros_like(values)
        buffer.copy_to(there, transfers)
        assert torch.equal(there, values)
    for buffer, values in kept[::2]:
        for start, size in zip(buffer.starts, sizes, strict=True):
            assert start % ALIGNMENT == 0
            assert torch.equal(buffer[start : start + size], values[start : start + size])
