"""Captures passes on the CPU as a GPU would: the operations are repeated, with Python's numbers as they were.

Like a CUDA graph, a recording has fixed memory and runs no Python of ours; what a pass does while it is recorded is
taken back, since capturing computes nothing. In place of a wait, which ends a capture on a GPU, it raises
WaitInCapture.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from modules.trainer.PassGraphs import Replay
from modules.trainer.TrainingPass import TrainingPass

ROOT = Path(__file__).resolve().parents[2]
MODULES = str(ROOT / "modules")
_aten = torch.ops.aten
WAITING = {_aten._local_scalar_dense.default, _aten.equal.default, _aten.nonzero.default, _aten._unique2.default}


class WaitInCapture(RuntimeError):
    """The host needs a value that the device computes."""


class Operation(NamedTuple):
    """One of a recording. line: of ours that called for it, "file:number"."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: list[Tensor]
    line: str

    @property
    def numbers(self) -> list[Any]:
        """What it takes that is not a tensor."""
        return [value for value in tree_leaves((self.args, self.kwargs)) if not isinstance(value, Tensor)]


class Recording(TorchDispatchMode):
    """Records the operations of a pass, made with `inputs`, and takes back what it has done.

    changed: the tensors from outside that it writes to, such as gradients. result: where it is computed.
    """

    def __init__(self, function: Callable[[Sequence[Tensor]], Tensor], inputs: Sequence[Tensor]) -> None:
        super().__init__()
        self.operations: list[Operation] = []
        self.changed: list[Tensor] = []
        self._own: set[int] = set()  # memory that was allocated inside
        self._before: dict[int, Tensor] = {}
        random_state = torch.get_rng_state()
        try:
            with self:
                self.result = function(inputs)
        finally:
            torch.set_rng_state(random_state)
            assign(self.changed, list(self._before.values()))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        line = _line_of_ours()
        if func in WAITING:
            raise WaitInCapture(f"{func} at {line}")
        given = {_memory(value): value for value in _tensors((args, kwargs))}
        if func._schema.is_mutable:
            for place, value in given.items():
                if place not in self._own and place not in self._before:
                    self._before[place] = value.detach().clone()
                    self.changed.append(value)
        result = func(*args, **kwargs)
        results = _tensors(result)
        self._own |= {_memory(value) for value in results} - given.keys()
        self.operations.append(Operation(func, args, kwargs, results, line))
        return result

    @torch.no_grad()
    def replay(self) -> None:
        for function, args, kwargs, results, _ in self.operations:
            repeated = _tensors(function(*args, **kwargs))
            if function._schema.is_mutable:
                continue
            for target, value in zip(results, repeated, strict=True):
                if _memory(target) != _memory(value):  # else a view of the same memory
                    target.copy_(value)


@torch.no_grad()
def copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Without gradients: some are views of what a layer changes in place."""
    return [tensor.clone() for tensor in tensors]


@torch.no_grad()
def assign(tensors: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for tensor, value in zip(tensors, values, strict=True):
        tensor.copy_(value)


def _tensors(values: Any) -> list[Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, Tensor)]


def _memory(value: Tensor) -> int:
    return value.untyped_storage().data_ptr()


def _line_of_ours() -> str:
    frame: Any = sys._getframe(2)
    while frame:
        file = frame.f_code.co_filename
        if file.startswith(MODULES):
            return f"{Path(file).relative_to(ROOT).as_posix()}:{frame.f_lineno}"
        frame = frame.f_back
    return "elsewhere"


def frozen_numbers(one: Recording, other: Recording) -> list[str]:
    """Where two recordings of a pass differ beside the values of their tensors."""
    if len(one.operations) != len(other.operations):
        return [f"{len(one.operations)} and {len(other.operations)} operations"]
    return [
        f"{second.line}, {second.function}: {first.numbers} and {second.numbers}"
        for first, second in zip(one.operations, other.operations, strict=True)
        if first.function != second.function or first.numbers != second.numbers
    ]


class RecordedCapture:
    """A Capture on the CPU. Each replay is compared with the usual pass, whose gradients it then leaves.

    waits: where passes wait. num_replays: so far. num_captured: graphs.
    """

    def __init__(self, waits: str = "") -> None:
        self.num_replays = self.num_captured = 0
        self._waits = waits

    def watched(self, run: Callable[[], TrainingPass]) -> tuple[TrainingPass, str]:
        return run(), self._waits

    def random_states(self) -> tuple[Hashable, Hashable]:
        return torch.get_rng_state().numpy().tobytes(), None

    def __call__(self, function: Callable[[Sequence[Tensor]], Tensor], inputs: Sequence[Tensor]) -> Replay:
        own = [value.clone() for value in inputs]
        recording = Recording(function, own)
        repeat = self.repeated(recording, function, own)
        self.num_captured += 1

        def replay(values: Sequence[Tensor]) -> Tensor:
            self.num_replays += 1
            before = copies(recording.changed)
            random_state = torch.get_rng_state()
            assign(own, values)
            replayed = [repeat(), *copies(recording.changed)]
            assign(recording.changed, before)
            torch.set_rng_state(random_state)
            sums = function(values)
            for one, expected in zip(replayed, [sums, *copies(recording.changed)], strict=True):
                if not torch.allclose(
                    one, expected, rtol=1e-4, atol=1e-6 * float(expected.abs().max()), equal_nan=True
                ):
                    assign(recording.changed, before)
                    torch.set_rng_state(random_state)
                    names = frozen_numbers(recording, Recording(function, values))
                    raise AssertionError(f"a replay differs from the pass; frozen: {names}")
            return sums

        return replay

    def repeated(
        self, recording: Recording, function: Callable[[Sequence[Tensor]], Tensor], inputs: Sequence[Tensor]
    ) -> Callable[[], Tensor]:
        """Makes the recorded pass with what is in `inputs` now, and returns its result."""

        def repeat() -> Tensor:
            recording.replay()
            return recording.result.clone()

        return repeat


class TracedCapture(RecordedCapture):
    """As RecordedCapture, but `make_fx` makes the program that is repeated."""

    def repeated(
        self, recording: Recording, function: Callable[[Sequence[Tensor]], Tensor], inputs: Sequence[Tensor]
    ) -> Callable[[], Tensor]:
        before = [tensor.clone() for tensor in recording.changed]
        random_state = torch.get_rng_state()
        program = make_fx(function)(list(inputs))
        assign(recording.changed, before)
        torch.set_rng_state(random_state)
        return lambda: program(list(inputs))
