"""Runs a family's denoisers, and determines the objective that the base model was trained with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from modules.config.errors import UserError
from modules.families.Family import DenoiserCall

if TYPE_CHECKING:
    import torch
    from diffusers.pipelines.pipeline_utils import DiffusionPipeline
    from torch import Tensor

    from modules.config.DiffusionConfig import DiffusionConfig
    from modules.diffusion.objectives import Objective
    from modules.families.Family import Family
    from modules.families.TextEncoding import Conditioning


def predict(
    family: Family,
    pipe: DiffusionPipeline,
    noised: Tensor,
    timestep: Tensor,
    text: Conditioning,
    given: Mapping[str, Any] = {},
    guidance: float = 1.0,
    host_timestep: Tensor | None = None,
) -> Tensor:
    """The prediction for noised latents [B, C, H, W] (video models: [B, C, F, H, W]), in the same shape.

    If the family has experts, each row is passed to the denoiser that its timestep belongs to.
    timestep: [B], 0..1000.
    text: conditioning by name, batched. It is cast to the denoiser's dtype, as are the latents.
    given: as in Batch. It is cast likewise, except for what is `exact` in a condition.
    guidance: the guidance scale, for families that take one.
    host_timestep: `timestep` on the CPU, so that choosing experts does not synchronize with the device.
    """
    return predict_all(family, pipe, noised, timestep, text, given, guidance, host_timestep)[0]


def predict_all(
    family: Family,
    pipe: DiffusionPipeline,
    noised: Tensor,
    timestep: Tensor,
    text: Conditioning,
    given: Mapping[str, Any] = {},
    guidance: float = 1.0,
    host_timestep: Tensor | None = None,
) -> list[Tensor]:
    """The result of `predict`, and the prediction for the sound in `given` if the family has one there."""
    import torch

    scale = noised.new_full((len(noised),), guidance, dtype=torch.float32) if family.takes_guidance else None
    denoiser = getattr(pipe, family.denoisers[0])
    call = DenoiserCall(denoiser, noised, timestep, text, noised.shape, given, scale)
    if family.experts is None:
        return _call_alike(family, call)
    timesteps = (timestep if host_timestep is None else host_timestep).tolist()
    parts: list[tuple[list[int], list[Tensor]]] = []
    for name, (low, high) in family.experts(pipe.config).items():
        rows = [row for row, t in enumerate(timesteps) if low <= t < high]
        if rows:
            own = replace(_rows_of(call, rows), denoiser=getattr(pipe, name))
            parts.append((rows, _call_alike(family, own)))
    return _in_order(parts)


def _call_alike(family: Family, call: DenoiserCall) -> list[Tensor]:
    """Passes rows to the denoiser together whose lists in `given`, and texts unless it takes any, have alike shapes.

    A denoiser that takes one timestep gets them one by one.
    """
    import torch

    lists = [value for value in call.text.values() if isinstance(value, list)] if family.text.collate == "group" else []
    seen = {name: value for name, value in call.given.items() if isinstance(value, list)}
    is_alone = family.takes_one_timestep and len(call.latents) > 1
    if not lists and not seen and not is_alone:
        return _call(family, call)
    groups: dict[tuple, list[int]] = {}
    for row in range(len(call.latents)):
        shapes: tuple[Any, ...] = tuple(value[row].shape for value in lists)
        shapes += tuple(tuple(one.shape for one in of[row]) for of in seen.values())
        shapes += (row,) if is_alone else ()
        groups.setdefault(shapes, []).append(row)
    parts = []
    for rows in groups.values():
        part = _rows_of(call, rows)
        text = part.text
        if lists:
            text = {name: torch.stack(value) if isinstance(value, list) else value for name, value in text.items()}
        stacked = {
            name: tuple(torch.stack(alike) for alike in zip(*(of_rows[row] for row in rows), strict=True))
            for name, of_rows in seen.items()
        }
        parts.append((rows, _call(family, replace(part, text=text, given={**part.given, **stacked}))))
    return _in_order(parts)


def _call(family: Family, call: DenoiserCall) -> list[Tensor]:
    dtype, exact = call.denoiser.dtype, {name for condition in family.conditions for name in condition.exact}
    call = replace(
        call,
        latents=family.pack(call.latents.to(dtype)),
        shape=call.latents.shape,
        text={name: _cast(value, dtype) for name, value in call.text.items()},
        given={name: value if name in exact else _cast(value, dtype) for name, value in call.given.items()},
    )
    outputs = call.denoiser(**family.inputs(call), return_dict=False)
    prediction = family.unpack(family.output(call, outputs[0]), call.shape)
    of_sound = family.sound_output if "sound" in call.given else None
    return [prediction] if of_sound is None else [prediction, of_sound(call, outputs[1])]


def _cast(value: Any, dtype: torch.dtype) -> Any:
    """value: a tensor, or a list or tuple of tensors."""
    if isinstance(value, (list, tuple)):
        return type(value)(_cast_tensor(item, dtype) for item in value)
    return _cast_tensor(value, dtype)


def _cast_tensor(value: Tensor, dtype: torch.dtype) -> Tensor:
    return value.to(dtype) if value.is_floating_point() else value


def _rows_of(call: DenoiserCall, rows: list[int]) -> DenoiserCall:
    if len(rows) == len(call.latents):
        return call

    def take(value: Any) -> Any:
        import torch

        if value is None or isinstance(value, list):
            return value and [value[row] for row in rows]
        return torch.stack([value[row] for row in rows])  # indexing with a tensor would first copy it to the device

    return replace(
        call,
        latents=take(call.latents),
        timestep=take(call.timestep),
        text={name: take(value) for name, value in call.text.items()},
        given={name: take(value) for name, value in call.given.items()},
        guidance=take(call.guidance),
    )


def _in_order(parts: list[tuple[list[int], list[Tensor]]]) -> list[Tensor]:
    """Merges the predictions of several forward passes. parts: (row numbers, predictions of these rows) of each."""
    import torch

    if len(parts) == 1:
        return parts[0][1]
    by_row = {row: values for rows, several in parts for row, *values in zip(rows, *several, strict=True)}
    return [torch.stack(values) for values in zip(*(by_row[row] for row in sorted(by_row)), strict=True)]


def objective_of(family: Family, scheduler_config: Mapping[str, Any], device: torch.device | None = None) -> Objective:
    """The training objective of a base model.

    scheduler_config: of the base model's scheduler; it has the noise schedule and the prediction type. A training
        scheduler is built from it, because a pipeline's own scheduler has state that sampling changes.
    device: where the noise schedule is kept, so that steps don't have to copy it.
    Raises UserError if the base model predicts something other than epsilon or v.
    """
    from modules.diffusion.objectives import Ddpm, Flow

    if family.objective == "flow":
        return Flow()
    from diffusers import CogVideoXDDIMScheduler, DDPMScheduler

    check_prediction(family, scheduler_config)
    kind = CogVideoXDDIMScheduler if "snr_shift_scale" in scheduler_config else DDPMScheduler
    schedule = kind.from_config(dict(scheduler_config))
    return Ddpm(schedule.alphas_cumprod.to(device), schedule.config.prediction_type)


def check_prediction(family: Family, scheduler_config: Mapping[str, Any]) -> None:
    """Raises UserError if the base model's scheduler has a prediction type that can't be trained."""
    predicted = scheduler_config.get("prediction_type", "epsilon")  # the default of diffusers
    if family.objective == "ddpm" and predicted not in ("epsilon", "v_prediction"):
        raise UserError.at(
            "model.prediction_type",
            f"auto: the base predicts {predicted!r}, but only epsilon and v_prediction can be "
            "trained; set the one that the model was made for, or choose another base.",
        )


def check_offset_noise(scheduler_config: Mapping[str, Any], diffusion: DiffusionConfig) -> None:
    """Raises UserError for offset noise by timestep where only the last timestep, which is noise alone, has any."""
    has_any = diffusion.offset_noise_by_timestep and diffusion.offset_noise
    if has_any and scheduler_config.get("rescale_betas_zero_snr", False):
        raise UserError.at(
            "diffusion.offset_noise_by_timestep",
            ": this base model has zero terminal SNR, with which only the last timestep would have any; turn it off.",
        )
