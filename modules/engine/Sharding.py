"""How the ranks of a TrainingEngine share the memory of a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal, get_args

import torch
import torch.distributed as dist
from torch import nn

from modules.config.errors import UserError
from modules.config.TrainConfig import TrainConfig
from modules.distributed.Runtime import Runtime, default_device
from modules.engine.activation_checkpoints import checkpoint_activations
from modules.engine.MetaWeights import MetaWeights
from modules.engine.shard_blocks import choose_blocks
from modules.machine.devices import is_gpu

Strategy = Literal["ddp", "zero1", "fsdp", "hsdp"]
BUCKET_BYTES = 250 << 20  # sent at once


@dataclass(frozen=True)
class Sharding:
    """The arguments of TrainingEngine that say so; see there. On one rank, nothing is shared."""

    strategy: Strategy = "ddp"
    blocks: Sequence[type[nn.Module]] | None = None
    group_size: int | None = None
    checkpoints_activations: bool = False

    @property
    def shards_weights(self) -> bool:
        return self.strategy in ("fsdp", "hsdp")

    def check(self, model: nn.Module) -> None:
        """Raises UserError for values that can't work with `model`, which is not on the device yet."""
        if self.strategy not in get_args(Strategy):
            raise UserError(f"strategy {self.strategy!r}: use 'ddp', 'zero1', 'fsdp' or 'hsdp'.")
        for kind in () if self.blocks is None else self.blocks:
            if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
                raise UserError(f"shard_blocks: {kind!r} is not a class of modules; pass classes, such as [Block].")
        if self.group_size is not None:
            self._check_group_size(self.group_size)
        choose_blocks(model, self.blocks)
        if self.shards_weights:
            _check_weights(model, self.strategy)

    def _check_group_size(self, size: Any) -> None:
        if self.strategy != "hsdp":
            raise UserError(f"shard_group_size {size!r}: it is for strategy='hsdp'; omit it.")
        if not isinstance(size, Integral) or isinstance(size, bool) or size < 1:
            raise UserError(f"shard_group_size {size!r}: it must be a whole number of ranks, at least 1.")

    def check_backend(self) -> None:
        """Raises UserError if the ranks have joined with one that can't share weights."""
        has_ranks = self.shards_weights and dist.is_initialized()
        if has_ranks and dist.get_backend() != "nccl" and is_gpu(default_device()):
            raise UserError(f"strategy {self.strategy!r}: on GPUs it needs backend='nccl'; use that, or 'ddp'.")

    def check_ranks(self, runtime: Runtime) -> None:
        """Raises UserError, on all ranks, if they can't be divided into the groups."""
        if self.strategy != "hsdp" or runtime.world_size == 1:
            return
        sizes = sorted(set(runtime.gather(self.group_size or runtime.local_world_size, "sharding")))
        if len(sizes) > 1 or runtime.world_size % sizes[0]:
            raise UserError(
                f"shard_group_size: {runtime.world_size} ranks can't be divided into groups of "
                f"{' and '.join(map(str, sizes))}; choose a divisor of their number, or strategy='fsdp'."
            )

    def check_state_in_ram(self, runtime: Runtime) -> None:
        """Raises UserError if the optimizer's state can't be in system memory."""
        if runtime.shards:
            raise UserError(
                f"optimizer_state_in_ram: with strategy {self.strategy!r}, each rank has only its part of the state; "
                "leave it out, or use 'zero1' or 'ddp'."
            )

    def configure(self, config: TrainConfig) -> None:
        """Puts it into the settings that runtimes are made from."""
        config.distributed_strategy = "ddp" if self.strategy == "zero1" else self.strategy
        config.sharding_group_size = self.group_size
        config.ddp_shard_optimizer = self.strategy == "zero1"

    def prepare(self, model: nn.Module, runtime: Runtime, precision: str, weights: MetaWeights) -> str:
        """Puts the model on the device, or on each rank its part of it; call it before the optimizer is made.

        precision: of the forward passes. weights: of a model on the meta device. Returns a warning, or "".
        """
        blocks = choose_blocks(model, self.blocks)
        if self.checkpoints_activations:
            checkpoint_activations(blocks)
        if not runtime.shards:
            weights.fill(model)
            model.to(runtime.device)
            return ""
        # torch's FSDP takes as long to import as all else
        from modules.distributed.ShardedRuntime import ShardedRuntime

        assert isinstance(runtime, ShardedRuntime)

        def begin(part: nn.Module) -> None:
            weights.fill(part)
            _take_weights(part, runtime.device)

        runtime.prepare_blocks(model, blocks, precision, begin)
        if blocks:
            return ""
        return (
            f"strategy {self.strategy!r}: the model has no part that could be gathered alone, so each rank holds all "
            "weights during a step; pass classes of its modules as shard_blocks."
        )


@torch.no_grad()
def _take_weights(part: nn.Module, device: torch.device) -> None:
    """Gives what is not divided yet rank 0's values, as DDP does."""
    from modules.distributed.shards import is_sharded

    params = [param for param in part.parameters() if not is_sharded(param)]
    for param in params:
        param.data = param.data.to(device)
    group = dist.group.WORLD
    assert group is not None  # the ranks have joined
    if params:
        dist._broadcast_coalesced(group, [param.detach() for param in params], BUCKET_BYTES, 0)


def _check_weights(model: nn.Module, strategy: str) -> None:
    if any(part._compiled_call_impl is not None for part in model.modules()):
        raise UserError(f"strategy {strategy!r}: compiled modules can't be sharded; pass the model without compile().")
    for name, param in model.named_parameters():
        if not param.dim():
            raise UserError(f"strategy {strategy!r}: {name} has no rows to be divided; give it the shape (1,).")
    dtypes = sorted({str(param.dtype).removeprefix("torch.") for param in model.parameters() if param.requires_grad})
    if len(dtypes) > 1:
        raise UserError(
            f"strategy {strategy!r}: the trained weights are in {' and '.join(dtypes)}, and to be sharded all must "
            "have the same dtype; convert them, or use 'ddp'."
        )
