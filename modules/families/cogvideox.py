"""CogVideoX from text to video: a v-predicting transformer that takes frames first, and T5. Version 1.0: 2B and 5B.

Yang et al. 2024, arXiv 2408.06072. The VAE goes through a clip in chunks of 8 frames, the first with one more, and
normalizes over each chunk: the first latent frame of a clip is not that of its first frame alone. Its decoder makes the
right number of frames only of an odd number of latent ones, so a clip has a multiple of 8 frames and one more.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from modules.config.families import DENOISER_CONFIG
from modules.families.Codec import Codec
from modules.families.Family import DenoiserCall, Family
from modules.families.frames import decode_frames, encode_frames
from modules.families.PublishedModel import T5_XXL, Component, PublishedModel
from modules.families.TextEncoding import TextEncoding

if TYPE_CHECKING:
    from diffusers.models.modeling_utils import ModelMixin
    from torch import Tensor

_NUM_TOKENS = 226  # of every text


def latent_shape(vae: ModelMixin, width: int, height: int, num_frames: int) -> tuple[int, ...]:
    config, cell = vae.config, 2 ** (len(vae.config.block_out_channels) - 1)
    frames = (num_frames - 1) // config.temporal_compression_ratio + 1
    return config.latent_channels, frames, height // cell, width // cell


def _frames_first(latents: Tensor) -> Tensor:
    return latents.transpose(1, 2)


def inputs(call: DenoiserCall) -> dict[str, Any]:
    config = call.denoiser.config
    return {
        "hidden_states": call.latents,
        "timestep": call.timestep,
        "encoder_hidden_states": call.text["prompt_embeds"],
        "image_rotary_emb": _rotary(call) if config.use_rotary_positional_embeddings else None,  # 5B; 2B has sines
    }


def _rotary(call: DenoiserCall) -> tuple[Tensor, Tensor]:
    from diffusers import CogVideoXPipeline

    frames, height, width = call.shape[2:]
    pipe: Any = SimpleNamespace(transformer=call.denoiser, vae_scale_factor_spatial=1)  # sizes below are of latents
    embed = CogVideoXPipeline._prepare_rotary_positional_embeddings
    return embed(pipe, height, width, frames, call.latents.device)


def further_channels(index: Mapping[str, Any]) -> tuple[int, int]:
    """How many channels the transformer of a model_index.json sees beside the latents, and how many these have."""
    config = index.get(DENOISER_CONFIG, {})
    num_latents = config.get("out_channels", 16)
    return config.get("in_channels", 16) - num_latents, num_latents


def _other_model(index: Mapping[str, Any]) -> str:
    """What models are that name the pipeline of CogVideoX and see more; cogvideox_fun.py has those for control."""
    further, num_latents = further_channels(index)
    if index.get("_class_name") != "CogVideoXPipeline" or not further:
        return ""
    return "CogVideoX-Fun Control" if further == num_latents else "CogVideoX-Fun InP"


COGVIDEOX = Family(
    name="cogvideox",
    label="CogVideoX",
    pipeline="CogVideoXPipeline",
    accepts=lambda index: not index.get(DENOISER_CONFIG, {}).get("patch_size_t"),
    other_model=_other_model,
    denoisers=("transformer",),
    text=TextEncoding(
        outputs=("prompt_embeds", None),
        encoders=("text_encoder",),
        tokenizers=("tokenizer",),
        options={"max_sequence_length": _NUM_TOKENS},
    ),
    objective="ddpm",
    align=16,
    frame_step=8,
    frames_per_token=4,
    fps=8.0,
    codec=Codec(encode=encode_frames, decode=decode_frames, shape=latent_shape),
    inputs=inputs,
    pack=_frames_first,
    unpack=lambda packed, shape: _frames_first(packed),
    lora_targets={"transformer": ("to_q", "to_k", "to_v", "to_out.0")},
    lora_mlp={"transformer": ("ff.net.0.proj", "ff.net.2")},
    lora_blocks={"transformer": ("transformer_blocks",)},
    latent_bytes_per_pixel=16 * 4 / 8**2,
    caption_bytes=_NUM_TOKENS * 4096 * 4,
    typical_bytes=42e9,
    published=PublishedModel(
        denoiser=Component(  # 5B
            "diffusers.CogVideoXTransformer3DModel",
            {"num_attention_heads": 48, "num_layers": 42, "use_rotary_positional_embeddings": True},
        ),
        vae=Component(
            "diffusers.AutoencoderKLCogVideoX",
            {
                "down_block_types": ("CogVideoXDownBlock3D",) * 4,
                "up_block_types": ("CogVideoXUpBlock3D",) * 4,
                "block_out_channels": (128, 256, 256, 512),
                "layers_per_block": 3,
            },
        ),
        text_encoders=((T5_XXL, _NUM_TOKENS),),
        text={"prompt_embeds": (_NUM_TOKENS, 4096)},
        side=576,
    ),
    remarks="""Version 1.0, 2B and 5B. The VAE goes through a clip in chunks of 8 frames, the first with 9, so that the
    first latent frame depends on the frames after it.""",
)
