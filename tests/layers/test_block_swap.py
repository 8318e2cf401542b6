"""Swapped blocks compute what resident ones do, with two of them on the device, and nothing is read before its copy."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from modules.distributed.Runtime import Runtime
from modules.layers.BlockSwap import BlockSwap
from modules.layers.HostBlocks import HostBlocks, frozen_bytes
from modules.layers.SharedSlabs import SharedSlabs
from modules.layers.transfers import CudaTransfers, DirectTransfers
from modules.machine.system_memory import RANKS_SHARE_SWAPPED
from modules.weights.blocks import keep_in_place
from tests.support.FakeCuda import FakeCuda
from tests.support.PostingRuntime import PostingRuntime

CPU = torch.device("cpu")
WIDTH = 8


class Block(nn.Module):
    """A frozen layer with a trained adapter and a buffer."""

    def __init__(self, width: int = WIDTH):
        super().__init__()
        self.base = nn.Linear(width, width).requires_grad_(False)
        self.small = nn.Parameter(torch.randn(3, width).t(), requires_grad=False)  # strides of a transposed matrix
        self.adapter = nn.Linear(width, width, bias=False)
        self.register_buffer("shift", torch.randn(width))

    def forward(self, values):
        return values + torch.tanh(self.base(values) + self.adapter(values) + self.shift) @ self.small @ self.small.t()


class Model(nn.Module):
    def __init__(self, num_blocks: int):
        super().__init__()
        torch.manual_seed(1)
        self.blocks = nn.ModuleList(Block() for _ in range(num_blocks))

    def forward(self, values):
        for block in self.blocks:
            values = checkpoint(block, values, use_reentrant=False) if torch.is_grad_enabled() else block(values)
        return values


def steps(model: nn.Module, count: int = 3) -> list[torch.Tensor]:
    """Losses and gradients of some steps, with passes without gradients in between, as samples make them."""
    seen = []
    optimizer = torch.optim.SGD([param for param in model.parameters() if param.requires_grad], lr=0.1)
    for number in range(count):
        values = torch.randn(2, WIDTH, generator=torch.Generator().manual_seed(number))
        with torch.no_grad():
            seen.append(model(values))
        loss = model(values).square().sum()
        loss.backward()
        seen += [loss.detach(), *(param.grad.clone() for param in model.parameters() if param.requires_grad)]
        optimizer.step()
        optimizer.zero_grad()
    return seen


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


@pytest.mark.parametrize("swapped", [[0], [3], [1, 3, 5], [0, 1, 2, 3, 4, 5]])
def test_the_curve_is_that_without_swapping_bit_for_bit(swapped):
    model = Model(6)
    blocks = [model.blocks[number] for number in swapped]
    swap, on_device = BlockSwap(blocks, CPU, DirectTransfers()), []
    for block in model.blocks:
        block.register_forward_hook(lambda *_: on_device.append(len(swap.on_device)))
    assert same(steps(model), steps(Model(6)))
    assert max(on_device) == min(2, len(swapped))


def test_the_weights_are_complete_in_system_memory_and_the_rest_is_on_the_device():
    model, plain = Model(4), Model(4)
    swap = BlockSwap(list(model.blocks), CPU, DirectTransfers())
    steps(model, 1)
    assert swap.on_device
    state, expected = model.state_dict(), plain.state_dict()
    assert all(torch.equal(state[name], expected[name]) for name in expected if "adapter" not in name)
    assert model.blocks[0].small.stride() == plain.blocks[0].small.stride()


def test_a_pass_that_keeps_weights_for_later_is_stopped():
    model = Model(4)
    BlockSwap(list(model.blocks), CPU, DirectTransfers())
    values = torch.randn(2, WIDTH, requires_grad=True)
    for block in model.blocks:  # without checkpointing
        values = block(values)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        values.sum().backward()


def test_a_block_kept_in_place_does_not_follow_its_model():
    model = Model(2)
    keep_in_place(model.blocks[1])
    model.to(torch.float64)
    assert (model.blocks[0].base.weight.dtype, model.blocks[1].base.weight.dtype) == (torch.float64, torch.float32)


def test_the_order_of_blocks_is_learnt_so_that_copies_begin_while_the_block_before_runs():
    model, late = Model(6), []
    swap = BlockSwap(list(model.blocks), CPU, DirectTransfers())
    steps(model, 1)
    for number, block in enumerate(model.blocks):  # before the hook that fetches
        block.register_forward_pre_hook(lambda *_, n=number: late.append(n not in swap.on_device), prepend=True)
    steps(model, 2)
    assert late.count(True) <= 2  # of 36 passes: the first step could not know what comes after its last pass


# --- streams ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def cuda(monkeypatch) -> FakeCuda:
    return FakeCuda(monkeypatch)


def test_no_weight_is_read_before_the_event_of_its_copy_nor_overwritten_while_it_may_be_read(cuda):
    model = Model(6)
    BlockSwap(list(model.blocks), CPU, CudaTransfers(CPU))
    with cuda.counting_kernels():
        seen = steps(model)
    assert cuda.copies > 30
    assert cuda.kernels > 100
    assert same(seen, steps(Model(6)))
    assert not cuda.late.num_lost


def test_little_more_than_the_weights_is_pinned(cuda):
    model = Model(1)
    model.blocks = nn.ModuleList(Block(600) for _ in range(40))
    weights = sum(param.nbytes for param in model.parameters() if not param.requires_grad)
    swap = BlockSwap(list(model.blocks), CPU, CudaTransfers(CPU))
    assert cuda.pinned_bytes == swap.host_bytes <= 1.05 * weights


@pytest.mark.parametrize("most_pinned", [0, 2**12])
def test_where_the_system_refuses_to_pin_memory_the_curve_is_the_same(most_pinned, cuda, monkeypatch):
    monkeypatch.setattr("modules.layers.HostMemory.SLAB_BYTES", 2**12)
    monkeypatch.setattr("modules.layers.HostMemory.LEAST_SLAB_BYTES", 2**9)
    cuda.most_pinned = most_pinned
    model = Model(6)
    BlockSwap(list(model.blocks), CPU, CudaTransfers(CPU))
    with cuda.counting_kernels():
        seen = steps(model)
    assert same(seen, steps(Model(6)))
    assert cuda.memory.num_bytes == most_pinned
    assert "refused to pin more than 0.0 GiB" in cuda.memory.warning


@pytest.mark.skipif(not RANKS_SHARE_SWAPPED, reason="ranks share memory on Linux alone")
@pytest.mark.parametrize("most_pinned", [None, 0])
def test_memory_that_ranks_share_is_pinned_if_the_system_allows_it(most_pinned, cuda):
    cuda.most_pinned = most_pinned
    model = Model(6)
    blocks, transfers = list(model.blocks), CudaTransfers(CPU)
    held = HostBlocks(transfers, SharedSlabs(Runtime(CPU), "blocks", transfers))
    held.take(blocks, [0] * len(blocks))
    swap = BlockSwap(blocks, CPU, transfers, held=held)
    with cuda.counting_kernels():
        seen = steps(model)
    assert same(seen, steps(Model(6)))
    assert cuda.memory.num_bytes == (0 if most_pinned == 0 else swap.host_bytes)
    assert bool(cuda.memory.warning) == (most_pinned == 0)


@pytest.mark.skipif(not RANKS_SHARE_SWAPPED, reason="ranks share memory on Linux alone")
def test_a_rank_that_comes_when_the_first_one_trains_already_shares_its_memory():
    board, models, transfers = {}, [Model(6), Model(6)], DirectTransfers()
    for weight in models[1].blocks.parameters():
        if not weight.requires_grad:
            torch.nn.init.zeros_(weight)  # so that only those of the first rank can be right
    swaps = []
    for rank, model in enumerate(models):
        held = HostBlocks(transfers, SharedSlabs(PostingRuntime(rank, 2, board), "blocks", transfers))
        held.take(model.blocks, list(map(frozen_bytes, model.blocks)))
        assert held.is_shared
        swaps.append(BlockSwap(list(model.blocks), CPU, transfers, held=held))
        del held
    assert same(steps(models[1]), steps(Model(6)))


def test_the_fake_notices_a_missing_event(cuda, monkeypatch):
    model = Model(3)
    BlockSwap(list(model.blocks), CPU, CudaTransfers(CPU))
    monkeypatch.setattr(CudaTransfers, "finish", lambda self, copy: None)
    assert any(value.isnan().any() for value in steps(model, 1))
