"""LTX-Video from text to video: a flow transformer on a VAE that packs 8 frames of 32 x 32 pixels into a token, and T5.

HaCohen et al. 2024, arXiv 2501.00103. Versions from 0.9.1 on have a decoder that also denoises; the pipeline's default,
which is used here, is to decode latents without noise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from modules.families.Codec import Codec
from modules.families.conditions import FirstFrame
from modules.families.Family import DenoiserCall, Family
from modules.families.frames import encode_frames, shape_by_ratios
from modules.families.LayerNames import DIFFUSERS_NAMES_WITHOUT_ALPHA
from modules.families.PublishedModel import T5_XXL, Component, PublishedModel
from modules.families.TextEncoding import TextEncoding

if TYPE_CHECKING:
    from diffusers.models.modeling_utils import ModelMixin
    from torch import Tensor

_FPS = 25.0  # what the pipeline assumes for the positions of frames unless it is told otherwise
_FRAMES_PER_CELL, _PIXELS_PER_CELL = 8, 32
_NUM_TOKENS = 128  # of every text


def _stats(vae: Any) -> tuple[Tensor, Tensor]:
    """(shift, scale) of each channel, from buffers of the VAE."""
    mean, std = (values.view(1, -1, 1, 1, 1) for values in (vae.latents_mean, vae.latents_std))
    return mean, vae.config.scaling_factor / std


def _decode(vae: ModelMixin, raw_BCFHW: Tensor) -> Tensor:
    timestep = raw_BCFHW.new_zeros(len(raw_BCFHW)) if vae.config.timestep_conditioning else None
    return vae.decode(raw_BCFHW, timestep, return_dict=False)[0].squeeze(2)


def _pack(latents_BCFHW: Tensor) -> Tensor:
    return latents_BCFHW.flatten(2).transpose(1, 2)


def _unpack(packed_BNC: Tensor, shape: tuple[int, ...]) -> Tensor:
    return packed_BNC.transpose(1, 2).reshape(shape)


def _inputs(call: DenoiserCall) -> dict[str, Any]:
    frames, height, width = call.shape[2:]
    return {
        "hidden_states": call.latents,
        "timestep": call.timestep if "first_given" not in call.given else call.token_timesteps(1),
        "encoder_hidden_states": call.text["prompt_embeds"],
        "encoder_attention_mask": call.text["prompt_attention_mask"],
        "num_frames": frames,
        "height": height,
        "width": width,
        "rope_interpolation_scale": (_FRAMES_PER_CELL / _FPS, _PIXELS_PER_CELL, _PIXELS_PER_CELL),
    }


LTX_VIDEO = Family(
    name="ltx_video",
    label="LTX-Video",
    pipeline="LTXPipeline",
    denoisers=("transformer",),
    text=TextEncoding(
        outputs=("prompt_embeds", "prompt_attention_mask", None, None),
        encoders=("text_encoder",),
        tokenizers=("tokenizer",),
        options={"max_sequence_length": _NUM_TOKENS},
    ),
    objective="flow",
    align=_PIXELS_PER_CELL,
    frame_step=_FRAMES_PER_CELL,
    fps=_FPS,
    codec=Codec(_stats, encode_frames, _decode, shape_by_ratios),
    inputs=_inputs,
    conditions=(FirstFrame("LTXImageToVideoPipeline"),),
    min_sample_steps=2,  # the timesteps of one step can't be stretched to their end
    pack=_pack,
    unpack=_unpack,
    patch_size=1,
    lora_targets={"transformer": ("to_q", "to_k", "to_v", "to_out.0")},
    lora_mlp={"transformer": ("ff.net.0.proj", "ff.net.2")},
    lora_blocks={"transformer": ("transformer_blocks",)},
    layer_names={"transformer": DIFFUSERS_NAMES_WITHOUT_ALPHA},
    latent_bytes_per_pixel=128 * 4 / _PIXELS_PER_CELL**2,
    caption_bytes=_NUM_TOKENS * (4096 * 4 + 8),
    typical_bytes=28.4e9,
    published=PublishedModel(
        denoiser=Component("diffusers.LTXVideoTransformer3DModel"),
        vae=Component("diffusers.AutoencoderKLLTXVideo"),
        text_encoders=((T5_XXL, _NUM_TOKENS),),
        text={"prompt_embeds": (_NUM_TOKENS, 4096), "prompt_attention_mask": (_NUM_TOKENS,)},
        side=1024,
    ),
    distilled={"LTX-Video, distilled": "the dev models"},
)
