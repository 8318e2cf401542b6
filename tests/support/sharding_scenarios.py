"""Scenarios that the tests of sharded training run on every rank; see RankPool."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
import torch
import torch._dynamo
import torch.distributed as dist
from torch import nn

from modules.config.errors import ConfigError
from modules.config.files import config_from_values, load_config
from modules.distributed.errors import RanksError
from modules.distributed.placeholders import reader_of
from modules.distributed.setup_distributed import create_runtime
from modules.distributed.ShardedRuntime import ShardedRuntime
from modules.distributed.shards import local_part
from modules.layers.checkpoints import checkpoint
from modules.trainer.compiling import compile_blocks, compile_with
from modules.trainer.Step import Step
from modules.weights.lazy_loading import _read_rows
from tests.support.make_loop import make_loop
from tests.support.rank_scenarios import WatchedTrainer, squared_error, train
from tests.support.Recorder import Recorder

if TYPE_CHECKING:
    from torch import Tensor

    from modules.distributed.Runtime import Runtime
    from tests.support.RankPool import MakeRuntime


def held_bytes(make_runtime: MakeRuntime, config: str, sync: dict[str, Any] | None = None) -> dict[str, list[int]]:
    """What -> (bytes in this rank's storages, bytes of the full tensors), in the second step and after it."""
    trainer = WatchedTrainer(load_config(config), make_runtime(**(sync or {"strategy": "fsdp"})))
    trainer.start()
    step, found = trainer.loop.optimizer.step, {}

    def measuring_step(number: int) -> None:
        gradients = [param.grad for param in trainer.loop.trainable.values() if param.grad is not None]
        found["gradients"] = counted(gradients)
        step(number)

    trainer.loop.optimizer.step = measuring_step
    trainer.train()
    found["parameters"] = counted(trainer.loop.model.parameters())
    states = trainer.loop.optimizer.torch.state.values()
    found["optimizer state"] = counted(value for state in states for value in state.values() if value.dim())
    found["ema"] = counted(trainer.loop.ema.averages.values())
    return found


def load(make_runtime: MakeRuntime, config: str, sync: dict[str, Any]) -> dict[str, int]:
    """Of the base's weights, the bytes in memory before they are sharded, those of the largest read until then, those
    that are read while they are sharded, and those of the full weights."""
    reads: list[int] = []
    found: dict[str, int] = {}

    def counting_read(*arguments: Any) -> Tensor:
        rows = _read_rows(*arguments)
        reads.append(rows.nbytes)
        return rows

    def watched_prepare(runtime: ShardedRuntime, module: nn.Module, unused_parameters: bool = False) -> nn.Module:
        found["held"], found["full"] = counted(param for param in module.parameters() if reader_of(param))
        found["largest"] = max(reads)
        reads.clear()
        return prepare(runtime, module, unused_parameters)

    prepare = ShardedRuntime.prepare
    with (
        patch("modules.weights.lazy_loading._read_rows", counting_read),
        patch.object(ShardedRuntime, "prepare", watched_prepare),
    ):
        WatchedTrainer(load_config(config), make_runtime(**sync)).start()
    return {**found, "read": sum(reads)}


def back_up(make_runtime: MakeRuntime, config: str, sync: dict[str, Any]) -> dict[str, Any]:
    """What this rank writes in a backup, as name -> (bytes, bytes of the full tensors), and how often it gathers."""
    trainer = WatchedTrainer(load_config(config), make_runtime(**sync))
    trainer.start()
    trainer.train()
    gather = patch("torch.distributed.all_gather_into_tensor", side_effect=dist.all_gather_into_tensor)
    with gather as gathers:
        tensors, _ = trainer._backup_content()
        trainer.backup()
        trainer.backups.close()
    own = {name.split("-")[0]: sum(one.nbytes for one in group.values()) for name, group in tensors.items()}
    whole, _ = trainer.loop.state()
    full = {name: sum(one.nbytes for one in group.values()) for name, group in whole.items()}
    full = trainer.runtime.broadcast(full, "a test")
    return {"files": {name: [size, full[name]] for name, size in own.items()}, "gathers": gathers.call_count}


def counted(tensors: Iterable[Tensor]) -> list[int]:
    tensors = list(tensors)
    local = [local_part(tensor) for tensor in tensors]
    storages = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in local}
    return [sum(storages.values()), sum(tensor.numel() * tensor.element_size() for tensor in tensors)]


