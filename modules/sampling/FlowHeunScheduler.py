"""Heun's method for flow-matching models, as a scheduler for diffusers' pipelines."""

from __future__ import annotations

from typing import Any

import torch
from diffusers.schedulers.scheduling_flow_match_euler_discrete import (
    FlowMatchEulerDiscreteScheduler,
    FlowMatchEulerDiscreteSchedulerOutput,
)
from torch import Tensor


class FlowHeunScheduler(FlowMatchEulerDiscreteScheduler):
    """Evaluates the velocity at both ends of each step and takes the mean; the last step, to sigma 0, is Euler's.

    Unlike FlowMatchHeunDiscreteScheduler, it takes the sigmas and shifts that pipelines pass, as Euler's does.
    For N steps, it needs 2 N - 1 evaluations.
    Source: Karras et al. 2022, arXiv 2206.00364, algorithm 1.
    """

    order = 2

    def set_timesteps(
        self,
        num_inference_steps: int | None = None,
        device: Any = None,
        sigmas: list[float] | None = None,
        mu: float | None = None,
        timesteps: list[float] | None = None,
    ) -> None:  # the names are those that pipelines look for in the signature
        super().set_timesteps(num_inference_steps, device, sigmas, mu, timesteps)
        times, levels = self.timesteps, self.sigmas
        self.timesteps = torch.cat([times[:1], times[1:].repeat_interleave(2)])
        self.sigmas = torch.cat([levels[:1], levels[1:-1].repeat_interleave(2), levels[-1:]])
        self._started: tuple[Tensor, Tensor] | None = None  # (sample, velocity) at the start of the step

    def step(  # type: ignore[override] # without the options for added noise, which no pipeline passes
        self, model_output: Tensor, timestep: Any, sample: Tensor, return_dict: bool = True, **_options: Any
    ) -> Any:
        """The next sample, in a tuple or as `prev_sample`. model_output: the velocity at `timestep`.

        Evaluations alternate between the start and the end of a step.
        """
        if self.step_index is None:
            self._init_step_index(timestep)
        index, velocity = self.step_index, model_output.float()
        if self._started is None:
            start = sample.float()
            self._started = start, velocity
            result = start + (self.sigmas[index + 1] - self.sigmas[index]) * velocity
        else:
            start, first_velocity = self._started
            self._started = None
            result = start + (self.sigmas[index] - self.sigmas[index - 1]) * (first_velocity + velocity) / 2
        self._step_index = index + 1
        result = result.to(model_output.dtype)
        return FlowMatchEulerDiscreteSchedulerOutput(prev_sample=result) if return_dict else (result,)  # type: ignore[arg-type]
