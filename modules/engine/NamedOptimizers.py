"""Several optimizers of one model, which a step function steps by their names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from modules.config.errors import UserError
from modules.distributed.DividedUpdates import DividedUpdates
from modules.distributed.Runtime import Runtime
from modules.distributed.shards import Saved
from modules.engine.EngineOptimizer import EngineOptimizer
from modules.trainer.LoopOptimizer import LoopOptimizer


class NamedOptimizers(LoopOptimizer):
    """Optimizers with parameters of their own each. `torch` is the first one, whose learning rate is reported."""

    def __init__(self, optimizers: Mapping[str, EngineOptimizer]):
        self.by_name = dict(optimizers)
        super().__init__(next(iter(self.by_name.values())).torch)

    def set_learning_rates(self, step: int) -> dict[str, float]:
        return {
            f"{name}/{group}" if len(optimizer.torch.param_groups) > 1 else name: rate
            for name, optimizer in self.by_name.items()
            for group, rate in optimizer.set_learning_rates(step).items()
        }

    def end_epoch(self) -> None:
        """See `EngineOptimizer.end_epoch`."""
        for optimizer in self.by_name.values():
            optimizer.end_epoch()

    def end_validation(self, monitored: float) -> None:
        """See `EngineOptimizer.end_validation`."""
        for optimizer in self.by_name.values():
            optimizer.end_validation(monitored)

    @property
    def divided(self) -> DividedUpdates | None:
        """That of the first: of saving, each knows as much."""
        return next(iter(self.by_name.values())).divided

    def averaged_weights(self) -> dict[Tensor, Tensor] | None:
        found = [weights for each in self.by_name.values() if (weights := each.averaged_weights()) is not None]
        return {param: weight for weights in found for param, weight in weights.items()} if found else None

    def state(self, names: dict[Tensor, str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
        states = {name: optimizer.state(names) for name, optimizer in self.by_name.items()}
        tensors = {key: value for tensors, _ in states.values() for key, value in tensors.items()}
        data = {name: own for name, (_, own) in states.items()}
        return tensors, {"kind": "", "groups": [], "state": {}, "optimizers": data}

    def check_state(self, data: dict[str, Any]) -> None:
        saved = data.get("optimizers", {})
        if saved.keys() != self.by_name.keys():
            found = f"the optimizers {', '.join(saved)}" if saved else f"a single {data['kind']}"
            raise UserError(
                f"resume: the checkpoint was saved with {found}, but the optimizers are {', '.join(self.by_name)}; "
                "create them as in the earlier training."
            )
        for name, optimizer in self.by_name.items():
            optimizer.check_state(saved[name])

    def load_state(self, names: dict[Tensor, str], tensors: Mapping[str, Saved], data: dict[str, Any]) -> None:
        for name, optimizer in self.by_name.items():
            own = {names[param] for param in optimizer.params if param in names}
            part = {key: value for key, value in tensors.items() if key.rpartition("/")[0] in own}
            optimizer.load_state(names, part, data["optimizers"][name])


def adapted(
    optimizer: Optimizer | Mapping[str, Optimizer],
    scheduler: LRScheduler | Mapping[str, LRScheduler] | None,
    interval: Literal["epoch", "step"],
    model: nn.Module,
    runtime: Runtime,
    in_ram: bool = False,
) -> EngineOptimizer | NamedOptimizers:
    """What the loop drives, for one optimizer or several by name, each with its scheduler if there is one.

    in_ram: as for EngineOptimizer. Raises UserError for several where ranks share weights.
    """
    if isinstance(optimizer, Mapping):
        if runtime.shards:
            raise UserError(
                "optimizer: several optimizers can't step weights that ranks share; use strategy='ddp' or 'zero1', or "
                "one optimizer."
            )
        schedulers = scheduler if isinstance(scheduler, Mapping) else {}
        return NamedOptimizers(
            {
                name: EngineOptimizer(own, schedulers.get(name), interval, model, runtime, in_ram)
                for name, own in optimizer.items()
            }
        )
    assert not isinstance(scheduler, Mapping)  # it is checked
    return EngineOptimizer(optimizer, scheduler, interval, model, runtime, in_ram)
