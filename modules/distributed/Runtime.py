"""Everything that differs between one rank and many; on one rank each operation is the identity."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from modules.distributed.Heartbeat import Heartbeat
from modules.distributed.usable_gpus import check_gpus, set_cuda_device
from modules.machine.devices import check_device_indexes

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

T = TypeVar("T")

GO, STOP, REQUEUE = "go", "stop", "requeue"  # what the ranks decide about the start


class Runtime:
    """One rank on one device.

    rank counts over all nodes, local_rank on this node; local_world_size are the ranks of this node. Losses are summed
    over samples, not averaged, so what a backward pass leaves must be multiplied by `gradient_scale` to be the gradient
    of the sum over all ranks.
    heartbeat: told what this rank does. `gather`, `broadcast` and `barrier` beat while they wait, exchange plain data
    (what JSON holds) without a collective, and end with UserError where another rank is not heard of any more.
    """

    rank = 0
    local_rank = 0
    world_size = 1
    local_world_size = 1
    node_rank = 0
    num_nodes = 1
    gradient_scale = 1.0

    def __init__(self, device: torch.device, heartbeat: Heartbeat | None = None):
        if device.type == "cuda":
            import torch

            # with its number: "cuda" and "cuda:0" compare unequal, and modules are asked where they are
            device = torch.device("cuda", device.index or 0)
            set_cuda_device(device)
        self.device = device
        self.heartbeat = heartbeat or Heartbeat()
        self.on_wait: Callable[[], None] = lambda: None  # called while this rank waits; may raise
        self._stop_announced = False
        self.start_decision = ""  # of all ranks, once this one knows it: GO, STOP or REQUEUE

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    @property
    def device_label(self) -> str:
        """The device's name; on several machines behind this one's number: "cuda:0", "1:cuda:0"."""
        return str(self.device) if self.num_nodes == 1 else f"{self.node_rank}:{self.device}"

    def prepare(self, module: nn.Module, unused_parameters: bool = False) -> nn.Module:
        """The module as training must call it.

        Its buffers are kept equal on all ranks. Its BatchNorm layers, while in training mode, normalize over the
        micro-batches of all ranks in a pass. The module itself is not changed.
        unused_parameters: whether a step may leave some of what trains without a gradient on some rank.
        To be called before anything holds on to parameters: sharding replaces them.
        Raises RanksError where that may concern BatchNorm layers in training mode.
        """
        return module

    def gradient_norm(self, gradients: list[Tensor]) -> Tensor:
        """The 2-norm over all of `gradients` (scalar), which are those of the whole model; all ranks call it."""
        import torch

        return torch.nn.utils.get_total_norm(gradients, foreach=True)

    def full_tensors(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """`tensors` whole on rank 0, whatever each rank holds of them; all ranks call it."""
        return tensors

    @contextlib.contextmanager
    def full_parameters(self, *modules: nn.Module) -> Iterator[None]:
        """Inside, the modules' parameters are whole: read them, or make forward passes without gradients.

        All ranks enter and leave it; inside, each may do as it likes.
        """
        yield

    def replicated(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Those of `tensors` of which every rank holds the same values: what can be compared between ranks."""
        return tensors

    def num_passes(self, num_micro_batches: int) -> int:
        """How many forward and backward passes this rank makes in a step that has `num_micro_batches` for it.

        More than those if BatchNorm layers normalize over all ranks and another rank has more micro-batches.
        """
        return num_micro_batches

    @contextlib.contextmanager
    def accumulate(self, last: bool, counts: bool = True) -> Iterator[None]:
        """Around the forward and backward pass of a micro-batch; gradients are exchanged in the last one only.

        counts: whether its samples count; the statistics of BatchNorm layers leave out those that do not.
        """
        yield

    @property
    def needs_warm_up(self) -> bool:
        """Whether a whole synchronised forward and backward pass must come before the first step."""
        return False

    def sum(self, values: Tensor, main_value: Tensor) -> tuple[Tensor, Tensor]:
        """(sum of `values` over ranks, rank 0's `main_value`): the one collective of a step beside the gradients'.

        main_value: a scalar. The same on every rank, on the device; `values` may be changed.
        """
        return values, main_value

    def mean(self, values: Tensor) -> Tensor:
        """The mean of `values` over the ranks, by a collective."""
        return values

    def gather_objects(self, value: T) -> list[T]:
        """What each rank gave, such as tensors on the CPU, in the order of ranks, by a collective."""
        return [value]

    def gather(self, value: T, why: str) -> list[T]:
        """The plain data of each rank, in the order of ranks, on every rank. `why` stands in the message of a wait."""
        return [value]

    def broadcast(self, value: T, why: str) -> T:
        """Rank 0's value (plain data), on every rank."""
        return value

    def barrier(self, why: str) -> None:
        """Waits for all ranks; `why` stands in the message when one does not come."""

    @contextlib.contextmanager
    def loading_turn(self) -> Iterator[None]:
        """Around what takes much of the machine's memory until it is on the GPU: a few ranks do it at a time."""
        yield

    def announce_stop(self) -> None:
        """Tells all ranks that this one was asked to stop, where no step carries it: while they sample."""
        self._stop_announced = True

    @property
    def stop_announced(self) -> bool:
        """Whether a stop was announced. Looks at most once a second."""
        return self._stop_announced

    def veto_start(self, requeues: bool = False) -> None:
        """Lets `begin` give False on all ranks, unless it has been decided already.

        requeues: whether the job is to be run again.
        """
        self.start_decision = self.start_decision or (REQUEUE if requeues else STOP)

    @property
    def start_vetoed(self) -> bool:
        """Whether the training will not begin. Looks at most once a second."""
        return self.start_decision in (STOP, REQUEUE)

    def begin(self) -> bool:
        """Waits for all ranks; whether the training begins, which all decide the same."""
        self.start_decision = self.start_decision or GO
        return self.start_decision == GO

    def close(self) -> None:
        """Leaves the other ranks."""


def shard(runtime: Runtime, values: Sequence[Any]) -> Sequence[Any]:
    """This rank's part of `values`; parts differ by at most one."""
    return values[runtime.rank :: runtime.world_size]


def default_device(device_indexes: Sequence[int] = ()) -> torch.device:
    """The first chosen GPU (of all, where none is chosen), else the CPU.

    Raises UserError for a chosen GPU that does not exist, and where there are GPUs that PyTorch can't use.
    """
    import torch

    check_gpus()
    count = torch.cuda.device_count()
    check_device_indexes(device_indexes, count)
    return torch.device("cuda", device_indexes[0] if device_indexes else 0) if count else torch.device("cpu")
