"""Kandinsky 6 from text or an image to video with sound: two streams, for video and for sound, on HunyuanVideo's VAE.

Kandinsky Lab 2026, arXiv 2610.05608. Both streams have the same timestep, and that for video does without the other. A
first frame that is given stands, without noise, behind the latents: at the time of the first ones, with a mark.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from modules.families.conditions import FirstFrame
from modules.families.Family import DenoiserCall, Family
from modules.families.kandinsky5_video import KANDINSKY5_VIDEO
from modules.families.latents import encode_pixels
from modules.families.lora_parts import LOADED_BY_MODEL
from modules.families.PublishedModel import CLIP_L, QWEN_2_5_VL, Component, PublishedModel
from modules.families.sound import mono_sound, noised_sound
from modules.families.TextEncoding import TextEncoding

if TYPE_CHECKING:
    from torch import Tensor

_PIPELINE = "Kandinsky6TI2VAPipeline"
_FPS = 24.0
_NUM_TOKENS, _INSTRUCTION = 1024, 129  # of every text, after the instruction before it, which is cut off
_ATTENTION = tuple(
    f"{attention}.{name}"
    for attention in ("attn", "self_attention", "cross_attention", "va_cross_attention", "av_cross_attention")
    for name in ("to_query", "to_key", "to_value", "out_layer")
)
_VIDEO = {"model_dim": 1792, "ff_dim": 7168, "time_dim": 512, "num_text_blocks": 2, "num_visual_blocks": 32}
_SOUND = {"model_dim_a": 896, "ff_dim_a": 3584, "in_audio_dim": 40, "out_audio_dim": 40}
_KIND = {"ca_rope": True, "cross_gates": True, "fix_modulation": True, "visual_token_type_num_embeddings": 2}


def _inputs(call: DenoiserCall) -> dict[str, Any]:
    import torch

    latents, sound, token_types, places = call.latents, noised_sound(call), None, None  # latents: [B, F, H, W, C]
    batch, frames, height, width = latents.shape[:4]
    if (first := call.beside("first_frame")) is not None:
        latents = torch.cat([latents, first.movedim(1, -1)], 1)
        token_types = torch.zeros(batch, frames + 1, dtype=torch.long, device=latents.device)
        token_types[:, -1] = 1
        time, *cells = (torch.arange(n, device=latents.device) for n in (frames, height // 2, width // 2))
        places = torch.cat([time, time[:1]]), *cells
    if call.denoiser.config.visual_cond:
        mark = torch.zeros_like(latents[..., :1])
        mark[:, frames:] = 1
        latents = torch.cat([latents, torch.zeros_like(latents), mark], -1)
    return {
        "hidden_states": latents,
        "audio_hidden_states": None if sound is None else sound[:, 0],
        "encoder_hidden_states": call.text["prompt_embeds"],
        "pooled_projections": call.text["pooled_prompt_embeds"],
        "encoder_attention_mask": call.text["prompt_attention_mask"],
        "timestep": call.timestep,
        "visual_rope_pos": places,
        "visual_token_type_ids": token_types,
    }


def _with_mask(pipe: Any, outputs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    import torch

    text, mask = outputs["prompt_embeds"], outputs["prompt_attention_mask"]
    if mask is None:  # as the pipeline leaves it where no text is padded
        mask = torch.ones(text.shape[:2], dtype=torch.bool, device=text.device)
    return {**outputs, "prompt_attention_mask": mask}


KANDINSKY6 = Family(
    name="kandinsky6",
    label="Kandinsky 6",
    pipeline=_PIPELINE,
    denoisers=("transformer",),
    text=TextEncoding(
        outputs=("prompt_embeds", "pooled_prompt_embeds", "prompt_attention_mask", None, None, None),
        encoders=("text_encoder", "text_encoder_2"),
        tokenizers=("tokenizer", "tokenizer_2"),
        options={"max_sequence_length": _NUM_TOKENS},
        empty_prompt=" ",  # in place of the pipeline's description of bad videos, which would be learned
        select=_with_mask,
    ),
    objective="flow",
    align=16,
    frame_step=4,
    fps=_FPS,
    codec=KANDINSKY5_VIDEO.codec,
    inputs=_inputs,
    output=lambda call, output: output[:, : call.shape[2]],  # without the first frame behind the latents
    pack=KANDINSKY5_VIDEO.pack,
    unpack=KANDINSKY5_VIDEO.unpack,
    conditions=(FirstFrame(_PIPELINE, beside=True, encode=encode_pixels), mono_sound(_FPS)),
    sound_output=lambda call, output: output[:, None],
    unsupported=lambda config: "the distilled Kandinsky 6" if config.get("out_audio_dim", 40) > 40 else "",
    call_options={"frame_rate": _FPS},
    lora_targets={"transformer": _ATTENTION},
    lora_mlp={"transformer": ("feed_forward.net.0.proj", "feed_forward.net.2")},
    lora_blocks={"transformer": tuple(f"{kind}_transformer_blocks" for kind in ("video_text", "audio_text", "visual"))},
    unquantized={"transformer": tuple(f"{kind}_modulation" for kind in ("text", "visual", "va", "av"))},
    latent_bytes_per_pixel=KANDINSKY5_VIDEO.latent_bytes_per_pixel,
    caption_bytes=(_NUM_TOKENS * 3584 + 768) * 4 + _NUM_TOKENS,
    typical_bytes=49e9,
    partly_unused=("text_encoder", "transformer"),  # its vision tower and language head; of the stream for sound
    distilled={"Kandinsky 6, distilled": "the models that are not; the distilled ones can't be trained"},
    published=PublishedModel(  # of the Lite model
        Component("diffusers.Kandinsky6Transformer3DModel", {"axes_dims": (16, 24, 24), **_VIDEO, **_SOUND, **_KIND}),
        Component("diffusers.AutoencoderKLHunyuanVideo"),
        ((QWEN_2_5_VL, _NUM_TOKENS + _INSTRUCTION), (CLIP_L, 77)),
        {"prompt_embeds": (_NUM_TOKENS, 3584), "pooled_prompt_embeds": (768,), "prompt_attention_mask": (_NUM_TOKENS,)},
        side=640,
    ),
    remarks=f"""It makes videos with sound. Clips with an audio track at 24 frames per second train both, with
    `loss.sound_weight`; all others train the stream for video alone. {LOADED_BY_MODEL}""",
)
