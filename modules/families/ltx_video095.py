"""LTX-Video from version 0.9.5 on: LTX-Video whose positions count from the first frame, which is a latent one alone.

HaCohen et al. 2024, arXiv 2501.00103. diffusers' pipeline takes given frames as conditions; a first one is trained.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from modules.config.ResolutionShift import ResolutionShift
from modules.config.TrainingTimesteps import TrainingTimesteps
from modules.families.conditions import FirstFrame
from modules.families.Family import DenoiserCall
from modules.families.ltx_video import LTX_VIDEO
from modules.families.PublishedModel import T5_XXL, Component, PublishedModel

_NUM_TOKENS = 256  # of every text
_VAE = {
    "block_out_channels": (128, 256, 512, 1024, 2048),
    "down_block_types": ("LTXVideo095DownBlock3D",) * 4,
    "decoder_block_out_channels": (256, 512, 1024),
    "layers_per_block": (4, 6, 6, 2, 2),
    "decoder_layers_per_block": (5, 5, 5, 5),
    "spatio_temporal_scaling": (True,) * 4,
    "decoder_spatio_temporal_scaling": (True,) * 3,
    "decoder_inject_noise": (False,) * 4,
    "downsample_type": ("spatial", "temporal", "spatiotemporal", "spatiotemporal"),
    "upsample_residual": (True,) * 3,
    "upsample_factor": (2,) * 3,
    "timestep_conditioning": True,
    "spatial_compression_ratio": 32,
    "temporal_compression_ratio": 8,
}


def _inputs(call: DenoiserCall) -> dict[str, Any]:
    import torch

    inputs = LTX_VIDEO.inputs(call)
    del inputs["rope_interpolation_scale"]
    grid = torch.meshgrid(*(torch.arange(size, device=call.latents.device) for size in call.shape[2:]), indexing="ij")
    frames, rows, columns = (axis.flatten().float() for axis in grid)
    seconds = (frames * LTX_VIDEO.frame_step + 1 - LTX_VIDEO.frame_step).clamp(min=0) * (1 / LTX_VIDEO.fps)
    positions = torch.stack([seconds, rows * LTX_VIDEO.align, columns * LTX_VIDEO.align])  # pixels of a latent cell
    return {**inputs, "video_coords": positions.expand(len(call.latents), -1, -1)}


LTX_VIDEO_095 = replace(
    LTX_VIDEO,
    name="ltx_video095",
    label="LTX-Video 0.9.5",
    pipeline="LTXConditionPipeline",
    conditions=(FirstFrame("LTXConditionPipeline"),),
    text=replace(LTX_VIDEO.text, options={"max_sequence_length": _NUM_TOKENS}),
    inputs=_inputs,
    # Lightricks/LTX-Video-Trainer: src/ltxv_trainer/timestep_samplers.py, ShiftedLogitNormalTimestepSampler
    training_timesteps=TrainingTimesteps(shift=ResolutionShift(0.95, 2.05, 1024, 4096)),
    has_own_sampler=True,  # given frames have timesteps of their own in its steps
    call_options={"image_cond_noise_scale": 0.0},  # a first frame as it was trained
    caption_bytes=_NUM_TOKENS * (4096 * 4 + 8),
    typical_bytes=76.2e9,
    published=PublishedModel(  # of 0.9.7 and 0.9.8, 13B
        denoiser=Component(
            "diffusers.LTXVideoTransformer3DModel",
            {"num_attention_heads": 32, "attention_head_dim": 128, "cross_attention_dim": 4096, "num_layers": 48},
        ),
        vae=Component("diffusers.AutoencoderKLLTXVideo", _VAE),
        text_encoders=((T5_XXL, _NUM_TOKENS),),
        text={"prompt_embeds": (_NUM_TOKENS, 4096), "prompt_attention_mask": (_NUM_TOKENS,)},
        side=1024,
    ),
    remarks="""Versions 0.9.5 to 0.9.8, 2B and 13B, whose folders name diffusers' LTXConditionPipeline; earlier ones are
    the family LTX-Video. Of the frames that these models can be given, Chorus trains the first one, which samples see
    as it is; diffusers by default adds a little noise to it.""",
)