def create_runtimes(make_runtime: MakeRuntime) -> dict[str, list]:
    """Strategy -> the class of the runtime for it, its precisions, how many ranks share a model, and whether they
    divide updates."""
    fsdp = {"model": {"mixed_precision": "bf16"}, "gradient_reduce_precision": "fp16"}
    found = {}
    for strategy, values in {"ddp": {"ddp_shard_optimizer": True}, "auto": {}, "fsdp": fsdp, "hsdp": {}}.items():
        runtime = create_runtime(config_from_values({"distributed_strategy": strategy, **values}))
        settings = runtime._settings
        precisions = [settings.compute_precision, settings.reduce_precision]
        found[strategy] = [type(runtime).__name__, *precisions, settings.sharing_ranks, settings.divides_updates]
        runtime.close()
    return found


def refuse_start(make_runtime: MakeRuntime, config: str) -> str:
    with pytest.raises(ConfigError) as error:
        WatchedTrainer(load_config(config), make_runtime("fsdp")).start()
    return str(error.value)


def refuse_modules(make_runtime: MakeRuntime) -> list[str]:
    """The errors of preparing modules that can't be sharded."""
    mixed = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())
    return [
        refusal(make_runtime("fsdp"), mixed),
        refusal(make_runtime("hsdp", sharing_ranks=3), nn.Linear(2, 2)),
    ]


def refusal(runtime: Runtime, module: nn.Module) -> str:
    with pytest.raises(RanksError) as error:
        runtime.prepare(module)
    return str(error.value)


class Block(nn.Module):
    """Has a list of layers, which by themselves are parts to gather, too."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList((nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4)))

    def forward(self, values: Tensor) -> Tensor:
        inner = values
        for layer in self.layers:
            inner = layer(inner)
        return values + inner


class Blocks(nn.Module):
    """Checkpointed blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, values: Tensor) -> Tensor:
        for block in self.blocks:
            values = checkpoint(block, values)
        return values


def train_blocks(
    make_runtime: MakeRuntime, all_sizes: bool | None = None, sync: dict[str, Any] | None = None
) -> dict[str, Any]:
    """A few steps, with compiled blocks if `all_sizes` is given, as for compile_blocks. sync: None: FSDP."""
    runtime, recorder = make_runtime(**(sync or {"strategy": "fsdp"})), Recorder()
    torch.manual_seed(0)
    net = Blocks().double()
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    if all_sizes is not None:
        compile_blocks(net, all_sizes, blocks=[*net.blocks])
    loop = make_loop(nn.Sequential(net), squared_error, 3, runtime=runtime, callbacks=recorder)
    with torch.compiler.set_stance(force_backend="aot_eager"):
        if all_sizes:
            compile_with(loop, [torch.ones(3, 4, dtype=torch.float64)])
        loop.fit(Step([torch.randn(2 + step, 4, dtype=torch.float64)]) for step in range(3))
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    graphs, breaks = counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())
    return {
        "losses": recorder.losses,
        "norms": [info.grad_norm for info in recorder.steps],
        "graphs": graphs,
        "breaks": breaks,
    }


def train_compiled(
    make_runtime: MakeRuntime, config: str, sync: dict[str, Any], backend: str = "aot_eager", **arguments: Any
) -> dict[str, Any]:
    """As `rank_scenarios.train`, in a process that has compiled nothing. backend: of torch.compile.

    "graphs": how many were compiled.
    """
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    with torch.compiler.set_stance(force_backend=backend):
        found = train(make_runtime, config, sync, **arguments)
    return {**found, "graphs": torch._dynamo.utils.counters["stats"]["unique_graphs"]}
