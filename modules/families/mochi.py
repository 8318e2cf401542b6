"""Mochi 1 from text to video: a flow transformer whose time runs from noise to data, and T5.

Genmo 2024, https://github.com/genmoai/mochi. The VAE takes a clip as a whole: pieces would give other latents.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from modules.families.Codec import Codec
from modules.families.Family import DenoiserCall, Family
from modules.families.frames import channel_stats, decode_frames, encode_frames, shape_by_ratios
from modules.families.LayerNames import LayerNames
from modules.families.PublishedModel import T5_XXL, Component, PublishedModel
from modules.families.TextEncoding import TextEncoding

if TYPE_CHECKING:
    from torch import Tensor

_NUM_TOKENS = 256  # of every text
_OPTIONS = {"max_sequence_length": _NUM_TOKENS}


def _stats(vae: Any) -> tuple[Tensor, Tensor]:
    mean, scale = channel_stats(vae)
    return mean, vae.config.scaling_factor * scale


def _inputs(call: DenoiserCall) -> dict[str, Any]:
    return {
        "hidden_states": call.latents,
        "timestep": 1000 - call.timestep,
        "encoder_hidden_states": call.text["prompt_embeds"],
        "encoder_attention_mask": call.text["prompt_attention_mask"],
    }


_BLOCK = "transformer_blocks.{}."
_STREAMS = (("x", "to_{}", "to_out.0", "ff"), ("y", "add_{}_proj", "to_add_out", "ff_context"))
_NAMES = LayerNames(  # of its makers' and ComfyUI's models, which have fused projections
    "diffusion_model.",
    names={
        f"{_BLOCK}{ours}": f"blocks.{{}}.{theirs}"
        for stream, _, out, mlp in _STREAMS
        for ours, theirs in (
            (f"attn1.{out}", f"attn.proj_{stream}"),
            (f"{mlp}.net.0.proj", f"mlp_{stream}.w1"),
            (f"{mlp}.net.2", f"mlp_{stream}.w2"),
        )
    }
    | {
        f"{_BLOCK}norm1.linear": "blocks.{}.mod_x",
        f"{_BLOCK}norm1_context.linear": "blocks.{}.mod_y",
        f"{_BLOCK}norm1_context.linear_1": "blocks.{}.mod_y",  # of the last block
    },
    fused={
        tuple(f"{_BLOCK}attn1.{projection.format(letter)}" for letter in "qkv"): f"blocks.{{}}.attn.qkv_{stream}"
        for stream, projection, _, _ in _STREAMS
    },
    also={"blocks.47.mod_y": f"{_BLOCK}norm1_context.linear_1".format(47)},
    swapped=tuple(f"{_BLOCK}{mlp}.net.0.proj" for *_, mlp in _STREAMS),  # theirs has the half behind SiLU first
    folds_alpha=True,
)

MOCHI = Family(
    name="mochi",
    label="Mochi 1",
    pipeline="MochiPipeline",
    denoisers=("transformer",),
    text=TextEncoding(
        outputs=("prompt_embeds", "prompt_attention_mask", None, None),
        encoders=("text_encoder",),
        tokenizers=("tokenizer",),
        options=_OPTIONS,
        # the same, but encoded apart: if the last prompt of a batch is empty, the pipeline may hide the tokens of all
        empty_options=_OPTIONS,
    ),
    objective="flow",
    align=16,
    frame_step=6,
    fps=30.0,
    min_sample_steps=2,
    codec=Codec(_stats, encode_frames, decode_frames, shape_by_ratios),
    inputs=_inputs,
    output=lambda call, output: -output,
    lora_targets={
        "transformer": (
            *("to_q", "to_k", "to_v", "to_out.0"),
            *("add_q_proj", "add_k_proj", "add_v_proj", "to_add_out"),
        )
    },
    lora_mlp={"transformer": ("ff.net.0.proj", "ff.net.2", "ff_context.net.0.proj", "ff_context.net.2")},
    lora_blocks={"transformer": ("transformer_blocks",)},
    layer_names={"transformer": _NAMES},
    latent_bytes_per_pixel=12 * 4 / 8**2,
    caption_bytes=_NUM_TOKENS * (4096 * 4 + 1),
    typical_bytes=61e9,
    published=PublishedModel(
        denoiser=Component("diffusers.MochiTransformer3DModel"),
        vae=Component("diffusers.AutoencoderKLMochi"),
        text_encoders=((T5_XXL, _NUM_TOKENS),),
        text={"prompt_embeds": (_NUM_TOKENS, 4096), "prompt_attention_mask": (_NUM_TOKENS,)},
        side=640,
    ),
)
