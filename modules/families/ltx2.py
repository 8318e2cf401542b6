"""LTX-2: two streams of transformer blocks, for video and for sound, which look at each other. With sound and without.

HaCohen et al. 2026, arXiv 2601.03233. Clips without an audio track are trained as in Lightricks' own training without
sound: the stream for video sees nothing of the other. A prompt is all hidden states of Gemma 3 12B, which connectors,
two small transformers, turn into one text for each stream; these are cached.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from modules.config.families import DENOISER_CONFIG
from modules.config.model_index import has_any
from modules.config.ResolutionShift import ResolutionShift
from modules.config.TrainingTimesteps import TrainingTimesteps
from modules.families.conditions import FirstFrame
from modules.families.Family import DenoiserCall
from modules.families.in_context import IN_CONTEXT, of_clip, video_inputs
from modules.families.ltx_video import LTX_VIDEO
from modules.families.mel_sound import mel_sound, stream_inputs
from modules.families.PublishedModel import GEMMA_3_12B, Component, PublishedModel
from modules.families.TextEncoding import TextEncoding

if TYPE_CHECKING:
    from torch import Tensor

_FPS, _NUM_TOKENS, _WIDTH = 24.0, 1024, 3840  # the last two of every text


def is_later(index: Mapping[str, Any]) -> bool:
    """Whether a model with LTX-2's pipeline is LTX-2.5, by any of its parts, of which not all need be there."""
    has_part = has_any(index, "duration_head", "prompt_enhancer") or "Gemma4" in str(index.get("text_encoder"))
    return has_part or not index.get(DENOISER_CONFIG, {}).get("ff_bias", True)


def _connected(pipe: Any, outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    text, mask = outputs["prompt_embeds"], outputs["prompt_attention_mask"]
    text, of_sound, mask = pipe.connectors(text, mask, padding_side="left")
    return {"prompt_embeds": text, "audio_prompt_embeds": of_sound, "prompt_attention_mask": mask}


def _inputs(call: DenoiserCall) -> dict[str, Any]:
    return {
        **stream_inputs(call),
        **video_inputs(call, _FPS),
        "sigma": call.timestep,
        "encoder_hidden_states": call.text["prompt_embeds"],
        "encoder_attention_mask": call.text["prompt_attention_mask"],
        **dict(zip(("num_frames", "height", "width"), call.shape[2:], strict=True)),
        "fps": _FPS,
    }


LTX_2 = replace(
    LTX_VIDEO,
    name="ltx2",
    label="LTX-2",
    pipeline="LTX2Pipeline",
    accepts=lambda index: not is_later(index),
    conditions=(FirstFrame("LTX2ImageToVideoPipeline"), IN_CONTEXT, mel_sound(_FPS)),
    output=of_clip,
    sound_output=lambda call, output: output[:, None],
    text=TextEncoding(
        outputs=("prompt_embeds", "prompt_attention_mask", None, None),
        encoders=("text_encoder",),
        tokenizers=("tokenizer",),
        connectors=("connectors",),
        select=_connected,
        version=2,  # with the text for sound
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
        **{f"audio_{name}": None for name in ("guidance_scale", "stg_scale", "modality_scale", "guidance_rescale")},
        "image_crf": 0,  # the first frame as it was trained, not compressed once more
    },
    lora_mlp={"transformer": tuple(f"{stream}ff.net.{n}" for stream in ("", "audio_") for n in ("0.proj", "2"))},
    partly_unused=("transformer",),  # of the stream for sound
    caption_bytes=_NUM_TOKENS * (2 * _WIDTH * 4 + 8),
    typical_bytes=135e9,
    published=PublishedModel(
        denoiser=Component("diffusers.LTX2VideoTransformer3DModel"),
        vae=Component(
            "diffusers.AutoencoderKLLTX2Video",
            {"spatial_compression_ratio": 32, "temporal_compression_ratio": 8, "decoder_causal": False},
        ),
        text_encoders=((GEMMA_3_12B, _NUM_TOKENS),),
        text={
            "prompt_embeds": (_NUM_TOKENS, _WIDTH),
            "audio_prompt_embeds": (_NUM_TOKENS, _WIDTH),
            "prompt_attention_mask": (_NUM_TOKENS,),
        },
        connectors=(Component("diffusers.pipelines.ltx2.LTX2TextConnectors"),),
        side=1024,
    ),
    distilled={"LTX-2, distilled": "the dev models"},
    remarks="""Versions 2.0 and 2.3. It makes videos with sound, in two streams of layers that look at each other. Clips
    with an audio track at 24 frames per second train both, with `loss.sound_weight`; all others train the stream for
    video, by itself, as Lightricks' own trainer does without sound. Beside [source clips](video.md#video-to-video), it
    trains in-context LoRAs. A LoRA has layers of both and of what is between them; where no clip has sound,
    `denoiser.exclude_layers: "*audio*"` leaves out those that learn nothing. Texts are all hidden states of Gemma 3
    12B, 385 MB each. Chorus caches what the model's connectors make of them, 31 MB each in float32; the prompts of the
    samples are kept in system memory as they are. Samples have their sound, and guidance by the negative prompt alone;
    the pipeline's further kinds, by skipped layers and by separated streams, are off. Those from an image take it as it
    is; diffusers by default compresses it with H.264 first.""",
)
