"""LongCat-Image: a flow transformer on packed latents like FLUX.1, with Qwen 2.5 VL, whose texts are padded, unmasked.

Meituan 2025, arXiv 2512.07584. Quoted parts of a prompt are tokenized letter by letter, which the pipeline does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from modules.families.Family import DenoiserCall, Family
from modules.families.LayerNames import DIFFUSERS_FILE_WITHOUT_ALPHA
from modules.families.lora_parts import JOINT_ATTENTION, JOINT_MLP, LOADED_BY_MODEL, SINGLE_MLP
from modules.families.packing import pack_2x2, token_positions, unpack_2x2
from modules.families.PublishedModel import KL_VAE_16, QWEN_2_5_VL, Component, PublishedModel
from modules.families.TextEncoding import TextEncoding

if TYPE_CHECKING:
    from diffusers.models.modeling_utils import ModelMixin
    from torch import nn

NUM_TOKENS = 512  # of every text
_INSTRUCTION = 36  # about that many tokens around it, which are cut off


def _inputs(call: DenoiserCall) -> dict[str, Any]:
    import torch

    num_tokens = call.text_tensor("prompt_embeds").shape[1]
    references = call.given.get("references", ())
    text = token_positions(1, num_tokens, like=call.timestep)
    text[:, 1] = text[:, 2]  # along the diagonal of the image
    positions = []
    for number, shape in enumerate((call.shape, *(reference.shape for reference in references)), start=1):
        image = token_positions(shape[-2] // 2, shape[-1] // 2, like=call.timestep) + num_tokens
        image[:, 0] = number
        positions.append(image)
    return {
        "hidden_states": torch.cat([call.latents, *map(pack_2x2, references)], dim=1),
        "timestep": call.timestep / 1000,
        "encoder_hidden_states": call.text["prompt_embeds"],
        "txt_ids": text,
        "img_ids": torch.cat(positions),
    }


def _adapt(denoiser: ModelMixin) -> None:
    """Corrects a fault of diffusers 0.42: the pipeline encodes a missing negative prompt once for the whole batch."""
    denoiser.register_forward_pre_hook(_with_text_for_each, with_kwargs=True)


def _with_text_for_each(
    denoiser: nn.Module, args: tuple[Any, ...], arguments: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    text = arguments["encoder_hidden_states"].expand(len(arguments["hidden_states"]), -1, -1)
    return args, {**arguments, "encoder_hidden_states": text}


LONGCAT_IMAGE = Family(
    name="longcat_image",
    label="LongCat-Image",
    pipeline="LongCatImagePipeline",
    denoisers=("transformer",),
    text=TextEncoding(
        outputs=("prompt_embeds", None),
        encoders=("text_encoder",),
        tokenizers=("tokenizer",),
        trainable=False,  # the pipeline detaches their output
    ),
    objective="flow",
    align=16,
    inputs=_inputs,
    pack=pack_2x2,
    unpack=unpack_2x2,
    adapt=_adapt,
    call_options={"enable_prompt_rewrite": False},  # draw the prompt as it is
    unused=("text_processor",),  # only rewriting needs it
    can_train_vae=True,
    lora_targets={"transformer": JOINT_ATTENTION},
    lora_mlp={"transformer": (*JOINT_MLP, *SINGLE_MLP)},
    lora_blocks={"transformer": ("transformer_blocks", "single_transformer_blocks")},
    layer_names={"transformer": DIFFUSERS_FILE_WITHOUT_ALPHA},
    latent_bytes_per_pixel=16 * 4 / 8**2,
    caption_bytes=NUM_TOKENS * 3584 * 4,
    typical_bytes=58.7e9,
    published=PublishedModel(
        denoiser=Component("diffusers.LongCatImageTransformer2DModel", {"num_layers": 10, "num_single_layers": 20}),
        vae=KL_VAE_16,
        text_encoders=((QWEN_2_5_VL, NUM_TOKENS + _INSTRUCTION),),
        text={"prompt_embeds": (NUM_TOKENS, 3584)},
        side=1024,
    ),
    remarks=f"""Saved without the processor that rewrites prompts, which Chorus never does. diffusers needs it named:
    `from_pretrained(folder, text_processor=None)`; sample with `enable_prompt_rewrite=False`.
    {LOADED_BY_MODEL}""",
)
