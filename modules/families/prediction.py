"""What a family's denoisers predict, and the objective they were trained for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from modules.config.errors import UserError
from modules.families.Family import DenoiserCall

if TYPE_CHECKING:
    import torch
    from diffusers import DiffusionPipeline
    from torch import Tensor

    from modules.diffusion.objectives import Objective
    from modules.families.Family import Family
    from modules.families.TextEncoding import Conditioning


def predict(
    family: Family,
    pipe: DiffusionPipeline,
    noised: Tensor,
    timestep: Tensor,
    text: Conditioning,
    sizes: Tensor | None = None,
    guidance: float = 1.0,
    host_timestep: Tensor | None = None,
) -> Tensor:
    """The prediction for noised latents [B, C, H, W], of video models [B, C, F, H, W], in the same shape.

    Of a family with experts each row goes to the denoiser that its timestep belongs to, however the batch was cut.
    timestep: [B], 0..1000. text: conditioning by name, batched. Both and the latents are cast to the denoiser's dtype.
    sizes: [B, 6], as in Batch, for families that take them; they stay in float32, which holds each pixel count exactly.
    guidance: the scale that a family is told which takes one.
    host_timestep: `timestep` on the CPU, so that a choice between experts does not wait for the device.
    """
    import torch

    scale = noised.new_full((len(noised),), guidance, dtype=torch.float32) if family.takes_guidance else None
    call = DenoiserCall(getattr(pipe, family.denoisers[0]), noised, timestep, text, noised.shape, sizes, scale)
    if family.experts is None:
        return _call(family, call)
    timesteps = (timestep if host_timestep is None else host_timestep).tolist()
    parts: list[tuple[list[int], Tensor]] = []
    for name, (low, high) in family.experts(pipe.config).items():
        rows = [row for row, t in enumerate(timesteps) if low <= t < high]
        if rows:
            parts.append((rows, _call(family, replace(_rows_of(call, rows), denoiser=getattr(pipe, name)))))
    return _in_order(parts)


def _call(family: Family, call: DenoiserCall) -> Tensor:
    dtype = call.denoiser.dtype
    text = {name: _cast(value, dtype) for name, value in call.text.items()}
    call = replace(call, latents=family.pack(call.latents.to(dtype)), shape=call.latents.shape, text=text)
    output = family.output(call, call.denoiser(**family.inputs(call), return_dict=False)[0])
    return family.unpack(output, call.shape)


def _cast(value: Tensor | list[Tensor], dtype: torch.dtype) -> Tensor | list[Tensor]:
    if isinstance(value, list):
        return [_cast(item, dtype) for item in value]
    return value.to(dtype) if value.is_floating_point() else value


def _rows_of(call: DenoiserCall, rows: list[int]) -> DenoiserCall:
    if len(rows) == len(call.latents):
        return call

    def take(value: Any) -> Any:
        import torch

        if value is None or isinstance(value, list):
            return value and [value[row] for row in rows]
        return torch.stack([value[row] for row in rows])  # a tensor of indexes would have to go to the device first

    return replace(
        call,
        latents=take(call.latents),
        timestep=take(call.timestep),
        text={name: take(value) for name, value in call.text.items()},
        sizes=take(call.sizes),
        guidance=take(call.guidance),
    )


def _in_order(parts: list[tuple[list[int], Tensor]]) -> Tensor:
    """The rows of all parts, each (numbers of rows, their predictions), in the order of their numbers."""
    import torch

    if len(parts) == 1:
        return parts[0][1]
    by_row = {row: value for rows, values in parts for row, value in zip(rows, values, strict=True)}
    return torch.stack([by_row[row] for row in sorted(by_row)])


def objective_of(family: Family, scheduler_config: Mapping[str, Any], device: torch.device | None = None) -> Objective:
    """The training objective of a base model.

    scheduler_config: of the base's scheduler; it holds the noise schedule and says whether epsilon or v is predicted.
    A scheduler made for training is built from it, because those of pipelines carry state and are changed by sampling.
    device: where the noise schedule lives, so that no step copies it there.
    Raises UserError for a base that predicts something else.
    """
    from modules.diffusion.objectives import Ddpm, Flow

    if family.objective == "flow":
        return Flow()
    from diffusers import DDPMScheduler

    check_prediction(family, scheduler_config)
    schedule = DDPMScheduler.from_config(dict(scheduler_config))
    return Ddpm(schedule.alphas_cumprod.to(device), schedule.config.prediction_type)


def check_prediction(family: Family, scheduler_config: Mapping[str, Any]) -> None:
    """Raises UserError for a base that predicts what can't be trained, as its scheduler says."""
    predicted = scheduler_config.get("prediction_type", "epsilon")  # as diffusers takes it
    if family.objective == "ddpm" and predicted not in ("epsilon", "v_prediction"):
        raise UserError(
            f"model.prediction_type auto: the base predicts {predicted!r}, and only epsilon and v_prediction can be "
            "trained; set the one of these that it was made for, or choose another base."
        )
