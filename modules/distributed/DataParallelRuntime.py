"""Data parallelism: every rank has the whole model, gradients are exchanged by DDP and plain data by the store."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
import torch.distributed as dist
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from modules.distributed.AfterPasses import AfterPasses
from modules.distributed.DividedUpdates import DividedUpdates
from modules.distributed.errors import RanksError
from modules.distributed.gradient_sync import compress_gradients, in_buckets
from modules.distributed.Heartbeat import PHASE_LIMITS, Heartbeat
from modules.distributed.Runtime import GO, REQUEUE, STOP, Runtime, T
from modules.distributed.SharedBuffers import SharedBuffers
from modules.distributed.store_semaphore import store_semaphore
from modules.distributed.StoreExchange import StoreExchange
from modules.distributed.synchronized_batch_norm import synchronized_batch_norm
from modules.distributed.torch_versions import without_buffer_broadcasts
from modules.machine.machine_memory import memory_bytes

if TYPE_CHECKING:
    from torch import Tensor, nn

    from modules.distributed.environments import RankEnvironment
    from modules.distributed.SignedStore import SignedStore

STOP_KEY, START_KEY = "stop", "start"
POLL_SECONDS = 1.0
MAX_GATHERED_BYTES = 1 << 40  # where the machine's memory is unknown
RANKS_LOADING = 2  # concurrently on one machine: each holds up to a whole model in memory


@dataclass(frozen=True)
class DataParallelSettings:
    """How gradients are exchanged. bucket_size_mb: size of one all-reduce, in MiB.

    static_graph: the same parameters get gradients in every step, so DDP need not search for unused ones.
    sync_batch_norm: BatchNorm layers in training mode normalize over the micro-batches of all ranks.
    compute_precision: of sharded weights, cast to it before they are gathered; "no" keeps their own. Autocast alone
    would keep a full copy of the gathered weights for the backward pass.
    sharing_ranks: how many consecutive ranks share one copy of the sharded weights; None: all.
    divides_updates: each rank updates some of the weights, and has the optimizer's state of these only. No effect on
    sharded weights, whose state is sharded as well.
    exchanges_after: gradients are exchanged once the passes of a step are through, so that these communicate with no
    other rank and can be replayed as CUDA graphs. DDP, which exchanges within the last pass, is not used then, and of
    its settings only the precision and the size of an all-reduce have an effect. None on sharded weights.
    """

    reduce_precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    bucket_size_mb: int = 25
    gradient_as_bucket_view: bool = True
    static_graph: bool = False
    sync_batch_norm: bool = True
    compute_precision: Literal["no", "bf16", "fp16"] = "no"
    sharing_ranks: int | None = None
    divides_updates: bool = False
    exchanges_after: bool = False


_UNREDUCED = "Expected to have finished reduction"  # how DDP's error for parameters without a gradient begins
_NAMED = 3  # parameters in a message


class _Wrapped(DistributedDataParallel):
    """DDP whose model can be asked for what it has, such as its configuration, as on one rank."""

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        try:
            return super().forward(*inputs, **kwargs)
        except RuntimeError as error:
            if not str(error).startswith(_UNREDUCED):
                raise
            raise RanksError(self._without_gradient(str(error))) from error

    def _without_gradient(self, text: str) -> str:
        """One sentence for DDP's, which are many, about parameters that it names by their numbers."""
        ignored = set(self.parameters_to_ignore)
        names = [name for name, param in self.module.named_parameters() if param.requires_grad and name not in ignored]
        numbers = re.search(r"did not receive grad for rank \d+: ([\d ]+)", text)
        found = [names[int(number)] for number in numbers[1].split()] if numbers else []
        more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        which = f" ({', '.join(found[:_NAMED])}{more})" if found else ""
        return (
            f"Trainable parameters{which} got no gradient in the last step, which ranks wait for: pass "
            "unused_parameters=True, or freeze them with requires_grad_(False)."
        )

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "module":  # not there yet
                raise
            return getattr(self.module, name)


