"""Cosmos-Predict2.5 from text or an image to video: Anima's kind of transformer, on the autoencoder of Wan 2.1.

NVIDIA 2025, arXiv 2511.00062. Its text is what all layers of Cosmos-Reason1, a Qwen 2.5 VL, put out, each normalized. A
frame that is given has a mark in a channel of its own, and a timestep near 0.
"""

from __future__ import annotations

from typing import Any

from modules.config.TrainingTimesteps import TrainingTimesteps
from modules.families.anima import ANIMA
from modules.families.conditions import FirstFrame
from modules.families.Family import DenoiserCall, Family
from modules.families.PublishedModel import QWEN_2_5_VL, Component, PublishedModel
from modules.families.TextEncoding import TextEncoding
from modules.families.wan21 import WAN_21, WAN_21_MODEL

_PIPELINE = "Cosmos2_5_PredictBasePipeline"
_NUM_TOKENS = 512  # of every text
_TEXT_WIDTH = 28 * 3584  # of all layers of the text encoder
_GIVEN = 1e-4  # the timestep of a given frame, of 1


def _inputs(call: DenoiserCall) -> dict[str, Any]:
    import torch

    latents, (batch, _, frames, height, width) = call.latents, call.shape
    given = torch.zeros(batch, 1, frames, 1, 1, dtype=torch.bool, device=latents.device)
    if (first_given := call.given.get("first_given")) is not None:
        given[:, 0, 0, 0, 0] = first_given
    timestep = (call.timestep / 1000).view(-1, 1, 1, 1, 1).expand(given.shape)
    return {
        "hidden_states": latents,
        "condition_mask": given.to(latents.dtype).expand(-1, -1, -1, height, width),
        "timestep": timestep.masked_fill(given, _GIVEN),
        "encoder_hidden_states": call.text["prompt_embeds"],
        "padding_mask": latents.new_zeros(1, 1, height, width),
    }


_ANIMA_MODEL = ANIMA.published
assert _ANIMA_MODEL is not None

COSMOS_PREDICT25 = Family(
    name="cosmos_predict25",
    label="Cosmos-Predict2.5",
    pipeline=_PIPELINE,
    denoisers=("transformer",),
    text=TextEncoding(
        outputs=("prompt_embeds", None),
        encoders=("text_encoder",),
        tokenizers=("tokenizer",),
        options={"max_sequence_length": _NUM_TOKENS},
        empty_prompt=" ",  # in place of the pipeline's description of bad videos, which would be learned
        at_once=4,
    ),
    objective="flow",
    align=16,
    frame_step=4,
    codec=WAN_21.codec,
    inputs=_inputs,
    adapt=ANIMA.adapt,
    conditions=(FirstFrame(_PIPELINE),),
    sampling_package="cosmos_guardrail",
    training_timesteps=TrainingTimesteps(shift=5.0),  # nvidia-cosmos/cosmos-predict2.5: text2world_model_rectified_flow
    lora_targets=ANIMA.lora_targets,
    lora_mlp=ANIMA.lora_mlp,
    lora_blocks=ANIMA.lora_blocks,
    original_names=ANIMA.layer_names["transformer"],
    takes_loras_of="anima",
    latent_bytes_per_pixel=WAN_21.latent_bytes_per_pixel,
    caption_bytes=_NUM_TOKENS * _TEXT_WIDTH * 4,
    typical_bytes=42e9,
    partly_unused=("text_encoder",),  # its vision tower and language head
    further_classes={"tokenizer": ("transformers.AutoTokenizer",)},
    published=PublishedModel(  # of the 2B model
        denoiser=Component(
            _ANIMA_MODEL.denoiser.class_name,
            {
                **_ANIMA_MODEL.denoiser.config,
                "in_channels": 17,
                "rope_scale": (1.0, 3.0, 3.0),
                "use_crossattn_projection": True,
                "crossattn_proj_in_channels": _TEXT_WIDTH,
                "encoder_hidden_states_channels": 1024,
            },
        ),
        vae=WAN_21_MODEL.vae,
        text_encoders=((QWEN_2_5_VL, _NUM_TOKENS),),
        text={"prompt_embeds": (_NUM_TOKENS, _TEXT_WIDTH)},
        side=960,
    ),
    remarks="""Training needs no further package. Samples need [`cosmos_guardrail`](formats.md#guardrails), which the
    license asks for: without it they are refused, and the presets make none. A caption takes 100 MB in the cache in
    bfloat16: the outputs of all layers for 512 tokens. Without a negative prompt, Chorus samples with an empty one,
    which dropped captions are, too, and not with the description of bad videos that is diffusers' default.""",
)
