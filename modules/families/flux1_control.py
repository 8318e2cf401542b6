"""FLUX.1 Canny and FLUX.1 Depth: FLUX.1 dev that follows the edges or the depth in a control image.

Black Forest Labs 2024. Each token has the packed values of the noised latents, and behind them those of the control
image's latents: 64 and 64 in the published models.
"""

from dataclasses import replace
from typing import Any

from modules.families.conditions import References
from modules.families.Family import DenoiserCall
from modules.families.flux1 import FLUX1, FLUX1_MODEL
from modules.families.packing import pack_2x2
from modules.families.PublishedModel import Component


def _inputs(call: DenoiserCall) -> dict[str, Any]:
    import torch

    (control,) = call.given["references"]
    tokens = torch.cat([call.latents, pack_2x2(control)], dim=2)
    return {**FLUX1.inputs(replace(call, given={})), "hidden_states": tokens}


_DENOISER = Component(
    FLUX1_MODEL.denoiser.class_name, {**FLUX1_MODEL.denoiser.config, "in_channels": 128, "out_channels": 64}
)

FLUX1_CONTROL = replace(
    FLUX1,
    name="flux1_control",
    label="FLUX.1 Canny, Depth",
    pipeline="FluxControlPipeline",
    conditions=(References(needed=True, has_shape_of_image=True, is_control=True),),
    inputs=_inputs,
    unused=(),  # its pipeline has none of the parts that the others may have
    published=replace(FLUX1_MODEL, denoiser=_DENOISER),
    matches_lora=lambda shapes: False,  # they are those of the family without a control image
    takes_loras_of="flux1",
    remarks=f"""The control image of each image, in the reference folder, shows what the model was made for: white edges
    on black, by Canny's method, or depth in gray, bright where it is near. Chorus makes none, the package
    `controlnet_aux` does; their colors are not augmented. LoRAs of FLUX.1 dev fit this family, too. The control LoRAs
    of FLUX.1 dev, such as FLUX.1-Canny-dev-lora, are neither trained nor read: they widen the layer by which latents
    enter the model. {FLUX1.remarks}""",
)