class DataParallelRuntime(Runtime):
    """One rank of the default process group, which must be initialized.

    store: shared by all ranks of this run only.
    """

    def __init__(
        self,
        device: torch.device,
        environment: RankEnvironment,
        store: SignedStore,
        settings: DataParallelSettings | None = None,
        heartbeat: Heartbeat | None = None,
    ):
        super().__init__(device, heartbeat)
        self.rank = environment.rank
        self.local_rank = environment.local_rank
        self.world_size = environment.world_size
        self.local_world_size = environment.local_world_size
        self.node_rank = environment.node_rank
        self.num_nodes = environment.num_nodes
        self.gradient_scale = float(self.world_size)  # DDP averages over ranks
        self._settings = settings or DataParallelSettings()
        self._store = store
        self._exchange = StoreExchange(store, self.rank, self.world_size, self._beat_and_call_on_wait)
        self._wrapped: list[DistributedDataParallel] = []
        self._exchanged: dict[nn.Module, AfterPasses] = {}
        self._buffers: list[SharedBuffers] = []
        self._batch_norms: list[_BatchNorm] = []
        self._host_group: dist.ProcessGroup | None = None  # for collectives on CPU tensors
        self._next_poll: dict[str, float] = {}

    def prepare(self, module: nn.Module, unused_parameters: bool = False) -> nn.Module:
        """`module` wrapped in DDP. Only parameters that currently require a gradient are broadcast and reduced.

        A module that is wrapped already gets the same wrapper, because two would both reduce its gradients. One whose
        gradients are exchanged after the passes is returned as it is.
        """
        if module in self._exchanged:
            return module
        for wrapped in self._wrapped:
            if wrapped.module is module:
                return wrapped
        module = module.to(self.device)
        if self._settings.sync_batch_norm:
            self._add_batch_norms(module, unused_parameters)
        buffers = SharedBuffers(module, self.gather)
        self._buffers.append(buffers)
        if self._settings.exchanges_after:
            self._exchanged[module] = AfterPasses(
                list(module.parameters()),
                self._settings.reduce_precision,
                self._settings.bucket_size_mb << 20,
                self._on_host if unused_parameters else None,
            )
            buffers.start()
            return module
        frozen = [name for name, param in module.named_parameters() if not param.requires_grad]
        # DDP would broadcast frozen parameters at the start and all buffers in each forward pass; SharedBuffers sends
        # only the buffers that differ
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(
            module, frozen + [name for name, _ in module.named_buffers()]
        )
        settings = self._settings
        wrapped = _Wrapped(
            module,
            bucket_cap_mb=settings.bucket_size_mb,
            gradient_as_bucket_view=settings.gradient_as_bucket_view,
            find_unused_parameters=unused_parameters and not settings.static_graph,
            static_graph=settings.static_graph,
            **without_buffer_broadcasts(),
        )
        compress_gradients(wrapped, settings.reduce_precision)
        self._wrapped.append(wrapped)
        buffers.start()
        return wrapped

    def _add_batch_norms(self, module: nn.Module, unused_parameters: bool) -> None:
        layers = {name: part for name, part in module.named_modules() if isinstance(part, _BatchNorm)}
        training = [name for name, layer in layers.items() if layer.training]
        if training and unused_parameters:
            raise RanksError(
                f"BatchNorm layers in training mode (such as {training[0]}) must run on every rank in every pass, but "
                "a step may leave layers of this model unused: put them into evaluation mode, or train on one rank."
            )
        self._batch_norms += layers.values()

    @property
    def _normalizes_together(self) -> bool:
        return any(layer.training for layer in self._batch_norms)

    def num_passes(self, num_micro_batches: int) -> int:
        if not (self.shards or self._normalizes_together):
            return num_micro_batches
        most = torch.tensor(num_micro_batches)  # with NCCL, reading the number would wait for the device
        dist.all_reduce(most, dist.ReduceOp.MAX, self._on_host())
        return int(most)

    def _on_host(self) -> dist.ProcessGroup:
        """The group for collectives on CPU tensors, which all ranks must ask for at the same time."""
        if self._host_group is None:
            group = dist.group.WORLD if dist.get_backend() == "gloo" else dist.new_group(backend="gloo")
            assert group is not None  # the ranks have joined
            self._host_group = group
        return self._host_group

    @contextlib.contextmanager
    def accumulate(self, last: bool, counts: bool = True) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for module in () if last else self._wrapped:
                stack.enter_context(module.no_sync())
            stack.enter_context(synchronized_batch_norm(self._batch_norms, counts))
            yield
        if not last:
            return
        for gradients in self._exchanged.values():
            gradients.exchange()
        for buffers in self._buffers:
            buffers.after_step()

    @property
    def needs_warm_up(self) -> bool:
        # DDP records a static graph in its first backward pass, which must not be inside no_sync. After the first pass
        # it also rebuilds its buckets, which changes the order of summation with more than two ranks: the first step
        # after a resume would differ from the same step of an uninterrupted run.
        return not self._settings.exchanges_after and (self._settings.static_graph or self.world_size > 2)

    def sum(self, values: Tensor, main_value: Tensor) -> tuple[Tensor, Tensor]:
        own = main_value if self.is_main else torch.zeros_like(main_value)
        both = torch.cat([values, own.to(values).reshape(1)])  # without any gradients, the norm is on the CPU
        dist.all_reduce(both)
        return both[:-1], both[-1]

    @torch.no_grad()
    def sum_gradients(self, gradients: list[Tensor]) -> None:
        for bucket in in_buckets(gradients, self._settings.bucket_size_mb << 20):
            flat = torch.cat([gradient.reshape(-1) for gradient in bucket])
            dist.all_reduce(flat)
            sums = flat.split([gradient.numel() for gradient in bucket])
            for gradient, total in zip(bucket, sums, strict=True):
                gradient.copy_(total.view(gradient.shape))

    def mean(self, values: Tensor) -> Tensor:
        total = values.clone()
        dist.all_reduce(total)
        return total / self.world_size

    def gather_bytes(self, data: bytes) -> list[bytes]:
        lengths = [torch.empty((), dtype=torch.int64) for _ in range(self.world_size)]
        dist.all_gather(lengths, torch.tensor(len(data)), self._on_host())
        longest = _longest([int(length) for length in lengths])
        own = torch.zeros(longest, dtype=torch.uint8)
        own[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else own[:0]
        parts = [torch.empty(longest, dtype=torch.uint8) for _ in range(self.world_size)]
        dist.all_gather(parts, own, self._on_host())
        return [part[:length].numpy().tobytes() for part, length in zip(parts, map(int, lengths), strict=True)]

    def broadcast_bytes(self, data: bytes, num_bytes: int) -> bytes:
        own = torch.empty(num_bytes, dtype=torch.uint8)
        if self.is_main:
            own = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        dist.broadcast(own, 0, self._on_host())
        return own.numpy().tobytes()

    def gather(self, value: T, why: str) -> list[T]:
        with self.heartbeat.phase("waiting"):
            return self._exchange.gather(value, why)

    def broadcast(self, value: T, why: str) -> T:
        return cast(T, self.gather(value if self.is_main else None, why)[0])  # rank 0 gives its value, not None

    def barrier(self, why: str) -> None:
        self.gather(None, why)

    @contextlib.contextmanager
    def loading_turn(self) -> Iterator[None]:
        if self.device.type != "cuda":  # the model stays in host memory anyway
            yield
            return
        name, limit = f"loading/{self.node_rank}", PHASE_LIMITS["loading"]
        with store_semaphore(self._store, name, RANKS_LOADING, limit, self._beat_and_call_on_wait):
            yield

    def _beat_and_call_on_wait(self) -> None:
        self.heartbeat.beat()
        self.on_wait()

    def post(self, topic: str, value: Any) -> None:
        self._exchange.publish(f"posted/{topic}/{self.rank}", value)

    def posted(self, topic: str, rank: int) -> Any:
        return self._store.read(f"posted/{topic}/{rank}")

    def first_on_machine(self, topic: str) -> int:
        return self._store.agree(f"first/{self.node_rank}/{topic}", self.rank)

    def divide_updates(self, params: Sequence[nn.Parameter]) -> DividedUpdates | None:
        if self.shards or not self._settings.divides_updates:
            return None
        return DividedUpdates(params, self.rank, self.world_size, self.gather)

    def announce_stop(self) -> None:
        if not self._stop_announced:
            self._stop_announced = True
            self._exchange.publish(STOP_KEY, True)

    @property
    def stop_announced(self) -> bool:
        if not self._stop_announced and self._may_poll(STOP_KEY):
            self._stop_announced = self._store.has(STOP_KEY)
        return self._stop_announced

    def veto_start(self, requeues: bool = False) -> None:
        if not self.start_decision:
            self._decide_start(REQUEUE if requeues else STOP)

    @property
    def start_vetoed(self) -> bool:
        if not self.start_decision and self._may_poll(START_KEY):
            self.start_decision = self._store.read(START_KEY, "")
        return self.start_decision in (STOP, REQUEUE)

    def begin(self) -> bool:
        self.barrier("starting to train")
        self._decide_start(GO)
        return self.start_decision == GO

    def _decide_start(self, decision: str) -> None:
        """The first decision holds for all ranks, so that none begins to train while another one leaves."""
        self.start_decision = self._store.agree(START_KEY, decision)

    def _may_poll(self, key: str) -> bool:
        now = time.monotonic()
        if now < self._next_poll.get(key, 0.0):
            return False
        self._next_poll[key] = now + POLL_SECONDS
        return True

    def close(self) -> None:
        self._exchange.close()
        # Where a reducer is the last to hold a gloo group, it frees the group while it holds the lock of the
        # interpreter: it would wait for ever for threads that need this lock to free a collective of a backward pass.
        for wrapped in self._wrapped:
            del wrapped.reducer, wrapped.logger
        self._wrapped.clear()


def _longest(lengths: list[int]) -> int:
    """The largest of `lengths` in bytes. Raises RanksError if this machine could not hold what they announce."""
    limit = memory_bytes() or MAX_GATHERED_BYTES
    if min(lengths) < 0 or (longest := max(lengths)) * (len(lengths) + 1) > limit:
        raise RanksError(
            f"{len(lengths)} ranks would exchange {max(lengths):,} bytes each, and this machine has {limit:,} bytes of "
            "memory: predict fewer samples at a time."
        )
    return longest
