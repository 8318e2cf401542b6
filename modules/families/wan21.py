"""Wan 2.1, trained on images: a flow transformer for video, which sees an image as one frame, and UMT5.

Wan et al. 2025, arXiv 2503.20314.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from modules.families.Codec import Codec, Posterior
from modules.families.Family import DenoiserCall, Family
from modules.families.PublishedModel import Component, PublishedModel
from modules.families.TextEncoding import TextEncoding

if TYPE_CHECKING:
    from torch import Tensor, nn

ATTENTION = ("to_q", "to_k", "to_v", "to_out.0")
MLP = ("ffn.net.0.proj", "ffn.net.2")


def _stats(vae: nn.Module) -> tuple[Tensor, Tensor]:
    import torch

    mean, std = (
        torch.tensor(values).view(1, -1, 1, 1, 1) for values in (vae.config.latents_mean, vae.config.latents_std)
    )
    return mean, 1.0 / std


def _encode(vae: nn.Module, pixels_BCHW: Tensor) -> Posterior:
    return vae.encode(pixels_BCHW.unsqueeze(2)).latent_dist


def _decode(vae: nn.Module, raw_BCFHW: Tensor) -> Tensor:
    return vae.decode(raw_BCFHW, return_dict=False)[0].squeeze(2)


def _shape(vae: nn.Module, width: int, height: int, num_frames: int) -> tuple[int, ...]:
    config = vae.config
    frames = (num_frames - 1) // config.scale_factor_temporal + 1
    return config.z_dim, frames, height // config.scale_factor_spatial, width // config.scale_factor_spatial


def wan_inputs(call: DenoiserCall) -> dict[str, Any]:
    return {
        "hidden_states": call.latents,
        "timestep": call.timestep,
        "encoder_hidden_states": call.text["prompt_embeds"],
    }


WAN_21 = Family(
    name="wan21",
    label="Wan 2.1 (images)",
    pipeline="WanPipeline",
    accepts=lambda index: not index.get("boundary_ratio") and not index.get("expand_timesteps"),
    denoisers=("transformer",),
    text=TextEncoding(
        outputs=("prompt_embeds", None),
        encoders=("text_encoder",),
        tokenizers=("tokenizer",),
        options={"max_sequence_length": 512},
    ),
    objective="flow",
    align=16,
    codec=Codec(_stats, _encode, _decode, _shape),
    inputs=wan_inputs,
    call_options={"num_frames": 1},
    lora_targets={"transformer": ATTENTION},
    lora_mlp={"transformer": MLP},
    lora_blocks={"transformer": ("blocks",)},
    latent_bytes_per_pixel=16 * 4 / 8**2,
    caption_bytes=512 * 4096 * 4,
    typical_bytes=80e9,
    published=PublishedModel(
        denoiser=Component("diffusers.WanTransformer3DModel"),  # the 14B model, the larger of the two
        vae=Component("diffusers.AutoencoderKLWan"),
        text_encoders=(
            (
                Component(
                    "transformers.UMT5EncoderModel",
                    {"vocab_size": 256384, "d_model": 4096, "d_ff": 10240, "num_layers": 24, "num_heads": 64},
                    "UMT5Config",
                ),
                512,
            ),
        ),
        text={"prompt_embeds": (512, 4096)},
        side=1024,
    ),
)
