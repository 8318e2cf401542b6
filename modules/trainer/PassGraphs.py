"""Replays the forward and backward pass of a micro-batch as a CUDA graph where that repays the capture.

A graph repeats the kernels of one pass on the same memory, without the host's work of launching them one by one. What
is a number for Python is the same in every replay, so everything that changes has to be a tensor: what is in the batch,
weights and gradients at fixed places, and the loss scale. Dropout draws from torch's generator, which is seeded before
every pass, replayed or not. Reducing, clipping and stepping stay outside: ranks exchange gradients after the passes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from modules.data.Batch import Batch
from modules.layers.LowCopies import forget_casts
from modules.session.out_of_memory import is_out_of_memory
from modules.trainer.TrainingError import TrainingError
from modules.trainer.TrainingPass import TrainingPass

WARM_UPS = 2
"""Passes with a layout of tensors that run as usual before it is captured: kernels are loaded and caches filled, and in
the last of them it is seen whether it can be captured."""
LEAST_USES = 32
"""How often a graph must be expected to run. To capture it costs about three passes: one by the host, its instantiation
and giving the allocator's memory back, while a replay saves at least a tenth of a pass where graphs are of any use."""
MOST_GRAPHS = 8
"""They share their memory, but each has a place in it for the arguments of all its kernels."""

Replay = Callable[[Sequence[Tensor]], Tensor]


class Capture(Protocol):
    """How a device captures passes."""

    def watched(self, run: Callable[[], TrainingPass]) -> tuple[TrainingPass, str]:
        """(what `run` returns, where in it the host waited for the device, or "")."""

    def random_states(self) -> tuple[Hashable, Hashable]:
        """(of the device, of the host): another value once random numbers have been drawn there."""

    def __call__(self, function: Callable[[Sequence[Tensor]], Tensor], inputs: Sequence[Tensor]) -> Replay:
        """Captures `function(inputs)` without running it; returns what runs it with other inputs of the same layout.

        Its result is a new tensor each time. Tensors that `function` uses beside its inputs stay where they are.
        """


@dataclass(frozen=True)
class _Graph:
    """replay: of the sums. trains: the parameters that get a gradient. places: their addresses.
    num_samples, metrics: as in TrainingPass.
    """

    replay: Replay
    trains: list[nn.Parameter]
    places: list[int]
    num_samples: int
    metrics: tuple[str, ...]


