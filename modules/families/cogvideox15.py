"""CogVideoX 1.5, from text or an image to video: CogVideoX with two latent frames a token.

The odd number of latent frames of a clip gets one more in front, a copy of the first as in the authors' own training;
the pipeline starts it from noise and cuts it off before decoding. The model for images sees the first frame in further
channels of that one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from modules.families.Codec import Codec
from modules.families.cogvideox import COGVIDEOX, inputs, latent_shape
from modules.families.conditions import FirstFrame
from modules.families.Family import DenoiserCall, Family
from modules.families.frames import decode_frames
from modules.families.latents import encode_pixels
from modules.families.PublishedModel import Component

if TYPE_CHECKING:
    from diffusers.models.modeling_utils import ModelMixin
    from torch import Tensor

    from modules.families.Codec import Posterior

_OFFSET = 2.0  # what the pipeline gives the model for images beside the timestep


def _encode(vae: Any, pixels: Tensor) -> Posterior:
    import torch
    from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution

    pixels = pixels.unsqueeze(2) if pixels.ndim == 4 else pixels
    parameters = vae.encode(pixels).latent_dist.parameters
    return DiagonalGaussianDistribution(torch.cat([parameters[:, :, :1], parameters], 2))


def _decode(vae: ModelMixin, raw_BCFHW: Tensor) -> Tensor:
    return decode_frames(vae, raw_BCFHW[:, :, 1:])


def _shape(vae: ModelMixin, width: int, height: int, num_frames: int) -> tuple[int, ...]:
    channels, frames, *sides = latent_shape(vae, width, height, num_frames)
    return channels, frames + 1, *sides


def _inputs_with_first_frame(call: DenoiserCall) -> dict[str, Any]:
    import torch

    given_BFCHW = torch.zeros_like(call.latents)
    given_BFCHW[:, :1] = call.given["first_frame"].transpose(1, 2)
    return {
        **inputs(call),
        "hidden_states": torch.cat([call.latents, given_BFCHW], 2),
        "ofs": call.latents.new_full((1,), _OFFSET),
    }


def _encode_first(family: Family, vae: ModelMixin, pixels: Tensor) -> Tensor:
    latents = encode_pixels(family, vae, pixels)[:, :, :1]
    # its authors divided the latents of images by what they multiplied those of clips by
    return latents / vae.config.scaling_factor**2 if vae.config.invert_scale_latents else latents


_PUBLISHED = COGVIDEOX.published
assert _PUBLISHED is not None
_CONFIG = {
    **_PUBLISHED.denoiser.config,
    "patch_size_t": 2,
    "patch_bias": False,
    "sample_width": 300,
    "sample_height": 300,
    "sample_frames": 81,
}

COGVIDEOX_15 = replace(
    COGVIDEOX,
    name="cogvideox15",
    label="CogVideoX 1.5",
    accepts=lambda index: not COGVIDEOX.accepts(index),
    frames_per_token=8,  # two latent frames are in one token
    latent_bytes_per_pixel=2 * COGVIDEOX.latent_bytes_per_pixel,  # of both
    fps=16.0,
    codec=Codec(encode=_encode, decode=_decode, shape=_shape),
    published=replace(_PUBLISHED, denoiser=Component("diffusers.CogVideoXTransformer3DModel", _CONFIG), side=1024),
    remarks="""The transformer sees latent frames in pairs. The VAE goes through a clip in chunks of 8 frames, the first
    with 9, so that the first latent frame depends on the frames after it.""",
)

COGVIDEOX_15_I2V = replace(
    COGVIDEOX_15,
    name="cogvideox15_i2v",
    label="CogVideoX 1.5 I2V",
    pipeline="CogVideoXImageToVideoPipeline",
    accepts=lambda index: True,
    # it has positions for one size and one number of frames
    unsupported=lambda config: "" if config.get("patch_size_t") else "CogVideoX I2V 1.0",
    conditions=(FirstFrame("CogVideoXImageToVideoPipeline", needed=True, encode=_encode_first),),
    inputs=_inputs_with_first_frame,
    published=replace(
        _PUBLISHED,
        denoiser=Component(
            "diffusers.CogVideoXTransformer3DModel", {**_CONFIG, "in_channels": 32, "ofs_embed_dim": 512}
        ),
        side=1024,
    ),
)
