"""Wan 2.2 from text or an image to video. It has the diffusers pipelines of Wan 2.1; model_index.json tells them apart.

The small model takes a timestep per token. The large ones have two experts, one for high and one for low noise levels;
the pipeline's `boundary_ratio` is the timestep between them. That for images sees the first frame, or the first and the
last, in further channels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from modules.families.conditions import FirstFrame
from modules.families.Family import DenoiserCall
from modules.families.PublishedModel import Component
from modules.families.wan21 import ATTENTION, MLP, WAN_21, WAN_21_MODEL, WAN_NAMES, wan_inputs


def _inputs_by_token(call: DenoiserCall) -> dict[str, Any]:
    return {**wan_inputs(call), "timestep": call.token_timesteps(WAN_21.patch_size)}


def inputs_with_first_frame(call: DenoiserCall) -> dict[str, Any]:
    import torch

    given = torch.zeros_like(call.latents[:, :4])  # one channel for each of the 4 frames of a latent frame
    given[:, :, 0] = 1
    if (last_given := call.given.get("last_given")) is not None:
        given[:, -1, -1] = last_given.to(given.dtype)[:, None, None]
    return {**wan_inputs(call), "hidden_states": torch.cat([call.latents, given, call.given["first_frame"]], 1)}


def _experts(config: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    boundary = 1000 * config["boundary_ratio"]
    return {"transformer": (boundary, math.inf), "transformer_2": (-math.inf, boundary)}


WAN_22_5B = replace(
    WAN_21,
    name="wan22_5b",
    label="Wan 2.2 TI2V-5B",
    accepts=lambda index: bool(index.get("expand_timesteps")) and not index.get("boundary_ratio"),
    align=32,
    inputs=_inputs_by_token,
    conditions=(FirstFrame("WanImageToVideoPipeline"),),
    fps=24.0,
    latent_bytes_per_pixel=48 * 4 / 16**2,
    typical_bytes=45e9,
    published=replace(
        WAN_21_MODEL,
        denoiser=Component(
            "diffusers.WanTransformer3DModel",
            {"in_channels": 48, "out_channels": 48, "num_layers": 30, "num_attention_heads": 24, "ffn_dim": 14336},
        ),
        vae=Component(
            "diffusers.AutoencoderKLWan",
            {
                "base_dim": 160,
                "decoder_base_dim": 256,
                "z_dim": 48,
                "latents_mean": (0.0,) * 48,  # only their number counts here
                "latents_std": (1.0,) * 48,
                "is_residual": True,
                "in_channels": 12,
                "out_channels": 12,
                "patch_size": 2,
                "scale_factor_spatial": 16,
            },
        ),
    ),
)

WAN_22_A14B = replace(
    WAN_21,
    name="wan22_a14b",
    label="Wan 2.2 A14B",
    accepts=lambda index: bool(index.get("boundary_ratio")) and not index.get("expand_timesteps"),
    denoisers=("transformer", "transformer_2"),
    experts=_experts,
    expert_boundary=0.875,  # Wan-Video/Wan2.2: wan/configs/wan_t2v_A14B.py
    lora_targets=dict.fromkeys(("transformer", "transformer_2"), ATTENTION),
    lora_mlp=dict.fromkeys(("transformer", "transformer_2"), MLP),
    lora_blocks=dict.fromkeys(("transformer", "transformer_2"), ("blocks",)),
    layer_names=dict.fromkeys(("transformer", "transformer_2"), WAN_NAMES),
    typical_bytes=137e9,
    remarks="""A LoRA has a file for each expert: `NAME.safetensors` for the first and `NAME_transformer_2.safetensors`
    for the second. Load both: in diffusers, load the second with `load_lora_weights(...,
    load_into_transformer_2=True)`; in `scripts/sample.py`, pass both with `--lora`.""",
)

WAN_22_I2V_A14B = replace(
    WAN_22_A14B,
    name="wan22_i2v_a14b",
    label="Wan 2.2 I2V A14B",
    expert_boundary=0.9,  # Wan-Video/Wan2.2: wan/configs/wan_i2v_A14B.py
    pipeline="WanImageToVideoPipeline",
    conditions=(FirstFrame("WanImageToVideoPipeline", needed=True, last="optional"),),
    unused=("image_encoder", "image_processor"),
    inputs=inputs_with_first_frame,
    latent_bytes_per_pixel=2 * WAN_22_A14B.latent_bytes_per_pixel,
    published=replace(
        WAN_21_MODEL, denoiser=Component("diffusers.WanTransformer3DModel", {"in_channels": 36, "out_channels": 16})
    ),
)
