"""HunyuanVideo from text to video: FLUX's double and single blocks on clips, with a Llama and CLIP's pooled output.

Kong et al. 2024, arXiv 2412.03603. The VAE normalizes over all frames and attends to those before, which takes too much
memory for long clips. From 17 frames on, it encodes and decodes them in overlapping tiles of 17 frames with blended
seams, as in diffusers' pipeline; the latents differ a bit from those of the whole clip.
"""

from __future__ import annotations

from typing import Any

from modules.families.Codec import Codec
from modules.families.Family import DenoiserCall, Family
from modules.families.frames import decode_frames, encode_frames, shape_by_ratios
from modules.families.hunyuan_names import HUNYUAN_NAMES
from modules.families.PublishedModel import CLIP_L, Component, PublishedModel
from modules.families.TextEncoding import TextEncoding

_MLP = ("ff.net.0.proj", "ff.net.2", "ff_context.net.0.proj", "ff_context.net.2", "proj_mlp", "proj_out")
_NUM_TOKENS = 256  # of every text, after the instruction in front of it
_NUM_INSTRUCTION_TOKENS = 95


def video_inputs(call: DenoiserCall) -> dict[str, Any]:
    guidance = None if call.guidance is None else (call.guidance * 1000).to(call.latents.dtype)
    return {
        "hidden_states": call.latents,
        "timestep": call.timestep,
        "encoder_hidden_states": call.text["prompt_embeds"],
        "encoder_attention_mask": call.text["prompt_attention_mask"],
        "pooled_projections": call.text["pooled_prompt_embeds"],
        "guidance": guidance if call.denoiser.config.guidance_embeds else None,
    }


HUNYUAN_VIDEO = Family(
    name="hunyuan_video",
    label="HunyuanVideo",
    pipeline="HunyuanVideoPipeline",
    denoisers=("transformer",),
    text=TextEncoding(
        outputs=("prompt_embeds", "pooled_prompt_embeds", "prompt_attention_mask"),
        encoders=("text_encoder", "text_encoder_2"),
        tokenizers=("tokenizer", "tokenizer_2"),
        options={"max_sequence_length": _NUM_TOKENS},
    ),
    objective="flow",
    align=16,
    frame_step=4,
    fps=24.0,
    codec=Codec(encode=encode_frames, decode=decode_frames, shape=shape_by_ratios),
    inputs=video_inputs,
    takes_guidance=True,
    lora_targets={
        "transformer": tuple(
            f"attn.{name}"
            for name in ("to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out")
        )
    },
    lora_mlp={"transformer": _MLP},
    lora_blocks={"transformer": ("transformer_blocks", "single_transformer_blocks")},
    partly_unused=("text_encoder",),  # an inner layer's output is used
    latent_bytes_per_pixel=16 * 4 / 8**2,
    caption_bytes=_NUM_TOKENS * (4096 * 4 + 8) + 768 * 4,
    typical_bytes=83e9,
    published=PublishedModel(
        denoiser=Component("diffusers.HunyuanVideoTransformer3DModel"),
        vae=Component("diffusers.AutoencoderKLHunyuanVideo"),
        text_encoders=(
            (
                Component(
                    "transformers.LlamaModel",
                    {"vocab_size": 128320, "intermediate_size": 14336, "num_key_value_heads": 8},
                    "LlamaConfig",
                ),
                _NUM_INSTRUCTION_TOKENS + _NUM_TOKENS,
            ),
            (CLIP_L, 77),
        ),
        text={
            "prompt_embeds": (_NUM_TOKENS, 4096),
            "pooled_prompt_embeds": (768,),
            "prompt_attention_mask": (_NUM_TOKENS,),
        },
        side=960,
    ),
    layer_names={"transformer": HUNYUAN_NAMES},
    remarks="""From 17 frames on, clips go through the VAE in tiles of 17 frames, one every 12, with blended seams, as
    in the pipeline, so that the first latent frame depends on the frames after it.""",
)
