"""Copies beside computing: whether every wait is there, and whether they overlap."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest import mock

from scripts.gpu.cases import Case, needs_cuda

TOKENS, WIDTH, BLOCKS = 2048, 1024, 8  # a copy takes longer than a launch
CYCLES = 2_000_000  # of the GPU's clock, about a millisecond


def races(device: str) -> Iterator[Case]:
    """With slow copies, then with slow kernels, results stay bit for bit those of resident weights.

    A wait that is missing shows here, where timing alone would hide it.
    """
    needs_cuda(device)
    import torch

    from modules.layers.ActivationOffload import ActivationOffload
    from modules.layers.BlockSwap import BlockSwap

    place = torch.device(device)
    plain = _steps(_blocks().to(place), _checkpoint)

    def swapped(kind: Any) -> dict[str, Any]:
        blocks = _blocks()
        BlockSwap(list(blocks), place, kind(place))
        return {"ok": all(map(torch.equal, _steps(blocks, _checkpoint, place), plain))}

    def offloaded(kind: Any) -> dict[str, Any]:
        offload = ActivationOffload(place, kind(place))
        found = _steps(_blocks().to(place), lambda block, values: offload.checkpoint(block, values))
        return {"ok": all(map(torch.equal, found, plain))}

    for name, kind in _kinds_of_transfers().items():
        yield f"block swapping, {name}", partial(swapped, kind)
        yield f"activation offloading, {name}", partial(offloaded, kind)
        yield f"optimizer state in RAM, {name}", partial(_state_is_right, place, kind)


def _kinds_of_transfers() -> dict[str, Any]:
    import torch

    from modules.layers.transfers import CudaTransfers

    class SlowCopies(CudaTransfers):
        def start(self, target: Any, source: Any) -> Any:
            with torch.cuda.stream(self._stream):
                torch.cuda._sleep(CYCLES)
            return super().start(target, source)

    class SlowKernels(CudaTransfers):
        def start(self, target: Any, source: Any) -> Any:
            torch.cuda._sleep(CYCLES)
            return super().start(target, source)

    return {"as it is": CudaTransfers, "slow copies": SlowCopies, "slow kernels": SlowKernels}


def _blocks() -> Any:
    import torch
    from torch import nn

    torch.manual_seed(0)
    made = [nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)) for _ in range(BLOCKS)]
    return nn.ModuleList(made).requires_grad_(False)


def _checkpoint(block: Any, values: Any) -> Any:
    from torch.utils.checkpoint import checkpoint

    return checkpoint(block, values, use_reentrant=False)


def _steps(blocks: Any, call: Callable[[Any, Any], Any], place: Any = None, count: int = 4) -> list[Any]:
    """The outputs and the gradients of the inputs of several passes."""
    import torch

    place, seen = place or next(blocks.parameters()).device, []
    for number in range(count):
        draws = torch.Generator().manual_seed(number)
        inputs = torch.randn(TOKENS, WIDTH, generator=draws).to(place).requires_grad_()
        hidden = inputs
        for block in blocks:
            hidden = hidden + call(block, hidden)
        hidden.square().mean().backward()
        assert inputs.grad is not None
        seen += [hidden.detach().cpu(), inputs.grad.cpu()]
    return seen


def _state_is_right(place: Any, kind: Any) -> dict[str, Any]:
    import torch

    from modules.config.OptimizerConfig import OptimizerConfig
    from modules.config.ScheduleConfig import ScheduleConfig
    from modules.trainer import LoopOptimizer as module
    from modules.trainer.optimizers import ParamGroup

    def stepped(in_ram: bool) -> list[Any]:
        torch.manual_seed(0)
        params = [torch.nn.Parameter(torch.randn(rows, 512, device=place)) for rows in (512, 2048, 512, 4096, 1024)]
        config = OptimizerConfig(name="adamw", learning_rate=1e-2, state_in_ram=in_ram)
        with mock.patch.object(module, "transfers_to", kind), mock.patch.object(module, "PART_ELEMENTS", 512 * 1024):
            optimizer = module.ScheduledOptimizer(config, ScheduleConfig(), [ParamGroup("all", params)], 10)
            for number in range(6):
                optimizer.set_learning_rates(number)
                for param in params:
                    draws = torch.Generator().manual_seed(number)
                    param.grad = torch.randn(param.shape, generator=draws).to(place)
                optimizer.step(number)
        return [param.detach().cpu() for param in params]

    return {"ok": all(map(torch.equal, stepped(True), stepped(False)))}


# --- whether copies hide behind computing -----------------------------------------------------------------------------

INNER, OUTER, ROWS = 3072, 21504, 9216  # of FLUX.1's blocks, and the tokens of two images of 1024 pixels


def overlap(device: str) -> Iterator[Case]:
    yield "blocks of FLUX.1's size", partial(overlapping, device)


def overlapping(device: str) -> dict[str, Any]:
    """Milliseconds of a pass with resident blocks, swapped as Chorus does it, and with copies that are waited for."""
    needs_cuda(device)
    import torch

    from modules.layers.BlockSwap import BlockSwap
    from modules.layers.transfers import CudaTransfers, DirectTransfers

    place = torch.device(device)
    found = {"resident_ms": _pass_milliseconds(large_blocks().to_empty(device=place), place)}
    for name, transfers in (("swapped_ms", CudaTransfers(place)), ("waited_for_ms", DirectTransfers())):
        blocks = large_blocks()
        blocks._apply(lambda tensor: torch.zeros(tensor.shape, dtype=tensor.dtype))
        BlockSwap(list(blocks), place, transfers)
        found[name] = _pass_milliseconds(blocks, place)
    copied = BLOCKS * 2 * INNER * OUTER * 2 / 1e9  # bfloat16
    speed = round(copied / (found["swapped_ms"] / 1000), 1)
    return {"ok": found["swapped_ms"] < found["waited_for_ms"], **found, "gb_per_second": speed}


def large_blocks() -> Any:
    """On the meta device, in bfloat16: they are to be given values or a place."""
    import torch
    from torch import nn

    with torch.device("meta"):
        made = [nn.Sequential(nn.Linear(INNER, OUTER), nn.GELU(), nn.Linear(OUTER, INNER)) for _ in range(BLOCKS)]
    return nn.ModuleList(made).to(torch.bfloat16).requires_grad_(False)


def _pass_milliseconds(blocks: Any, place: Any) -> float:
    """The median of three passes, after one that warms up."""
    import torch

    values = torch.randn(ROWS, INNER, device=place, dtype=torch.bfloat16)
    times = []
    with torch.no_grad():
        for _ in range(4):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            for block in blocks:
                block(values)
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end))
    return round(sorted(times[1:])[1], 1)
