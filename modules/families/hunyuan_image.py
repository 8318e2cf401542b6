"""HunyuanImage 2.1: a flow transformer on a 32x autoencoder, with Qwen 2.5 VL, and ByT5 for text that is to be drawn.

Tencent 2025. Only the quoted parts of a prompt pass through ByT5, letter by letter. Of the two published models it is
the one that needs guidance: the other is distilled to draw in a few steps, each of which also takes its end.
"""

from __future__ import annotations

import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

from modules.config.errors import UserError
from modules.families.Family import DenoiserCall, Family
from modules.families.hunyuan_names import HUNYUAN_COMFYUI_NAMES
from modules.families.lora_parts import JOINT_ATTENTION, JOINT_MLP, LOADED_BY_MODEL, SINGLE_MLP
from modules.families.PublishedModel import GLYPH_BYT5, QWEN_2_5_VL, Component, PublishedModel
from modules.families.TextEncoding import TextEncoding

if TYPE_CHECKING:
    from diffusers.models.modeling_utils import ModelMixin
    from diffusers.pipelines.pipeline_utils import DiffusionPipeline

_NUM_TOKENS, _NUM_LETTERS = 1000, 128  # of every text
_BOTH = _NUM_TOKENS + _NUM_LETTERS
_INSTRUCTION = 34  # tokens before each prompt, which are cut off


def _inputs(call: DenoiserCall) -> dict[str, Any]:
    return {
        "hidden_states": call.latents,
        "timestep": call.timestep,
        "encoder_hidden_states": call.text["prompt_embeds"],
        "encoder_attention_mask": call.text_tensor("prompt_embeds_mask").to(call.latents.device),
        "encoder_hidden_states_2": call.text.get("prompt_embeds_2"),
        "encoder_attention_mask_2": call.text.get("prompt_embeds_mask_2"),
    }


def _adapt(denoiser: ModelMixin) -> None:
    """Refuses the distilled model, and corrects a fault of diffusers 0.42: it can't be trained with checkpointing.

    Its blocks get their masks by name, which diffusers' own checkpoint function does not take.
    """
    from torch.utils.checkpoint import checkpoint

    if denoiser.config.use_meanflow:
        raise UserError(
            "model.base: the distilled HunyuanImage 2.1 can't be trained, because that would undo its few-step "
            "sampling; choose the model that is not distilled."
        )
    enable, by_torch = type(denoiser).enable_gradient_checkpointing, partial(checkpoint, use_reentrant=False)
    itself: Any = weakref.proxy(denoiser)  # or its memory would only be freed by the garbage collector
    vars(denoiser)["enable_gradient_checkpointing"] = lambda gradient_checkpointing_func=None: enable(
        itself, gradient_checkpointing_func or by_torch
    )


def _call_attributes(pipe: DiffusionPipeline, width: int | None, height: int | None, guidance: float) -> dict[str, Any]:
    """The pipeline takes the guidance scale from a component, of which it has another for prompts with quoted text."""
    from diffusers import AdaptiveProjectedMixGuidance

    starts = {"guider": 5, "ocr_guider": 38}  # the steps after which the model's authors project the guidance
    return {
        name: AdaptiveProjectedMixGuidance(guidance_scale=guidance, adaptive_projected_guidance_start_step=start)
        for name, start in starts.items()
    }


HUNYUAN_IMAGE = Family(
    name="hunyuan_image",
    label="HunyuanImage 2.1",
    pipeline="HunyuanImagePipeline",
    denoisers=("transformer",),
    text=TextEncoding(
        outputs=("prompt_embeds", "prompt_embeds_mask", "prompt_embeds_2", "prompt_embeds_mask_2"),
        encoders=("text_encoder", "text_encoder_2"),
        tokenizers=("tokenizer", "tokenizer_2"),
    ),
    objective="flow",
    align=32,
    inputs=_inputs,
    adapt=_adapt,
    call_attributes=_call_attributes,
    unused=("guider", "ocr_guider"),
    patch_size=1,
    lora_targets={"transformer": JOINT_ATTENTION},
    lora_mlp={"transformer": (*JOINT_MLP, *SINGLE_MLP)},
    lora_blocks={"transformer": ("transformer_blocks", "single_transformer_blocks")},
    layer_names={"transformer": HUNYUAN_COMFYUI_NAMES},
    latent_bytes_per_pixel=64 * 4 / 32**2,
    caption_bytes=_NUM_TOKENS * (3584 * 4 + 8) + _NUM_LETTERS * (1472 * 4 + 8),
    typical_bytes=105e9,
    # no layer after the one whose output is used, no vision tower, and no prompt without quotes reaches the second
    partly_unused=("text_encoder", "text_encoder_2"),
    published=PublishedModel(
        denoiser=Component("diffusers.HunyuanImageTransformer2DModel", {"text_embed_2_dim": 1472}),
        vae=Component(
            "diffusers.AutoencoderKLHunyuanImage",
            {
                "in_channels": 3,
                "out_channels": 3,
                "latent_channels": 64,
                "block_out_channels": (128, 256, 512, 512, 1024, 1024),
                "layers_per_block": 2,
                "spatial_compression_ratio": 32,
                "sample_size": 384,
                "scaling_factor": 0.75289,
            },
        ),
        text_encoders=((QWEN_2_5_VL, _NUM_TOKENS + _INSTRUCTION), (GLYPH_BYT5, _NUM_LETTERS)),
        # as one text, because the denoiser sorts the tokens of two by the values of their masks
        text={"prompt_embeds": (_BOTH, 3584), "prompt_embeds_mask": (_BOTH,)},
        side=2048,
    ),
    distilled={"HunyuanImage 2.1, distilled": "HunyuanImage 2.1; the distilled one can't be trained"},
    remarks=f"""Saved without the two components that set its guidance, because Chorus makes its own with that of each
    sample. In diffusers, set `pipe.guider` and `pipe.ocr_guider` to an `AdaptiveProjectedMixGuidance` each, the
    latter, for prompts with quoted text, with `adaptive_projected_guidance_start_step=38`. {LOADED_BY_MODEL}""",
)
