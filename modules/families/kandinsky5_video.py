"""Kandinsky 5 from text to video: the transformer and texts of its image model on clips, with HunyuanVideo's VAE.

Kandinsky Lab 2025, arXiv 2511.14993. The input has further channels for a frame that is given, which are zero here. See
hunyuan_video.py for how the VAE takes clips.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from modules.families.Codec import Codec
from modules.families.Family import DenoiserCall
from modules.families.frames import decode_frames, encode_frames, shape_by_ratios
from modules.families.kandinsky5_image import KANDINSKY5_IMAGE
from modules.families.PublishedModel import CLIP_L, QWEN_2_5_VL, Component, PublishedModel

if TYPE_CHECKING:
    from torch import Tensor

_INSTRUCTION = 128  # tokens before each prompt, which are cut off
_CELL = 8  # pixels of a latent cell along each side
_480P = range(480, 855)  # pixels of a side


def video_inputs(call: DenoiserCall) -> dict[str, Any]:
    import torch

    text, (frames, height, width) = call.text_tensor("prompt_embeds_qwen"), call.shape[-3:]
    lengths = frames, height // 2, width // 2, text.shape[1]
    *clip, words = (torch.arange(length, device=text.device) for length in lengths)
    is_480p = _CELL * height in _480P and _CELL * width in _480P
    latents = call.latents
    if call.denoiser.config.visual_cond:
        given = latents.new_zeros(*latents.shape[:-1], latents.shape[-1] + 1)
        latents = torch.cat([latents, given], -1)
    return {
        "hidden_states": latents,
        "timestep": call.timestep,
        "encoder_hidden_states": text,
        "pooled_projections": call.text["prompt_embeds_clip"],
        "visual_rope_pos": clip,
        "text_rope_pos": words,
        "scale_factor": (1, 2, 2) if is_480p else (1, 3.16, 3.16),
    }


def _pack(latents_BCFHW: Tensor) -> Tensor:
    return latents_BCFHW.movedim(1, -1)


def _unpack(packed_BFHWC: Tensor, shape: tuple[int, ...]) -> Tensor:
    return packed_BFHWC.movedim(-1, 1).reshape(shape)


def _unsupported(config: Mapping[str, Any]) -> str:
    return "Kandinsky 5 with sparse attention (NABLA)" if config.get("attention_type") == "nabla" else ""


KANDINSKY5_VIDEO = replace(
    KANDINSKY5_IMAGE,
    name="kandinsky5_video",
    label="Kandinsky 5 Video",
    pipeline="Kandinsky5T2VPipeline",
    frame_step=4,
    fps=24.0,
    codec=Codec(
        stats=lambda vae: (0.0, vae.config.scaling_factor),
        encode=encode_frames,
        decode=decode_frames,
        shape=shape_by_ratios,
    ),
    inputs=video_inputs,
    pack=_pack,
    unpack=_unpack,
    call_attributes=lambda pipe, width, height, guidance: {},
    can_train_vae=False,
    unsupported=_unsupported,
    typical_bytes=43e9,
    published=PublishedModel(  # of the Lite model
        denoiser=Component(
            "diffusers.Kandinsky5Transformer3DModel",
            {
                "in_visual_dim": 16,
                "out_visual_dim": 16,
                "model_dim": 1792,
                "ff_dim": 7168,
                "num_visual_blocks": 32,
                "visual_cond": True,
            },
        ),
        vae=Component("diffusers.AutoencoderKLHunyuanVideo"),
        text_encoders=((QWEN_2_5_VL, 128 + _INSTRUCTION), (CLIP_L, 77)),
        text={"prompt_embeds_qwen": (128, 3584), "prompt_embeds_clip": (768,)},
        side=640,
    ),
    remarks="""Models with full attention. From 17 frames on, clips go through the VAE in tiles of 17 frames, one every
    12, with blended seams, as in the pipeline, so that the first latent frame depends on the frames after it.""",
)
