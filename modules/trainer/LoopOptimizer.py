"""The optimizers that the training loop drives."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from modules.layers.transfers import transfers_to
from modules.trainer.HostState import PART_ELEMENTS, HostState
from modules.trainer.optimizers import (
    ParamGroup,
    averaged_weights,
    check_same_optimizer,
    create_optimizer,
    load_optimizer_state,
    optimizer_state,
    uses_stochastic_rounding,
)
from modules.trainer.schedules import schedule_factor
from modules.trainer.stochastic_rounding import split_into_chunks, step_part, step_with_stochastic_rounding

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from modules.config.OptimizerConfig import OptimizerConfig
    from modules.config.ScheduleConfig import ScheduleConfig
    from modules.distributed.DividedUpdates import DividedUpdates
    from modules.distributed.shards import Saved

Part = tuple[int, range]
"""Parameters that are stepped together: the number of their group, and their positions in it."""


class LoopOptimizer:
    """Wraps a torch optimizer. The loop does not change its learning rates."""

    _host: HostState | None = None

    def __init__(self, optimizer: torch.optim.Optimizer):
        self.torch = optimizer
        self._parts: list[Part] = []  # with state in system memory

    def keep_state_in_ram(self, updates: Callable[[Tensor], bool], most: int | None = None) -> None:
        """Keeps large tensors of the state in system memory between steps.

        The optimizer must step each parameter by itself. updates: whether this rank steps a parameter. most: weights
        whose state is on the device together, by default PART_ELEMENTS.
        """
        params = []
        for number, group in enumerate(self.torch.param_groups):
            first = 0
            for part in split_into_chunks(group["params"], PART_ELEMENTS if most is None else most):
                self._parts.append((number, range(first, first + len(part))))
                params.append(part)
                first += len(part)
        self._host = HostState(self.torch, params, transfers_to(params[0][0].device), updates)

    def set_learning_rates(self, step: int) -> dict[str, float]:
        """Sets the learning rates for optimizer step `step` (from 0); returns them by group name."""
        return {group.get("name", f"group {i}"): group["lr"] for i, group in enumerate(self.torch.param_groups)}

    def clear_stopped_gradients(self, step: int) -> None:
        """Clears gradients that optimizer step `step` (from 0) does not use, such as those of groups that stopped."""

    def clear_gradients(self) -> None:
        """After each step."""
        if not self._clears_plainly:
            self.torch.zero_grad(set_to_none=True)
            return
        for group in self.torch.param_groups:
            for param in group["params"]:
                param.grad = None

    @functools.cached_property
    def _clears_plainly(self) -> bool:
        """Whether `zero_grad` is torch's own, whose frame for the profiler takes longer than its work."""
        import torch

        return getattr(self.torch.zero_grad, "__func__", None) is torch.optim.Optimizer.zero_grad

    def step(self, step: int) -> None:
        """Updates the parameters from their gradients; `step` counts from 0."""
        if self._host:
            self._step_in_parts()
        else:
            self.torch.step()

    def _step_in_parts(self, *draw: int) -> None:
        """draw: seeds the rounding of bfloat16 weights; empty: without rounding."""
        assert self._host is not None
        for part in self._host.in_turn(range(len(self._parts))):
            number, positions = self._parts[part]
            step_part(self.torch, self.torch.param_groups[number], positions, (*draw, number) if draw else None)

    def step_alone(self, step: int, param: Tensor) -> bool:
        """Updates a single parameter, as `step` would, unless its group has stopped; returns whether it has not.

        Only for optimizers whose state is of each parameter alone.
        """
        number, position = self._places[param]
        step_part(self.torch, self.torch.param_groups[number], [position], None)
        return True

    @functools.cached_property
    def _places(self) -> dict[Tensor, tuple[int, int]]:
        """Parameter -> (number of its group, its position there)."""
        return {
            param: (number, position)
            for number, group in enumerate(self.torch.param_groups)
            for position, param in enumerate(group["params"])
        }

    @property
    def supports_grad_scale(self) -> bool:
        """Whether its kernel divides by `grad_scale` and honors `found_inf`, as fused optimizers do."""
        return getattr(self.torch, "_step_supports_amp_scaling", False)

    def averaged_weights(self) -> dict[Tensor, Tensor] | None:
        """Parameter -> averaged weight, for optimizers such as schedule-free ones that average; None for all others."""
        return averaged_weights(self.torch)

    def state(self, names: dict[Tensor, str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """(tensors keyed "parameter/key", plain data for JSON). names: parameter -> name.

        If the state is `divided`, the tensors that this rank has; all ranks must call it.
        """
        if self._host:
            self._host.synchronize()
        return optimizer_state(self.torch, names)

    @property
    def divided(self) -> DividedUpdates | None:
        """Which parameters each rank updates, and has the state of; None if all ranks update all of them."""
        return None

    def check_state(self, data: dict[str, Any]) -> None:
        """Raises TrainingError if the plain data of `state` belongs to another optimizer."""
        check_same_optimizer(self.torch, data)

    def load_state(self, names: dict[Tensor, str], tensors: Mapping[str, Saved], data: dict[str, Any]) -> None:
        """Restores what `state` returned."""
        load_optimizer_state(self.torch, names, tensors, data, in_ram=self._host is not None)
        if self._host:
            self._host.adopt()


class ScheduledOptimizer(LoopOptimizer):
    """The configured optimizer, with its learning-rate schedule, early stop of groups and stochastic rounding.

    total_steps: optimizer steps of the whole run. seed: for stochastic rounding. learning_rate_factor: multiplies the
    learning rate of every group, to scale it with the batch size. after_step: called after each update.
    divided: None if this rank updates all parameters.
    Raises TrainingError if the optimizer's package is missing.
    """

    def __init__(
        self,
        config: OptimizerConfig,
        schedule: ScheduleConfig,
        groups: list[ParamGroup],
        total_steps: int,
        seed: int = 42,
        learning_rate_factor: float = 1.0,
        after_step: Callable[[], None] | None = None,
        divided: DividedUpdates | None = None,
    ):
        updates = divided.is_own if divided else lambda param: True
        super().__init__(create_optimizer(config, groups, learning_rate_factor, updates))
        self._divided = divided
        self._schedule = schedule
        self._total_steps = total_steps
        self._seed = seed
        self._after_step = after_step
        self._rounds = uses_stochastic_rounding(config, groups)
        self._stops = {group.name: group.stops_after for group in groups if group.stops_after is not None}
        if config.state_in_ram:
            # a fused backward pass steps each parameter alone
            self.keep_state_in_ram(updates, most=1 if config.fused_backward else None)

    def set_learning_rates(self, step: int) -> dict[str, float]:
        factor = schedule_factor(self._schedule, step, self._total_steps)
        for group in self.torch.param_groups:
            group["lr"] = 0.0 if self._has_stopped(group, step) else group["initial_lr"] * factor
        return super().set_learning_rates(step)

    def clear_stopped_gradients(self, step: int) -> None:
        # optimizers skip parameters without a gradient; with a learning rate of 0, some would still change them
        for group in self.torch.param_groups if self._stops else ():
            if self._has_stopped(group, step):
                for param in group["params"]:
                    param.grad = None

    @property
    def divided(self) -> DividedUpdates | None:
        return self._divided

    def step(self, step: int) -> None:
        if self._divided:
            self._divided.clear_other_gradients()
        if self._host:
            self._step_in_parts(*((self._seed, step) if self._rounds else ()))
        elif self._rounds:
            step_with_stochastic_rounding(self.torch, self._seed, step)
        else:
            self.torch.step()
        if self._divided:
            self._divided.exchange()
        if self._after_step:
            self._after_step()

    def step_alone(self, step: int, param: Tensor) -> bool:
        number, position = self._places[param]
        group = self.torch.param_groups[number]
        if self._has_stopped(group, step):
            return False
        with self._host.alone(self._part_of[param]) if self._host else nullcontext():
            step_part(self.torch, group, [position], (self._seed, step, number) if self._rounds else None)
        return True

    @functools.cached_property
    def _part_of(self) -> dict[Tensor, int]:
        """Parameter -> number of the part that it is stepped with."""
        groups = self.torch.param_groups
        parts = enumerate(self._parts)
        return {groups[number]["params"][place]: part for part, (number, places) in parts for place in places}

    def state(self, names: dict[Tensor, str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, data = super().state(names)
        if self._divided:
            data["state"] = self._divided.merged(data["state"])
        return tensors, data

    def load_state(self, names: dict[Tensor, str], tensors: Mapping[str, Saved], data: dict[str, Any]) -> None:
        if self._divided:
            tensors, data = self._divided.of_own(names, tensors, data)
        super().load_state(names, tensors, data)

    def _has_stopped(self, group: dict[str, Any], step: int) -> bool:
        last = self._stops.get(group["name"])
        return last is not None and step >= last
