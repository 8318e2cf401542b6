"""FLUX.1 Fill: FLUX.1 dev that paints a part of an image, which a mask shows.

Black Forest Labs 2024. Each token has the packed values of the noised latents, of the masked image's latents, and of
all pixels of the mask below it: 64, 64 and 256 in the published model.
"""

from dataclasses import replace
from typing import Any

from modules.families.conditions import Inpainting
from modules.families.Family import DenoiserCall
from modules.families.flux1 import FLUX1, FLUX1_MODEL
from modules.families.packing import pack_2x2
from modules.families.PublishedModel import Component


def _inputs(call: DenoiserCall) -> dict[str, Any]:
    import torch

    num_latents = call.shape[1]
    painted = call.given["inpainting"]
    mask, image = painted[:, :-num_latents], painted[:, -num_latents:]
    tokens = torch.cat([call.latents, pack_2x2(image), pack_2x2(mask)], dim=2)
    return {**FLUX1.inputs(call), "hidden_states": tokens}


_DENOISER = Component(
    FLUX1_MODEL.denoiser.class_name, {**FLUX1_MODEL.denoiser.config, "in_channels": 384, "out_channels": 64}
)

FLUX1_FILL = replace(
    FLUX1,
    name="flux1_fill",
    label="FLUX.1 Fill",
    pipeline="FluxFillPipeline",
    conditions=(Inpainting("pixels"),),
    inputs=_inputs,
    unused=(),  # its pipeline has none of the parts that the others may have
    published=replace(FLUX1_MODEL, denoiser=_DENOISER),
    matches_lora=lambda shapes: False,  # they are those of the family without a mask
    takes_loras_of="flux1",
)
