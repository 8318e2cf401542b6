"""Wan 2.1 from text to video: a flow transformer, which sees an image as a clip of one frame, and UMT5.

Wan et al. 2025, arXiv 2503.20314.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from modules.families.Codec import Codec
from modules.families.Family import DenoiserCall, Family
from modules.families.frames import channel_stats, decode_frames, encode_frames, encode_wan_pieces
from modules.families.LayerNames import LayerNames
from modules.families.PublishedModel import Component, PublishedModel, Variant
from modules.families.TextEncoding import TextEncoding

if TYPE_CHECKING:
    from diffusers.models.modeling_utils import ModelMixin

ATTENTION = ("to_q", "to_k", "to_v", "to_out.0")
MLP = ("ffn.net.0.proj", "ffn.net.2")
_NAMES = {"to_q": "q", "to_k": "k", "to_v": "v", "to_out.0": "o"}
WAN_NAMES = LayerNames(  # of its makers' files
    "diffusion_model.",
    names={
        **{f"blocks.{{}}.attn1.{ours}": f"blocks.{{}}.self_attn.{theirs}" for ours, theirs in _NAMES.items()},
        **{f"blocks.{{}}.attn2.{ours}": f"blocks.{{}}.cross_attn.{theirs}" for ours, theirs in _NAMES.items()},
        # of models that see the first frame through an image encoder
        "blocks.{}.attn2.add_k_proj": "blocks.{}.cross_attn.k_img",
        "blocks.{}.attn2.add_v_proj": "blocks.{}.cross_attn.v_img",
        "blocks.{}.ffn.net.0.proj": "blocks.{}.ffn.0",
        "blocks.{}.ffn.net.2": "blocks.{}.ffn.2",
    },
    also={
        "head.head": "proj_out",
        "text_embedding.0": "condition_embedder.text_embedder.linear_1",
        "text_embedding.2": "condition_embedder.text_embedder.linear_2",
        "time_embedding.0": "condition_embedder.time_embedder.linear_1",
        "time_embedding.2": "condition_embedder.time_embedder.linear_2",
        "time_projection.1": "condition_embedder.time_proj",
        "img_emb.proj.1": "condition_embedder.image_embedder.ff.net.0.proj",
        "img_emb.proj.3": "condition_embedder.image_embedder.ff.net.2",
    },
)


def _shape(vae: ModelMixin, width: int, height: int, num_frames: int) -> tuple[int, ...]:
    config = vae.config
    frames = (num_frames - 1) // config.scale_factor_temporal + 1
    return config.z_dim, frames, height // config.scale_factor_spatial, width // config.scale_factor_spatial


def wan_inputs(call: DenoiserCall) -> dict[str, Any]:
    return {
        "hidden_states": call.latents,
        "timestep": call.timestep,
        "encoder_hidden_states": call.text["prompt_embeds"],
    }


WAN_21_MODEL = PublishedModel(
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
)

WAN_21 = Family(
    name="wan21",
    label="Wan 2.1",
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
    codec=Codec(channel_stats, encode_frames, decode_frames, _shape, encode_wan_pieces),
    inputs=wan_inputs,
    frame_step=4,
    lora_targets={"transformer": ATTENTION},
    lora_mlp={"transformer": MLP},
    lora_blocks={"transformer": ("blocks",)},
    layer_names={"transformer": WAN_NAMES},
    latent_bytes_per_pixel=16 * 4 / 8**2,
    caption_bytes=512 * 4096 * 4,
    typical_bytes=80e9,
    further_classes={"tokenizer": ("transformers.AutoTokenizer",)},
    published=WAN_21_MODEL,
)

_1_3B = {"num_attention_heads": 12, "ffn_dim": 8960, "num_layers": 30}  # Wan-Video/Wan2.1: wan_t2v_1_3B.py
WAN_21_1_3B = Variant(
    "wan21_1_3b",
    "wan21",
    "Wan 2.1 1.3B",
    "Wan-AI/Wan2.1-T2V-1.3B-Diffusers",
    replace(WAN_21_MODEL, denoiser=Component("diffusers.WanTransformer3DModel", _1_3B)),
    typical_bytes=29e9,
)
