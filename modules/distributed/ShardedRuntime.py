"""Fully sharded data parallelism: each rank holds a part of the weights, gradients and optimizer state (FSDP2).

Rajbhandari et al. 2020, "ZeRO", arXiv 1910.02054 (stage 3); Zhao et al. 2023, arXiv 2304.11277. A block's weights are
gathered for its passes and freed again, and its gradients are summed into the parts.

Hybrid sharding (HSDP; Zhao et al., section 3.2.2): a group of ranks shares a copy of the model, so that weights are
gathered within it only; once a step, the groups sum their gradients.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from modules.distributed.DataParallelRuntime import DataParallelRuntime, DataParallelSettings
from modules.distributed.errors import RanksError
from modules.distributed.FullCopy import FullCopy
from modules.distributed.gradient_sync import DTYPES
from modules.distributed.Heartbeat import Heartbeat
from modules.distributed.placeholders import ReadRows, move_to_meta
from modules.distributed.shards import first_row, full_tensor, is_sharded, local_part, sharing_group
from modules.distributed.SharedBuffers import SharedBuffers
from modules.distributed.synchronized_batch_norm import synchronized_batch_norm
from modules.session.backups import part_name

if TYPE_CHECKING:
    from torch import Tensor

    from modules.distributed.environments import RankEnvironment
    from modules.distributed.SignedStore import SignedStore

MAX_SHARE = 0.1
# Elements: each part has collectives of its own in each pass, and dividing smaller ones saves little memory. DDP's
# buckets are about as large.
MIN_DIVIDED = 8 << 20


class ShardedRuntime(DataParallelRuntime):
    """One rank of the default process group.

    Of the settings, the two precisions, sharing_ranks and sync_batch_norm have an effect.
    """

    def __init__(
        self,
        device: torch.device,
        environment: RankEnvironment,
        store: SignedStore,
        settings: DataParallelSettings | None = None,
        heartbeat: Heartbeat | None = None,
    ):
        super().__init__(device, environment, store, settings, heartbeat)
        self._mesh: DeviceMesh | None = None
        self._copies: dict[nn.Module, FullCopy] = {}  # by component
        self._prepared: list[nn.Module] = []
        self._roots: list[FSDPModule] = []
        self._exchanges_each_pass = False

    def prepare(self, module: nn.Module, unused_parameters: bool = False) -> nn.Module:
        """Shards the components of `module` in place, frozen weights included. Their values must agree on all ranks.

        They are moved to the device a block at a time, because all of them might not fit; of placeholders, only the
        rows that this rank holds are read.
        A module without own parameters consists of its children, which may also be called one by one. unused_parameters
        are the same ones on all ranks.
        Raises RanksError for what can't be sharded.
        """
        if module in self._prepared:
            return module
        self._begin(module)
        has_own = any(True for _ in module.parameters(recurse=False))
        for component in (module,) if has_own else module.children():
            if _size(component):
                self._copies[component] = FullCopy(component)
                self._shard(component, blocks(component), self._settings.compute_precision)
        self._finish(module, unused_parameters)
        return module

    def prepare_blocks(
        self,
        module: nn.Module,
        parts: Sequence[nn.Module],
        compute_precision: str = "no",
        begin_part: Callable[[nn.Module], None] = lambda part: None,
    ) -> None:
        """Shards a module of any kind, as `prepare` does, which then returns it as it is.

        parts: the modules in it that are gathered one at a time, inner ones first. No parameter may be both in one of
            them and outside of it. What is in none of them is gathered for the whole pass.
        compute_precision: as in DataParallelSettings.
        begin_part: called with each part, and at last with the module, before its weights are divided; those of the
            parts in it are divided already.
        """
        self._begin(module)
        self._shard(module, parts, compute_precision, begin_part)
        self._finish(module, unused_parameters=False)

    def _begin(self, module: nn.Module) -> None:
        self._prepared.append(module)
        _check(module)
        if self._mesh is None:
            self._mesh = self._make_mesh()

    def _finish(self, module: nn.Module, unused_parameters: bool) -> None:
        if self._settings.sync_batch_norm:
            self._add_batch_norms(module, unused_parameters)
        sizes = [(param.numel(), param.requires_grad) for param in module.parameters()]
        # Gradients that are exchanged only after the last pass are held in full until then: little for adapters, and
        # much too much for a whole model.
        self._exchanges_each_pass = 2 * sum(size for size, trains in sizes if trains) > sum(size for size, _ in sizes)
        buffers = SharedBuffers(module, self.gather)
        buffers.start()
        self._buffers.append(buffers)

    def _make_mesh(self) -> DeviceMesh:
        """The ranks in a row, or with one row for each copy of the model."""
        sharing = self._settings.sharing_ranks or self.world_size
        if len(counts := set(self.gather(sharing, "sharding"))) > 1 or self.world_size % sharing:
            numbers = " and ".join(map(str, sorted(counts)))
            raise RanksError.at(
                "distributed_strategy",
                f"hsdp: {self.world_size} ranks can't be divided into groups of {numbers}; choose "
                "a sharding_group_size that divides their number, or set distributed_strategy to fsdp.",
            )
        if sharing == self.world_size:
            return init_device_mesh(self.device.type, (self.world_size,))
        rows = self.world_size // sharing
        return init_device_mesh(self.device.type, (rows, sharing), mesh_dim_names=("replicate", "shard"))

    def _shard(
        self,
        component: nn.Module,
        parts: Iterable[nn.Module],
        compute_precision: str,
        begin_part: Callable[[nn.Module], None] = lambda part: None,
    ) -> None:
        readers = move_to_meta(component)
        param_dtype = DTYPES.get(compute_precision)
        reduce_dtype = DTYPES.get(self._settings.reduce_precision, torch.float32 if param_dtype else None)
        policy = MixedPrecisionPolicy(param_dtype, reduce_dtype, cast_forward_inputs=False)  # autocast casts inputs
        for part in (*parts, component):
            begin_part(part)
            for param in part.parameters():
                if not is_sharded(param):
                    param.data = param.data.contiguous()  # rows of channels-last weights are not contiguous
            # The root, too, is freed after its forward pass, so that outside of passes all parameters are sharded; but
            # see `accumulate`.
            sharded = fully_shard(part, mesh=self._mesh, reshard_after_forward=True, mp_policy=policy)
            sharded.set_force_sum_reduction_for_comms(True)  # then divided by the number of ranks; gloo has no mean
        self._roots.append(sharded)
        if readers:
            self._read(component, readers)

    @torch.no_grad()
    def _read(self, component: nn.Module, readers: Mapping[str, ReadRows]) -> None:
        """Gives the parameters on the meta device their values: each rank reads only the rows that it holds."""
        component._apply(lambda tensor: torch.empty_like(tensor, device=self.device) if tensor.is_meta else tensor)
        for name, param in component.named_parameters():
            if name in readers and len(rows := local_part(param)):
                start = first_row(param)
                rows.copy_(readers[name](start, start + len(rows)))

    @property
    def shards(self) -> bool:
        return True

    @contextlib.contextmanager
    def accumulate(self, last: bool, counts: bool = True) -> Iterator[None]:
        for root in self._roots:
            root.set_requires_gradient_sync(last or self._exchanges_each_pass)
            root.set_requires_all_reduce(last)  # between groups: their parts are summed up until then
            # the backward pass, which frees it, follows at once and begins with the root's last layers
            root.set_reshard_after_forward(False, recurse=False)
        try:
            with synchronized_batch_norm(self._batch_norms, counts):
                yield
        finally:
            for root in self._roots:
                root.set_reshard_after_forward(True, recurse=False)
        for root in self._roots:
            root.reshard()  # if it had no backward pass
        for buffers in self._buffers if last else ():
            buffers.after_step()

    @property
    def needs_warm_up(self) -> bool:
        return False

    def sum_with_norm(self, values: Tensor, gradients: list[Tensor]) -> tuple[Tensor, Tensor]:
        own = self.gradient_norm([local_part(gradient) for gradient in gradients])
        squares = own.double().square()  # in float32, the square of a scaled fp16 norm might overflow
        assert self._mesh is not None  # something is prepared
        if self.rank >= sharing_group(self._mesh).size:
            squares = torch.zeros_like(squares)  # this group has the same gradients as the first one
        both = torch.cat([values, squares.to(values).reshape(1)])  # without any gradients, the norm is on the CPU
        dist.all_reduce(both)
        return both[:-1], both[-1].sqrt()

    def full_tensors(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """On rank 0, all tensors, the sharded ones on the CPU; on the others, nothing."""
        full = {}
        for name, tensor in tensors.items():
            values = full_tensor(tensor)
            if self.is_main:
                full[name] = values.cpu() if is_sharded(tensor) else values
        return full

    def parts(self, name: str, tensors: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
        assert self._mesh is not None  # something is prepared
        sharing = sharing_group(self._mesh)
        if self.rank >= sharing.size:  # another group has the same
            return {}
        own = {n: local_part(tensor) for n, tensor in tensors.items() if self.is_main or is_sharded(tensor)}
        return {part_name(name, sharing.rank, sharing.size): own}

    def full_copies(self, modules: Mapping[str, nn.Module], with_frozen: bool) -> dict[str, nn.Module]:
        copies = {n: self._copies[module].gathered(with_frozen, self.is_main) for n, module in modules.items()}
        return {name: module for name, module in copies.items() if module is not None}

    def replicated(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensor for name, tensor in tensors.items() if not is_sharded(tensor)}


def blocks(module: nn.Module) -> Iterator[nn.Module]:
    """The parts of a model to gather one at a time: the elements of its lists of modules, inner ones first.

    Only the outermost lists count, and those in elements with more than MAX_SHARE of all parameters, and more than
    MIN_DIVIDED: half of SDXL's weights are in one of its blocks. What is compiled is gathered as a whole, so that no
    collective is in its graph.
    """
    return _blocks(module, max(MAX_SHARE * _size(module), MIN_DIVIDED))


def _blocks(module: nn.Module, most: float) -> Iterator[nn.Module]:
    for child in module.children():
        if not isinstance(child, nn.ModuleList):
            yield from _blocks(child, most)
            continue
        for block in child:
            if _size(block) > most and block._compiled_call_impl is None:
                yield from _blocks(block, most)
            if _size(block):
                yield block


def _size(module: nn.Module) -> int:
    return sum(param.numel() for param in module.parameters())


def _check(module: nn.Module) -> None:
    dtypes = sorted({str(param.dtype).removeprefix("torch.") for param in module.parameters() if param.requires_grad})
    if len(dtypes) > 1:
        raise RanksError(
            f"The trained weights are in {' and '.join(dtypes)}, and to be sharded all must have the same dtype: set "
            "model.weight_dtype to float32, or distributed_strategy to ddp."
        )