class PassGraphs:
    """The graphs of a rank.

    module: what computes the loss, with all weights that a pass uses. run: makes a pass as usual.
    planned: how often each kind of micro-batch is expected from now on (see `Step.kinds`).
    can_draw: whether captured passes may draw random numbers: not where checkpoints have to draw them a second time.
    warn: told, once, why passes are not captured.
    num_replays: so far. worthwhile: the kinds that come often enough to be captured.
    """

    def __init__(
        self,
        module: nn.Module,
        run: Callable[[Batch], TrainingPass],
        capture: Capture,
        planned: Mapping[Hashable, float],
        can_draw: bool,
        warn: Callable[[str], None],
    ):
        self._module = module
        self._run = run
        self._capture = capture
        self._planned = dict(Counter(planned).most_common(MOST_GRAPHS))
        self.num_replays = 0
        self._can_draw = can_draw
        self._warn = warn
        self._graphs: dict[Hashable, _Graph] = {}
        self._seen: Counter[Hashable] = Counter()  # passes by layout, without replays
        self._seen_kinds: Counter[Hashable] = Counter()
        self._gradients: dict[nn.Parameter, Tensor] = {}  # where the graphs add them up
        self._places: list[int] = []  # addresses of the weights that the graphs read
        self._obstacle = ""

    @property
    def worthwhile(self) -> list[Hashable]:
        return [kind for kind, count in self._planned.items() if count >= WARM_UPS + LEAST_USES]

    def run(self, batch: Batch, kind: Hashable) -> TrainingPass:
        """The pass of a micro-batch, replayed if there is a graph for it."""
        layout = batch.layout
        graph = self._graphs.get(layout)
        if graph is not None and graph.places != _places(graph.trains):
            self._give_up("the optimizer puts weights elsewhere in each step")
            graph = None
        if graph is None and self._is_due(layout, kind):
            graph = self._graphs[layout] = self._captured(batch)
        if graph is None:
            self._seen[layout] += 1
            self._seen_kinds[kind] += 1
            is_watched = self._seen[layout] == WARM_UPS and not self._obstacle and kind in self._planned
            return self._watched(batch) if is_watched else self._run(batch)
        self._take_gradients(graph.trains)
        self.num_replays += 1
        return TrainingPass(graph.replay(batch.tensors), graph.num_samples, graph.metrics)

    def check_places(self) -> None:
        """Forgets the graphs if weights have moved. Call it after everything that may move them, such as sampling."""
        if self._graphs and self._places != _places(self._weights()):
            self._graphs.clear()

    def _is_due(self, layout: Hashable, kind: Hashable) -> bool:
        if self._obstacle or self._seen[layout] < WARM_UPS or len(self._graphs) >= MOST_GRAPHS:
            return False
        # the texts of a kind may have several lengths
        expected = self._planned.get(kind, 0.0) * self._seen[layout] / max(1, self._seen_kinds[kind])
        if expected - self._seen[layout] < LEAST_USES:
            return False
        # in the first pass of a step, so that there is never a second set of gradients
        return all(param.grad is None for param in self._module.parameters())

    def _watched(self, batch: Batch) -> TrainingPass:
        """Makes a pass as usual, and finds out whether such passes can be captured."""
        device, host = self._capture.random_states()
        result, waits = self._capture.watched(lambda: self._run(batch))
        device_after, host_after = self._capture.random_states()
        if waits:
            self._give_up(f"a pass waits for the GPU ({waits})")
        elif host != host_after:
            self._give_up("a pass draws random numbers on the CPU")
        elif device != device_after and not self._can_draw:
            self._give_up("blocks draw random numbers, which a graph could not draw again for their checkpoints")
        return result

    def _give_up(self, obstacle: str) -> None:
        self._obstacle = obstacle
        self._graphs.clear()
        self._warn(f"model.cuda_graphs on: {obstacle}, so that steps run without; set it to off.")

    def _captured(self, batch: Batch) -> _Graph:
        """Captures the pass, which leaves everything as it is."""
        about: dict[str, Any] = {}

        def run(inputs: Sequence[Tensor]) -> Tensor:
            values = iter(inputs)
            sums, about["num_samples"], about["metrics"] = self._run(batch.mapped(lambda _: next(values)))
            return sums

        for param in self._module.parameters():
            if param.requires_grad:
                param.grad = self._gradient(param)
        forget_casts()  # a graph has to make its own, in each replay
        try:
            with _noted_gradients(self._gradients) as trained:
                replay = self._capture(run, batch.tensors)
        except RuntimeError as error:
            cause: BaseException = error
            while cause.__context__:  # what ended the capture, whose own end may then fail as well
                cause = cause.__context__
            if is_out_of_memory(cause):
                raise cause from None
            reason, *_ = f"{cause}\n".splitlines()
            text = "A pass could not be captured as a CUDA graph: set model.cuda_graphs to off and resume the run"
            raise TrainingError(f"{text} ({reason}).") from error
        finally:
            forget_casts()  # which hold no values yet
            for param in self._gradients:
                param.grad = None
        self._places = _places(self._weights())
        trained = list(dict.fromkeys(trained))
        return _Graph(replay, trained, _places(trained), **about)

    def _weights(self) -> Iterator[Tensor]:
        yield from self._module.parameters()
        yield from self._module.buffers()

    def _gradient(self, param: nn.Parameter) -> Tensor:
        if param not in self._gradients:
            self._gradients[param] = torch.zeros_like(param)
        return self._gradients[param]

    def _take_gradients(self, params: Iterable[nn.Parameter]) -> None:
        """Lets the gradients of these, with what earlier passes of the step have added up, be where graphs add."""
        empty, fixed, others = [], [], []
        for param in params:
            own = self._gradients[param]
            if param.grad is None:
                empty.append(own)
            elif param.grad is not own:
                fixed.append(own)
                others.append(param.grad)
            param.grad = own
        if empty:
            torch._foreach_zero_(empty)
        if fixed:
            torch._foreach_copy_(fixed, others)


def _places(tensors: Iterable[Tensor]) -> list[int]:
    return [tensor.data_ptr() for tensor in tensors]


@contextmanager
def _noted_gradients(params: Iterable[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Yields a list that gets those of the parameters to which a backward pass inside adds a gradient."""
    trained: list[nn.Parameter] = []
    hooks = [param.register_post_accumulate_grad_hook(trained.append) for param in params]
    try:
        yield trained
    finally:
        for hook in hooks:
            hook.remove()
