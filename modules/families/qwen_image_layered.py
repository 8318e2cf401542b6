"""Qwen-Image-Layered: Qwen-Image that decomposes an image into transparent layers, with a VAE for RGBA.

Yin et al. 2025, arXiv 2512.15603. The image and its layers, from the bottom to the top, are the frames of the latents,
and each of them is encoded by itself. The transformer sees the image without noise behind them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from modules.families.Codec import Posterior
from modules.families.conditions import Layers, References
from modules.families.Family import DenoiserCall
from modules.families.frames import decode_frames, encode_frames
from modules.families.packing import pack_2x2, unpack_2x2
from modules.families.PublishedModel import Component
from modules.families.qwen_image import QWEN_CODEC, QWEN_IMAGE, qwen_inputs

if TYPE_CHECKING:
    from diffusers.models.modeling_utils import ModelMixin
    from diffusers.pipelines.pipeline_utils import DiffusionPipeline
    from torch import Tensor

_SIDES = (640, 1024)  # for which the pipeline has sizes


def _encode(vae: ModelMixin, pixels: Tensor) -> Posterior:
    """pixels: [B, 4, H, W], or [B, 3, H, W] of opaque images."""
    import torch

    if pixels.shape[1] == 3:
        pixels = torch.cat([pixels, torch.ones_like(pixels[:, :1])], dim=1)
    return encode_frames(vae, pixels)


def _decode(vae: ModelMixin, raw_BCFHW: Tensor) -> Tensor:
    """The colors of each frame."""
    import torch

    frames = [decode_frames(vae, frame)[:, :3] for frame in raw_BCFHW.split(1, dim=2)]
    return frames[0] if len(frames) == 1 else torch.stack(frames, dim=2)


def _shape(vae: ModelMixin, width: int, height: int, num_frames: int) -> tuple[int, ...]:
    channels, _, *sides = QWEN_CODEC.shape(vae, width, height, 1)
    return channels, num_frames, *sides


def _pack(latents_BCFHW: Tensor) -> Tensor:
    import torch

    return torch.cat([pack_2x2(frame) for frame in latents_BCFHW.unbind(2)], dim=1)


def _unpack(packed_BNC: Tensor, shape: tuple[int, ...]) -> Tensor:
    import torch

    batch, channels, frames, height, width = shape
    parts = packed_BNC.chunk(frames, dim=1)
    return torch.stack([unpack_2x2(part, (batch, channels, height, width)) for part in parts], dim=2)


def _inputs(call: DenoiserCall) -> dict[str, Any]:
    batch, _, frames, height, width = call.shape
    return {
        **qwen_inputs(call),
        "img_shapes": [[(1, height // 2, width // 2)] * (frames + len(call.given.get("references", ())))] * batch,
        "additional_t_cond": call.timestep.new_zeros(batch).long(),  # of images with transparency
    }


def _layer_options(num_layers: int, width: int, height: int) -> Mapping[str, Any]:
    """The pipeline makes layers of the area of one of two squares: the nearer one."""
    small, large = _SIDES
    return {"layers": num_layers, "resolution": small if width * height < small * large else large}


def _call_attributes(
    pipe: DiffusionPipeline, width: int | None, height: int | None, guidance: float
) -> Mapping[str, Any]:
    """The pipeline asks the text encoder for its dtype, even if prompts are encoded and it is not loaded."""
    parts: Any = pipe
    return {} if parts.text_encoder is not None else {"text_encoder": SimpleNamespace(dtype=parts.vae.dtype)}


assert QWEN_IMAGE.published is not None

QWEN_IMAGE_LAYERED = replace(
    QWEN_IMAGE,
    name="qwen_image_layered",
    label="Qwen-Image-Layered",
    pipeline="QwenImageLayeredPipeline",
    text=replace(QWEN_IMAGE.text, tokenizers=("tokenizer", "processor")),
    align=32,
    codec=replace(QWEN_CODEC, encode=_encode, decode=_decode, shape=_shape),
    inputs=_inputs,
    output=lambda call, output: output[:, : call.latents.shape[1]],
    pack=_pack,
    unpack=_unpack,
    shift_law="side",
    conditions=(References(needed=True), Layers(_layer_options)),
    call_attributes=_call_attributes,
    published=replace(
        QWEN_IMAGE.published,
        denoiser=Component(
            "diffusers.QwenImageTransformer2DModel", {"use_additional_t_cond": True, "use_layer3d_rope": True}
        ),
        vae=Component("diffusers.AutoencoderKLQwenImage", {"input_channels": 4}),
        side=640,
    ),
    remarks="""In diffusers, an empty prompt is replaced by a description of the image. Chorus takes an empty prompt as
    it is.""",
)
