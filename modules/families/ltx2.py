"""LTX-2, trained on video without sound: of its two streams of transformer blocks, only the one for video is trained.

HaCohen et al. 2026, arXiv 2601.03233. The stream for video sees nothing of the other, as in Lightricks' own training
without sound; samples are made with both, as by the pipeline, and saved without their sound. A prompt is all hidden
states of Gemma 3 12B, which connectors, two small transformers, turn into one text for each stream; only that for video
is cached.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from modules.config.model_index import has_any
from modules.config.ResolutionShift import ResolutionShift
from modules.config.TrainingTimesteps import TrainingTimesteps
from modules.families.conditions import FirstFrame
from modules.families.Family import DenoiserCall
from modules.families.ltx_video import LTX_VIDEO
from modules.families.PublishedModel import GEMMA_3_12B, Component, PublishedModel
from modules.families.TextEncoding import TextEncoding

if TYPE_CHECKING:
    from torch import Tensor

_FPS, _NUM_TOKENS, _WIDTH = 24.0, 1024, 3840  # the last two of every text
_ATTENTION = ("to_q", "to_k", "to_v", "to_out.0")


def _connected(pipe: Any, outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    text, mask = outputs["prompt_embeds"], outputs["prompt_attention_mask"]
    text, _, mask = pipe.connectors(text, mask, padding_side="left")
    return {"prompt_embeds": text, "prompt_attention_mask": mask}


def _inputs(call: DenoiserCall) -> dict[str, Any]:
    frames, height, width = call.shape[2:]
    config, batch = call.denoiser.config, len(call.latents)
    width_of_stream = config.audio_num_attention_heads * config.audio_attention_head_dim  # from 2.3 on
    text_width = config.caption_channels if config.use_prompt_embeddings else width_of_stream
    return {
        "hidden_states": call.latents,
        "timestep": call.timestep if "first_given" not in call.given else call.token_timesteps(1),
        "sigma": call.timestep,
        "encoder_hidden_states": call.text["prompt_embeds"],
        "encoder_attention_mask": call.text["prompt_attention_mask"],
        "num_frames": frames,
        "height": height,
        "width": width,
        "fps": _FPS,
        "isolate_modalities": True,
        "audio_hidden_states": call.latents.new_zeros(batch, 1, config.audio_in_channels),
        "audio_timestep": call.timestep,
        "audio_encoder_hidden_states": call.latents.new_zeros(batch, 1, text_width),
        "audio_num_frames": 1,
    }


LTX_2 = replace(
    LTX_VIDEO,
    name="ltx2",
    label="LTX-2",
    pipeline="LTX2Pipeline",
    other_model=lambda index: "LTX-2.5" if has_any(index, "duration_head", "prompt_enhancer") else "",
    conditions=(FirstFrame("LTX2ImageToVideoPipeline"),),
    text=TextEncoding(
        outputs=("prompt_embeds", "prompt_attention_mask", None, None),
        encoders=("text_encoder",),
        tokenizers=("tokenizer",),
        connectors=("connectors",),
        select=_connected,
        trainable=False,
        options={"max_sequence_length": _NUM_TOKENS},
        at_once=1,
    ),
    fps=_FPS,
    inputs=_inputs,
    # Lightricks/LTX-2: packages/ltx-trainer/src/ltx_trainer/timestep_samplers.py, ShiftedLogitNormalTimestepSampler
    training_timesteps=TrainingTimesteps(shift=ResolutionShift(0.95, 2.05, 1024, 4096), uniform_share=0.1),
    call_options={
        "frame_rate": _FPS,
        # no further predictions for guidance, for which 2.0 and 2.3 have different defaults
        "stg_scale": 0.0,
        "modality_scale": 1.0,
        "guidance_rescale": 0.0,
        # for sound: as for video
        "audio_guidance_scale": None,
        "audio_stg_scale": None,
        "audio_modality_scale": None,
        "audio_guidance_rescale": None,
        "image_crf": 0,  # the first frame as it was trained, not compressed once more
    },
    # with the name of the attention, because those of the stream for sound have the same layers
    lora_targets={"transformer": tuple(f"{name}.{layer}" for name in ("attn1", "attn2") for layer in _ATTENTION)},
    partly_unused=("transformer",),
    caption_bytes=_NUM_TOKENS * (_WIDTH * 4 + 8),
    typical_bytes=135e9,
    further_classes={"text_encoder": ("transformers.Gemma4UnifiedForConditionalGeneration",)},
    published=PublishedModel(
        denoiser=Component("diffusers.LTX2VideoTransformer3DModel"),
        vae=Component(
            "diffusers.AutoencoderKLLTX2Video",
            {"spatial_compression_ratio": 32, "temporal_compression_ratio": 8, "decoder_causal": False},
        ),
        text_encoders=((GEMMA_3_12B, _NUM_TOKENS),),
        text={"prompt_embeds": (_NUM_TOKENS, _WIDTH), "prompt_attention_mask": (_NUM_TOKENS,)},
        connectors=(Component("diffusers.pipelines.ltx2.LTX2TextConnectors"),),
        side=1024,
    ),
    distilled={"LTX-2, distilled": "the dev models"},
    remarks="""Versions 2.0 and 2.3. It makes videos with sound, in two streams of layers that look at each other.
    Chorus trains the stream for video, by itself, as Lightricks' own trainer does without sound; LoRAs have no layers
    of the other stream, and a whole model is saved with it as it was. Sound can't be trained, because diffusers has no
    code that turns it into what the model's autoencoder takes. Samples are made with both streams and saved without the
    sound. Texts are all hidden states of Gemma 3 12B, 385 MB each. Chorus caches what the model's connectors make of
    them, 15 MB each in float32; the prompts of the samples are kept in system memory as they are. Samples have guidance
    by the negative prompt alone; the pipeline's further kinds, by skipped layers and by separated streams, are off.
    Those from an image take it as it is; diffusers by default compresses it with H.264 first.""",
)
