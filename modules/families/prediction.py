"""What a family's denoiser predicts, and the objective it was trained for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from modules.config.errors import UserError
from modules.families.Family import DenoiserCall

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from modules.diffusion.objectives import Objective
    from modules.families.Family import Family


def predict(
    family: Family,
    denoiser: nn.Module,
    noised: Tensor,
    timestep: Tensor,
    text: Mapping[str, Tensor],
    sizes: Tensor | None = None,
) -> Tensor:
    """The denoiser's prediction for noised latents [B, C, H, W], in the same shape.

    timestep: [B], 0..1000. text: conditioning by name, batched. Both and the latents are cast to the denoiser's dtype.
    sizes: [B, 6], as in Batch, for families that take them; they stay in float32, which holds each pixel count exactly.
    """
    dtype = denoiser.dtype
    text = {name: value.to(dtype) if value.is_floating_point() else value for name, value in text.items()}
    call = DenoiserCall(denoiser, noised.to(dtype), timestep, text, sizes)
    return denoiser(**family.inputs(call), return_dict=False)[0]


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
