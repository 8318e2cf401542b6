"""MiniMax H3: one flow transformer over a packed sequence of text, sound and video, and Qwen3-VL-32B. MiniMax 2026.

Its time runs from 0 (noise) to 1 and its output is negated. All rows of a sequence attend to each other without a mask,
and a forward pass takes one timestep for the video and one for the sound, so that samples go through it one by one.
"""

from __future__ import annotations

from typing import Any

from modules.families.chunked_vae import CHUNKED_CODEC, FRAMES_BEYOND, FRAMES_PER_CHUNK, LATENTS
from modules.families.conditions import Sound
from modules.families.Family import DenoiserCall, Family
from modules.families.LayerNames import LayerNames
from modules.families.packed_rows import SOUND_TAG, layout, pack_rows, unpack_rows
from modules.families.PublishedModel import QWEN_3_VL_32B, Component, PublishedModel
from modules.families.sound import encode_stereo
from modules.families.TextEncoding import TextEncoding

_SHIFT, _SOUND_SHIFT = 12.0, 3.0  # of MiniMax's schedules
_AUDIO = ("audio_vae",)
_NUM_TOKENS = 256  # of a caption of two hundred words, as MiniMax's prompts have
_ATTENTION = ("attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0")
_BLOCK = "transformer_blocks.{}."
_NAMES = LayerNames(  # of its makers' and ComfyUI's models, which have fused projections
    "diffusion_model.",
    names={
        f"{_BLOCK}attn.to_out.0": "blocks.{}.attn.out_proj",
        f"{_BLOCK}ff.net.0.proj": "blocks.{}.mlp.fc1",
        f"{_BLOCK}ff.net.2": "blocks.{}.mlp.fc2",
    },
    fused={tuple(f"{_BLOCK}attn.to_{name}" for name in "qkv"): "blocks.{}.attn.qkv_proj"},
    swapped=(f"{_BLOCK}ff.net.0.proj",),
)


def _inputs(call: DenoiserCall) -> dict[str, Any]:
    import torch

    text, sound = call.text_tensor("prompt_embeds"), call.given.get("sound")
    sigma = call.timestep / 1000
    base = sigma / (_SHIFT - (_SHIFT - 1) * sigma)  # which sampling shifts for both, differently
    of_sound = _SOUND_SHIFT * base / (1 + (_SOUND_SHIFT - 1) * base)
    if sound is None:
        sound = text.new_zeros(1, 2, 0, call.denoiser.config.audio_in_channels)
    else:
        sound = sound + of_sound.to(sound.dtype) * (call.given["sound_noise"] - sound)
    places = layout(text.shape[1], sound.shape[2], *call.shape[2:], device=text.device)
    return {
        **places,
        "hidden_states": call.latents,
        "audio_hidden_states": sound.flatten(1, 2),
        "encoder_hidden_states": text,
        "timestep": 1 - torch.cat([sigma, of_sound]),
        "timestep_indices": (places["token_tags"] == SOUND_TAG).long(),
    }


MINIMAX_H3 = Family(
    name="minimax_h3",
    label="MiniMax H3",
    pipeline="MiniMaxH3Pipeline",
    other_pipelines=("MiniMaxH3ModularPipeline",),
    denoisers=("transformer",),
    text=TextEncoding(
        ("prompt_embeds",),
        ("text_encoder",),
        ("tokenizer", "processor"),
        collate="group",
        trainable=False,
        at_once=1,
        empty_prompt=" ",
    ),
    objective="flow",
    align=32,
    codec=CHUNKED_CODEC,
    inputs=_inputs,
    output=lambda call, output: -output,
    pack=pack_rows,
    unpack=unpack_rows,
    conditions=(Sound(32000, lambda n: round(n / 24 * 40), encode_stereo, _AUDIO, _AUDIO, needed=True),),
    sound_output=lambda call, output: -output.unflatten(1, (2, -1)),
    takes_one_timestep=True,
    frame_step=FRAMES_PER_CHUNK,
    frame_rest=FRAMES_BEYOND,
    frame_latents=LATENTS,
    frames_per_token=4,
    fps=24.0,
    has_own_sampler=True,
    unused=("transformer_ref",),
    lora_targets={"transformer": _ATTENTION},
    lora_mlp={"transformer": ("ff.net.0.proj", "ff.net.2")},
    lora_blocks={"transformer": ("transformer_blocks",)},
    layer_names={"transformer": _NAMES},
    latent_bytes_per_pixel=24 * 4 / 16**2,
    caption_bytes=_NUM_TOKENS * 5120 * 4,
    typical_bytes=274e9,
    partly_unused=("transformer",),  # what reads and writes sound
    published=PublishedModel(
        denoiser=Component("diffusers.MiniMaxH3Transformer3DModel"),
        vae=Component("diffusers.AutoencoderKLMiniMaxH3"),
        text_encoders=((QWEN_3_VL_32B, _NUM_TOKENS),),
        text={"prompt_embeds": (_NUM_TOKENS, 5120)},
        side=768,
    ),
    file_mark=r"\bfinal_layer\.video_out\b",
    remarks="""Clips have 17n + 5 frames, from 22, at 24 per second; the model was made for 5 to 15 seconds, and also
    makes shorter ones and images. It makes sound, too, in the same sequence, and learns that of the clips, with
    `loss.sound_weight`; clips at another frame rate count as silent. Samples have their sound. Of its two
    transformers, Chorus trains `transformer`, which makes clips from text and keyframes, and neither downloads nor
    saves `transformer_ref`, which makes them from references. diffusers loads a LoRA into that with
    `load_into_transformer_ref=True`. The model is distilled to need no guidance or negative prompt, so that samples
    have none; long training brings back the need, so train no longer than it takes. diffusers counts one step more
    than Chorus: 50 there are the 49 of the presets. Qwen3-VL-32B makes a caption of 20 KB per token in float32.
    Prompts are passed as they are; MiniMax's have one paragraph for each shot, with what is heard.""",
)
