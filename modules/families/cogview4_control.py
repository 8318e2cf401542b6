"""CogView4 Control: CogView4 that follows edges, depth, poses or lines in a control image, seen in further channels.

Z.ai 2025.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from modules.families.cogview4 import COGVIEW4, COGVIEW4_MODEL
from modules.families.conditions import References
from modules.families.Family import DenoiserCall
from modules.families.lora_parts import LOADED_BY_MODEL
from modules.families.PublishedModel import Component


def _inputs(call: DenoiserCall) -> dict[str, Any]:
    import torch

    (control,) = call.given["references"]
    return {**COGVIEW4.inputs(call), "hidden_states": torch.cat([call.latents, control], 1)}


def _call_attributes(pipe: Any, width: int | None, height: int | None, guidance: float) -> Mapping[str, Any]:
    """diffusers 0.42 draws the latents of the control image without the seed; so they are the mode, as in training."""
    vae = pipe.vae

    def encode_to_mode(image: Any) -> Any:
        encoded = vae.encode(image)
        encoded.latent_dist.sample = encoded.latent_dist.mode
        return encoded

    return {"vae": SimpleNamespace(config=vae.config, dtype=vae.dtype, encode=encode_to_mode, decode=vae.decode)}


_DENOISER = Component(
    COGVIEW4_MODEL.denoiser.class_name, {**COGVIEW4_MODEL.denoiser.config, "in_channels": 32, "out_channels": 16}
)

COGVIEW4_CONTROL = replace(
    COGVIEW4,
    name="cogview4_control",
    label="CogView4 Control",
    pipeline="CogView4ControlPipeline",
    conditions=(*COGVIEW4.conditions, References(needed=True, has_shape_of_image=True, is_control=True)),
    inputs=_inputs,
    call_attributes=_call_attributes,
    takes_loras_of=COGVIEW4.name,
    published=replace(COGVIEW4_MODEL, denoiser=_DENOISER),
    remarks=f"""The control image of each image, in the reference folder, shows its edges, depth, pose or lines; Chorus
    makes none, and doesn't augment their colors. LoRAs of CogView4 fit this family, too. {LOADED_BY_MODEL}""",
)
