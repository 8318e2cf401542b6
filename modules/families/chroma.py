"""Chroma: FLUX.1's transformer without guidance embedding and CLIP, with modulations from a small network, and T5.

The denoiser sees one padding token of the text; all others are masked. Lodestone Rock 2025.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from modules.config.TrainingTimesteps import TrainingTimesteps
from modules.families.checkpointing import checkpoint_each
from modules.families.Family import DenoiserCall
from modules.families.flux1 import FLUX1, FLUX1_MODEL
from modules.families.LayerNames import DIFFUSERS_FILE_WITHOUT_ALPHA
from modules.families.packing import token_positions
from modules.families.PublishedModel import T5_XXL, Component, Variant
from modules.families.TextEncoding import TextEncoding

if TYPE_CHECKING:
    from diffusers.models.modeling_utils import ModelMixin
    from torch import nn

_Inputs = tuple[tuple[Any, ...], dict[str, Any]]


def _inputs(call: DenoiserCall) -> dict[str, Any]:
    import torch

    latents, text, mask = call.latents, call.text_tensor("prompt_embeds"), call.text_tensor("prompt_attention_mask")
    height, width = call.shape[-2:]
    return {
        "hidden_states": latents,
        "timestep": call.timestep / 1000,
        "encoder_hidden_states": text,
        "attention_mask": torch.cat([mask, mask.new_ones(latents.shape[:2])], dim=1),
        "txt_ids": text.new_zeros(text.shape[1], 3),
        "img_ids": token_positions(height // 2, width // 2, like=latents),
    }


def _adapt(denoiser: ModelMixin) -> None:
    """Corrects two faults of diffusers 0.42.

    The pipeline's mask of 0.0 and 1.0 is added to the attention's logits instead of masking (diffusers #13619), and
    with gradient checkpointing the single blocks get no mask.
    """
    blocks = [*denoiser.transformer_blocks, *denoiser.single_transformer_blocks]
    denoiser.register_forward_pre_hook(_with_bool_mask, with_kwargs=True)
    for block in blocks:
        block.attn.register_forward_pre_hook(_with_key_mask, with_kwargs=True)
    vars(denoiser)["enable_gradient_checkpointing"] = partial(checkpoint_each, blocks)


def _with_bool_mask(denoiser: nn.Module, args: tuple[Any, ...], arguments: dict[str, Any]) -> _Inputs:
    return args, {**arguments, "attention_mask": arguments["attention_mask"].bool()}


def _with_key_mask(attention: nn.Module, args: tuple[Any, ...], arguments: dict[str, Any]) -> _Inputs:
    """Masks keys alone: blocks also mask queries, which leaves rows without any key, whose softmax may be NaN."""
    mask = arguments["attention_mask"]  # bool[B, 1, queries, keys]; the last query is of the image
    return args, {**arguments, "attention_mask": mask[:, :, -1:]}


def _without_clip(parts: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    return {"transformer": parts["transformer"]}


CHROMA = replace(
    FLUX1,
    name="chroma",
    label="Chroma",
    pipeline="ChromaPipeline",
    file_mark=r"distilled_guidance_layer\.",
    text=TextEncoding(
        outputs=("prompt_embeds", None, "prompt_attention_mask", None, None, None),
        encoders=("text_encoder",),
        tokenizers=("tokenizer",),
        options={"max_sequence_length": 512},
    ),
    inputs=_inputs,
    adapt=_adapt,
    # lodestone-rock/flow: src/trainer/train_chroma.py, create_distribution
    training_timesteps=TrainingTimesteps(parabola=(2.0, 7.7)),
    takes_guidance=False,
    lora_targets=_without_clip(FLUX1.lora_targets),
    lora_mlp=_without_clip(FLUX1.lora_mlp),
    lora_blocks=_without_clip(FLUX1.lora_blocks),
    caption_bytes=512 * (4096 + 1) * 4,
    typical_bytes=55e9,
    published=replace(
        FLUX1_MODEL,
        denoiser=Component("diffusers.ChromaTransformer2DModel"),
        text_encoders=((T5_XXL, 512),),
        text={"prompt_embeds": (512, 4096), "prompt_attention_mask": (512,)},
    ),
    kohya_prefixes={},
    layer_names={"transformer": DIFFUSERS_FILE_WITHOUT_ALPHA},
    embedding_keys={"text_encoder": "t5xxl"},
    remarks="""A de-distilled FLUX.1 schnell. diffusers 0.42 does not mask the padding of its texts ([issue
    13619](https://github.com/huggingface/diffusers/issues/13619)). Chorus does, in training and sampling, so its
    samples differ slightly from those of a plain diffusers pipeline with the same files.""",
)

# the model before it was trained in high resolution, of the same sizes
CHROMA_BASE = Variant("chroma_base", "chroma", "Chroma1-Base", "lodestones/Chroma1-Base")
