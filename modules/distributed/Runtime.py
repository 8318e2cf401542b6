"""Hides everything that differs between one rank and many; on one rank, each operation is the identity."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from modules.distributed.Heartbeat import Heartbeat
from modules.distributed.usable_gpus import require_usable_gpus, set_cuda_device
from modules.machine.devices import check_device_indexes

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from modules.distributed.DividedUpdates import DividedUpdates

T = TypeVar("T")

WAIT_SECONDS = 0.05  # between two looks at what another rank has posted
GO, STOP, REQUEUE = "go", "stop", "requeue"  # the decisions about starting to train


class Runtime:
    """One rank on one device.

    rank counts over all nodes, local_rank on this node; local_world_size is the number of ranks on this node. Losses
    are summed over samples, not averaged; multiplying a gradient after the backward pass by `gradient_scale` gives the
    gradient of the sum over all ranks.
    heartbeat: gets the phases of this rank. `gather`, `broadcast` and `barrier` exchange data as JSON without a
    collective, beat while they wait, and raise UserError if another rank has disappeared.
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

            # with an index, because "cuda" and "cuda:0" compare unequal
            device = torch.device("cuda", device.index or 0)
            set_cuda_device(device)
        self.device = device
        self.heartbeat = heartbeat or Heartbeat()
        self.on_wait: Callable[[], None] = lambda: None  # called while this rank waits; may raise
        self._stop_announced = False
        self._posted: dict[str, Any] = {}
        self.start_decision = ""  # GO, STOP or REQUEUE, the same for all ranks; "" until this rank knows it

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    @property
    def device_label(self) -> str:
        """The device's name, prefixed with the node rank if there are several nodes: "cuda:0", "1:cuda:0"."""
        return str(self.device) if self.num_nodes == 1 else f"{self.node_rank}:{self.device}"

    def prepare(self, module: nn.Module, unused_parameters: bool = False) -> nn.Module:
        """Moves `module` to the device and wraps it for training; the training loop must call the wrapper.

        Call it before keeping references to parameters, because sharding replaces them; nothing else of the module
        changes. Its buffers are kept equal on all ranks. Its BatchNorm layers in training mode normalize over the
        micro-batches of all ranks in a pass.
        unused_parameters: whether a step may leave trainable parameters without a gradient on some rank.
        Raises RanksError if BatchNorm layers in training mode may be among the unused ones.
        """
        return module.to(self.device)

    def gradient_norm(self, gradients: list[Tensor]) -> Tensor:
        """The 2-norm (scalar) of `gradients`, as far as this rank holds them."""
        import torch

        if not gradients:
            return torch.tensor(0.0)
        first = gradients[0]
        if all(one.dtype == first.dtype and one.device == first.device for one in gradients):
            # what get_total_norm does with each group of such gradients; to group them takes longer than the norm
            return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        return torch.nn.utils.get_total_norm(gradients, foreach=True)

    @property
    def shards(self) -> bool:
        """Whether ranks hold parts of the trained components, which then exchange data in each forward pass.

        The passes, also those without gradients, must then be the same on every rank: of the same components, in the
        same order and number. The data may differ.
        """
        return False

    def full_tensors(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """The full `tensors` on rank 0, gathered from their shards; all ranks must call it."""
        return tensors

    def parts(self, name: str, tensors: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
        """What this rank has to save of `tensors`: name of a file without extension -> its tensors, plain ones.

        A tensor that is in several files is divided among them by rows. name: of the file if there is only one.
        """
        return {name: tensors} if self.is_main else {}

    def full_copies(self, modules: Mapping[str, nn.Module], with_frozen: bool) -> dict[str, nn.Module]:
        """Copies on rank 0, in host memory, of those of the prepared `modules` that no rank has in full.

        All ranks must call it. with_frozen: whether the copies need the values of frozen parameters.
        """
        return {}

    def replicated(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """The subset of `tensors` that are replicated on every rank, and so can be compared between ranks."""
        return tensors

    def num_passes(self, num_micro_batches: int) -> int:
        """The number of forward and backward passes of this rank in a step with `num_micro_batches` of its own.

        It is larger if all ranks must make the same passes and another rank has more micro-batches.
        """
        return num_micro_batches

    @contextlib.contextmanager
    def accumulate(self, last: bool, counts: bool = True) -> Iterator[None]:
        """Wraps the forward and backward pass of a micro-batch; gradients are exchanged only in the last one.

        counts: whether its samples contribute to the statistics of BatchNorm layers.
        """
        yield

    @property
    def needs_warm_up(self) -> bool:
        """Whether a synchronized forward and backward pass must run before the first step."""
        return False

    def sum(self, values: Tensor, main_value: Tensor) -> tuple[Tensor, Tensor]:
        """(sum of `values` over ranks, rank 0's `main_value`), on the device and equal on every rank.

        main_value: a scalar. `values` may be modified.
        """
        return values, main_value

    def sum_with_norm(self, values: Tensor, gradients: list[Tensor]) -> tuple[Tensor, Tensor]:
        """(sum of `values` over ranks, 2-norm of the gradients of the whole model), equal on every rank.

        values: float64, may be modified. This is the only collective of a step besides those of the passes.
        """
        # All ranks use rank 0's norm: on another GPU model, the same gradients may give a norm that differs in the last
        # bit, and the weights of the ranks would drift apart.
        return self.sum(values, self.gradient_norm(gradients).double())

    def sum_gradients(self, gradients: list[Tensor]) -> None:
        """Sums `gradients` over the ranks, in place; for backward passes of which the wrapper does not know.

        All ranks must call it, with gradients of the same shapes.
        """

    def mean(self, values: Tensor) -> Tensor:
        """The mean of `values` over the ranks. A collective."""
        return values

    def gather_bytes(self, data: bytes) -> list[bytes]:
        """The data of all ranks, in rank order. A collective of the CPU, for much more data than `gather` takes."""
        return [data]

    def broadcast_bytes(self, data: bytes, num_bytes: int) -> bytes:
        """Rank 0's `num_bytes` of data, on every rank; the others' are ignored. A collective of the CPU."""
        return data

    def gather(self, value: T, why: str) -> list[T]:
        """The values (plain data) of all ranks, in rank order, on every rank. why: for the message of a lost rank."""
        return [value]

    def broadcast(self, value: T, why: str) -> T:
        """Rank 0's value (plain data), on every rank."""
        return value

    def barrier(self, why: str) -> None:
        """Waits for all ranks. why: for the message of a lost rank."""

    @contextlib.contextmanager
    def loading_turn(self) -> Iterator[None]:
        """Limits how many ranks of a node load a model concurrently, to save host memory until it is on the GPU."""
        yield

    def divide_updates(self, params: Sequence[nn.Parameter]) -> DividedUpdates | None:
        """Which of the prepared parameters each rank is to update; None: every rank updates all of them."""
        return None

    def post(self, topic: str, value: Any) -> None:
        """Tells the other ranks plain data, in place of what this rank has posted before; waits for none of them.

        Like `posted`, it may be called by any thread.
        """
        self._posted[topic] = value

    def posted(self, topic: str, rank: int) -> Any:
        """What `rank` has posted last; None if nothing yet."""
        return self._posted.get(topic)

    def wait_for_posted(self, topic: str, rank: int, is_enough: Callable[[Any], bool]) -> Any:
        """What `rank` has posted last, when that is enough."""
        while (value := self.posted(topic, rank)) is None or not is_enough(value):
            self.heartbeat.beat()
            self.on_wait()
            time.sleep(WAIT_SECONDS)
        return value

    def first_on_machine(self, topic: str) -> int:
        """The rank that was the first on this machine to ask this for the topic. It waits for no other."""
        return self.rank

    def announce_stop(self) -> None:
        """Tells all ranks of a stop request between steps, such as while sampling."""
        self._stop_announced = True

    @property
    def stop_announced(self) -> bool:
        """Whether a stop was announced. Polls at most once a second."""
        return self._stop_announced

    def veto_start(self, requeues: bool = False) -> None:
        """Makes `begin` return False on all ranks, unless it was decided already.

        requeues: whether the job is to be requeued.
        """
        self.start_decision = self.start_decision or (REQUEUE if requeues else STOP)

    @property
    def start_vetoed(self) -> bool:
        """Whether the start was vetoed. Polls at most once a second."""
        return self.start_decision in (STOP, REQUEUE)

    def begin(self) -> bool:
        """Waits for all ranks and returns whether training begins, the same on all of them."""
        self.start_decision = self.start_decision or GO
        return self.start_decision == GO

    def close(self) -> None:
        """Leaves the other ranks."""


def shard(runtime: Runtime, values: Sequence[Any]) -> Sequence[Any]:
    """This rank's part of `values`; the sizes of the parts differ by at most one."""
    return values[runtime.rank :: runtime.world_size]


def default_device(device_indexes: Sequence[int] = ()) -> torch.device:
    """The first GPU, or the first of `device_indexes`; the CPU if there is no GPU.

    Raises UserError for a GPU that does not exist, and if there are GPUs but PyTorch can't use them.
    """
    import torch

    require_usable_gpus()
    count = torch.cuda.device_count()
    check_device_indexes(device_indexes, count)
    return torch.device("cuda", device_indexes[0] if device_indexes else 0) if count else torch.device("cpu")
