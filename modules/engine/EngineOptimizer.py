"""Adapts any torch optimizer and learning-rate scheduler to the training loop."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from modules.config.counted import counted
from modules.config.errors import UserError
from modules.distributed.DividedUpdates import DividedUpdates
from modules.distributed.Runtime import Runtime
from modules.distributed.shards import Saved
from modules.trainer.LoopOptimizer import LoopOptimizer
from modules.trainer.optimizers import load_parameter_state, parameter_state


class EngineOptimizer(LoopOptimizer):
    """A torch optimizer with an optional scheduler, which steps after every optimizer step or after every epoch.

    model: whose parameters it trains, or some of them. runtime: which may divide the updates among ranks. in_ram: see
    `LoopOptimizer.keep_state_in_ram`.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        scheduler: LRScheduler | None,
        interval: Literal["epoch", "step"],
        model: nn.Module,
        runtime: Runtime,
        in_ram: bool = False,
    ):
        super().__init__(optimizer)
        self.scheduler = scheduler
        self._interval = interval
        own = {param for group in optimizer.param_groups for param in group["params"]}
        trainable = [param for param in model.parameters() if param.requires_grad]
        self._others = [param for param in trainable if param not in own]
        self._divided = runtime.divide_updates([param for param in trainable if param in own])
        if in_ram:
            self.keep_state_in_ram(self._divided.is_own if self._divided else lambda param: True)

    @property
    def params(self) -> list[nn.Parameter]:
        """Those that it trains."""
        return [param for group in self.torch.param_groups for param in group["params"] if param.requires_grad]

    def clear_stopped_gradients(self, step: int) -> None:
        # the gradients of parameters that it does not have would add up, and count for clipping and skipping
        for param in self._others:
            param.grad = None

    @property
    def divided(self) -> DividedUpdates | None:
        return self._divided

    def step(self, step: int) -> None:
        if self._divided:
            self._divided.clear_other_gradients()
        super().step(step)
        if self._divided:
            self._divided.exchange()
        if self.scheduler is not None and self._interval == "step":
            self.scheduler.step()

    def end_epoch(self) -> None:
        """Steps an epoch-wise scheduler."""
        if self.scheduler is None or self._interval == "step" or isinstance(self.scheduler, ReduceLROnPlateau):
            return
        self.scheduler.step()

    def end_validation(self, monitored: float) -> None:
        """Steps ReduceLROnPlateau."""
        if isinstance(self.scheduler, ReduceLROnPlateau):
            self.scheduler.step(monitored)

    def state(self, names: dict[Tensor, str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
        if self._host:
            self._host.synchronize()
        tensors, data = parameter_state(self.torch, names)
        if self._divided:
            data["state"] = self._divided.merged(data["state"])
        groups = [{key: group[key] for key in group if key != "params"} for group in self.torch.param_groups]
        data["groups"] = _to_json(groups)
        data["scheduler"] = _to_json(self.scheduler.state_dict()) if self.scheduler is not None else None
        return tensors, data

    def check_state(self, data: dict[str, Any]) -> None:
        if "optimizers" in data:
            raise UserError(
                f"resume: the checkpoint was saved with the optimizers {', '.join(data['optimizers'])}; pass them by "
                "name as in the earlier training."
            )
        saved = data["kind"], len(data["groups"])
        own = type(self.torch).__name__, len(self.torch.param_groups)
        if saved != own:
            saved_as, own_as = (f"{kind} ({counted(groups, 'parameter group')})" for kind, groups in (saved, own))
            raise UserError(
                f"resume: the checkpoint was saved with {saved_as}, but the optimizer is {own_as}; create it as in the "
                "earlier training."
            )

    def load_state(self, names: dict[Tensor, str], tensors: Mapping[str, Saved], data: dict[str, Any]) -> None:
        own, own_data = self._divided.of_own(names, tensors, data) if self._divided else (tensors, data)
        load_parameter_state(self.torch, names, own, own_data, in_ram=self._host is not None)
        if self._host:
            self._host.adopt()
        for group, saved in zip(self.torch.param_groups, data["groups"], strict=True):
            group.update(_restore_types(saved, group))
        if self.scheduler is not None and data["scheduler"] is not None:
            self.scheduler.load_state_dict(_restore_types(data["scheduler"], self.scheduler.state_dict()))


def _to_json(value: Any) -> Any:
    """Converts `value` for JSON, infinities to strings. Omits what JSON can't represent, such as functions."""
    if isinstance(value, dict):
        pairs = ((str(key), _to_json(part)) for key, part in value.items())
        return {key: part for key, part in pairs if part is not _LEFT_OUT}
    if isinstance(value, list | tuple):
        return [part for part in map(_to_json, value) if part is not _LEFT_OUT]
    if isinstance(value, Tensor):
        return value.item() if value.numel() == 1 else _LEFT_OUT
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, bool | int | float | str) else _LEFT_OUT


def _restore_types(saved: Any, own: Any) -> Any:
    """Converts the result of `_to_json` back to the types in `own`."""
    if isinstance(own, dict) and isinstance(saved, dict):
        keys = {str(key): key for key in own}
        return {keys.get(key, key): _restore_types(value, own.get(keys.get(key, key))) for key, value in saved.items()}
    if isinstance(own, list) and isinstance(saved, list) and len(own) == len(saved):  # such as several schedulers
        return [_restore_types(*pair) for pair in zip(saved, own, strict=True)]
    if isinstance(own, tuple):
        return tuple(saved)
    if isinstance(own, Tensor):
        return own.new_tensor(saved)
    return float(saved) if isinstance(saved, str) and isinstance(own, float) else saved


_LEFT_OUT = object()
