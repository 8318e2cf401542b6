"""Offloaded inputs of blocks change no result, leave the device, and are read neither too early nor too late."""

from __future__ import annotations

import gc
import weakref
from functools import partial

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import checkpoint

from modules.layers import ActivationOffload as module
from modules.layers.ActivationOffload import ActivationOffload
from modules.layers.HostMemory import HostBuffer, HostMemory
from modules.layers.transfers import CudaTransfers, DirectTransfers
from tests.support.FakeCuda import FakeCuda

CPU = torch.device("cpu")
WIDTH, NUM_BLOCKS = 8, 6
BY_TORCH = partial(checkpoint, use_reentrant=False)


@pytest.fixture(autouse=True)
def everything_is_large(monkeypatch):
    monkeypatch.setattr(module, "LEAST_BYTES", 1)


class Block(nn.Module):
    """Takes and returns two views of one tensor, as a block of FLUX.1 does, and takes what all blocks take."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, image, text, scale, bias):
        joint = torch.cat([text, image], dim=1)
        joint = joint + torch.tanh(self.layer(joint)) * scale + bias
        return joint[:, text.shape[1] :], joint[:, : text.shape[1]]


class Model(nn.Module):
    def __init__(self, run=BY_TORCH):
        super().__init__()
        torch.manual_seed(1)
        self.scale = nn.Linear(WIDTH, WIDTH)
        self.bias = nn.Parameter(torch.randn(WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(NUM_BLOCKS))
        self.run = run

    def forward(self, values):
        scale, image, text = self.scale(values[:, :1]), values.transpose(1, 2), values[:, :2]
        for block in self.blocks:
            image, text = self.run(block, image, text, scale=scale, bias=self.bias)
        return image


def values(number: int) -> torch.Tensor:
    return torch.randn(3, WIDTH, WIDTH, generator=torch.Generator().manual_seed(number))


def steps(model: nn.Module, count: int = 3) -> list[torch.Tensor]:
    """Losses and gradients of some steps."""
    seen = []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(count):
        loss = model(values(number)).square().sum()
        loss.backward()
        seen += [loss.detach(), *(param.grad.clone() for param in model.parameters())]
        optimizer.step()
        optimizer.zero_grad()
    return seen


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


def test_the_curve_is_that_without_offloading_bit_for_bit():
    assert same(steps(Model(ActivationOffload(CPU, DirectTransfers()).checkpoint)), steps(Model()))


class Chain(nn.Module):
    """Blocks of one input, the output of the block before; `lines` says when each runs."""

    def __init__(self, run, lines: list[str]):
        super().__init__()
        torch.manual_seed(1)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(NUM_BLOCKS))
        self.run, self.lines = run, lines
        self.inputs: list[StorageWeakRef] = []
        self.most = 0
        for number, block in enumerate(self.blocks):
            block.register_forward_pre_hook(partial(self._enter, number))

    def _enter(self, number, block, inputs):
        self.lines.append(f"block {number}")
        self.inputs.append(StorageWeakRef(inputs[0].untyped_storage()))
        self.most = max(self.most, sum(not each.expired() for each in self.inputs))

    def forward(self, values):
        for block in self.blocks:
            values = self.run(block, values)
        return values


class Noted(DirectTransfers):
    def __init__(self):
        self.lines: list[str] = []
        self.slabs: set[int] = set()

    def start(self, target, source):
        self.lines.append("away" if target.untyped_storage().data_ptr() in self.slabs else "back")
        super().start(target, source)

    def host_buffer(self, num_bytes):
        slab = super().host_buffer(num_bytes)
        self.slabs.add(slab.untyped_storage().data_ptr())
        return slab


@pytest.fixture
def host_buffers(monkeypatch) -> weakref.WeakSet[HostBuffer]:
    """Those in system memory that are in use."""
    found: weakref.WeakSet[HostBuffer] = weakref.WeakSet()
    own = HostMemory.split

    def split(self, num_bytes):
        buffer = own(self, num_bytes)
        found.add(buffer)
        return buffer

    monkeypatch.setattr(HostMemory, "split", split)
    return found


def test_inputs_leave_while_their_block_runs_and_come_back_one_block_ahead():
    transfers = Noted()
    model = Chain(ActivationOffload(CPU, transfers).checkpoint, transfers.lines)
    model(values(1)).sum().backward()
    forward = [line for number in range(6) for line in ("away", f"block {number}")]
    backward = [line for number in reversed(range(1, 6)) for line in ("back", f"block {number}")]
    assert transfers.lines == [*forward, *backward, "block 0"]  # those of the last block are still there


def test_no_more_than_three_inputs_are_on_the_device_at_once():
    model = Chain(ActivationOffload(CPU, DirectTransfers()).checkpoint, [])
    for number in range(2):
        model(values(number)).sum().backward()
    assert model.most <= 3
    kept = Chain(BY_TORCH, [])
    kept(values(1)).sum().backward()
    assert kept.most >= NUM_BLOCKS


def test_a_dropped_graph_frees_system_memory_and_a_backward_pass_that_ended_early_harms_no_later_one(host_buffers):
    offload = ActivationOffload(CPU, DirectTransfers())
    model, plain = Chain(offload.checkpoint, []), Chain(BY_TORCH, [])
    model(values(1))
    gc.collect()
    assert len(host_buffers) <= 1  # of the last block
    stopping = model.blocks[2].register_forward_pre_hook(stop_recomputation)
    with pytest.raises(MemoryError):
        model(values(1)).sum().backward()
    stopping.remove()
    model.zero_grad()
    assert same(steps(model), steps(plain))


def stop_recomputation(*_):
    if torch._C._current_graph_task_id() != -1:  # in a backward pass
        raise MemoryError


def test_an_input_that_is_changed_in_place_is_refused():
    model = Model(ActivationOffload(CPU, DirectTransfers()).checkpoint)

    def run(block, image, text, **others):
        result = ActivationOffload.checkpoint(offload, block, image, text, **others)
        with torch.no_grad():
            image.add_(1)
        return result

    offload = model.run.__self__
    model.run = run
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        model(values(1)).sum().backward()


def test_small_inputs_stay(monkeypatch):
    monkeypatch.setattr(module, "LEAST_BYTES", 2**20)
    transfers = Noted()
    assert same(steps(Model(ActivationOffload(CPU, transfers).checkpoint)), steps(Model()))
    assert not transfers.lines


# --- streams ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def cuda(monkeypatch) -> FakeCuda:
    return FakeCuda(monkeypatch)


def test_nothing_is_read_before_its_event_nor_freed_while_it_is_copied(cuda):
    model = Model(ActivationOffload(CPU, CudaTransfers(CPU)).checkpoint)
    with cuda.counting_kernels():
        seen = steps(model)
    # in each step, every block's two views of one tensor and what all blocks share; those of the last block stay
    assert cuda.copies > 3 * 2 * NUM_BLOCKS
    assert same(seen, steps(Model()))
    assert not cuda.late.num_lost


def test_a_backward_pass_that_ended_early_leaves_no_copy_to_memory_that_is_free(cuda):
    model = Chain(ActivationOffload(CPU, CudaTransfers(CPU)).checkpoint, [])
    stopping = model.blocks[2].register_forward_pre_hook(stop_recomputation)
    with pytest.raises(MemoryError):
        model(values(1)).sum().backward()
    stopping.remove()
    model.zero_grad()
    steps(model, 1)
    assert not cuda.late.num_lost


def test_an_input_is_not_freed_while_it_is_copied_even_if_its_copy_is_needed_no_more(cuda):
    model = Chain(ActivationOffload(CPU, CudaTransfers(CPU)).checkpoint, [])
    model(values(1)).sum().backward()
    assert cuda.copies == 2 * NUM_BLOCKS - 1  # the input of the last block never left
    assert not cuda.late.num_lost


def test_little_more_is_pinned_than_the_inputs_take_at_once(cuda, monkeypatch, host_buffers):
    monkeypatch.setattr("modules.layers.HostMemory.SPLIT_SLAB_BYTES", 2**10)
    model, held = Model(ActivationOffload(CPU, CudaTransfers(CPU)).checkpoint), []
    for block in model.blocks:
        block.register_forward_hook(lambda *_: held.append(sum(buffer.num_bytes for buffer in host_buffers)))
    with cuda.counting_kernels():
        steps(model, 3)
    assert max(held) <= cuda.pinned_bytes <= max(held) + 2**10


def test_where_the_system_refuses_to_pin_memory_the_gradients_are_the_same(cuda):
    cuda.most_pinned = 0
    model = Model(ActivationOffload(CPU, CudaTransfers(CPU)).checkpoint)
    with cuda.counting_kernels():
        seen = steps(model)
    assert same(seen, steps(Model()))
    assert cuda.memory.warning


@pytest.mark.parametrize("mistake", ["no event", "freed before its event"])
def test_the_fake_notices_a_mistake(mistake, cuda, monkeypatch):
    if mistake == "no event":
        monkeypatch.setattr(CudaTransfers, "finish", lambda self, copy: None)
    else:
        let_go = ActivationOffload._let_go

        def free_first(self, besides=()):
            for kept in self._leaving.keys() - set(besides):
                kept.values = None
            let_go(self, besides)

        monkeypatch.setattr(ActivationOffload, "_let_go", free_first)
    offload = ActivationOffload(CPU, CudaTransfers(CPU))
    assert any(value.isnan().any() for value in steps(Model(offload.checkpoint), 1))
