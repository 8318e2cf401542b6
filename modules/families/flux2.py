"""FLUX.2: a flow transformer whose tokens are normalized 2 x 2 patches of latents.

dev has Mistral 3 as text encoder and takes a guidance scale; for klein see flux2_klein.py. Black Forest Labs 2025.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from modules.families.conditions import References
from modules.families.Family import DenoiserCall, Family
from modules.families.LayerNames import LayerNames
from modules.families.packing import token_positions
from modules.families.patched_vae import pack_cells, patch_2x2, patched_codec, unpack_cells, unpatch_2x2
from modules.families.PublishedModel import Component, PublishedModel
from modules.families.TextEncoding import TextEncoding

if TYPE_CHECKING:
    from torch import Tensor

_BLOCK = "transformer_blocks.{}."
_IMAGE = tuple(f"{_BLOCK}attn.{name}" for name in ("to_q", "to_k", "to_v"))
_TEXT = tuple(f"{_BLOCK}attn.{name}" for name in ("add_q_proj", "add_k_proj", "add_v_proj"))
_NAMES = LayerNames(  # of Black Forest Labs' own files, where double blocks have fused projections
    "lora_unet_",
    flat=True,
    names={
        f"{_BLOCK}attn.to_out.0": "double_blocks.{}.img_attn.proj",
        f"{_BLOCK}attn.to_add_out": "double_blocks.{}.txt_attn.proj",
        f"{_BLOCK}ff.linear_in": "double_blocks.{}.img_mlp.0",
        f"{_BLOCK}ff.linear_out": "double_blocks.{}.img_mlp.2",
        f"{_BLOCK}ff_context.linear_in": "double_blocks.{}.txt_mlp.0",
        f"{_BLOCK}ff_context.linear_out": "double_blocks.{}.txt_mlp.2",
        f"single_{_BLOCK}attn.to_qkv_mlp_proj": "single_blocks.{}.linear1",
        f"single_{_BLOCK}attn.to_out": "single_blocks.{}.linear2",
    },
    fused={_IMAGE: "double_blocks.{}.img_attn.qkv", _TEXT: "double_blocks.{}.txt_attn.qkv"},
)


def flux2_inputs(call: DenoiserCall) -> dict[str, Any]:
    import torch

    text = call.text_tensor("prompt_embeds")
    tokens, positions = [call.latents], [_positions(call.shape, 0, like=call.timestep)]
    for number, reference in enumerate(call.given.get("references", ()), start=1):
        tokens.append(pack_cells(reference))
        positions.append(_positions(reference.shape, 10 * number, like=call.timestep))
    text_positions = torch.nn.functional.pad(torch.arange(text.shape[1], device=text.device)[:, None], (3, 0))
    return {
        "hidden_states": torch.cat(tokens, dim=1),
        "timestep": call.timestep / 1000,
        "guidance": call.guidance if call.denoiser.config.guidance_embeds else None,
        "encoder_hidden_states": text,
        "txt_ids": text_positions,
        "img_ids": torch.cat(positions),
    }


def _positions(shape: tuple[int, ...], image: int, like: Tensor) -> Tensor:
    """[N, 4]: number of the image (0 for the noised one), row and column of each token; the last is for text."""
    import torch

    height, width = shape[-2:]
    positions = torch.nn.functional.pad(token_positions(height, width, like=like), (0, 1))
    positions[:, 0] = image
    return positions


FLUX2_DEV_MODEL = PublishedModel(
    denoiser=Component("diffusers.Flux2Transformer2DModel"),
    vae=Component("diffusers.AutoencoderKLFlux2"),
    text_encoders=((Component("transformers.Mistral3ForConditionalGeneration", {}, "Mistral3Config"), 512),),
    text={"prompt_embeds": (512, 15360)},
    side=1024,
)

FLUX2_DEV = Family(
    name="flux2_dev",
    label="FLUX.2 dev",
    pipeline="Flux2Pipeline",
    denoisers=("transformer",),
    text=TextEncoding(
        outputs=("prompt_embeds", None),
        encoders=("text_encoder",),
        tokenizers=("tokenizer",),
        options={"max_sequence_length": 512},
        layers_read=30,
    ),
    objective="flow",
    align=16,
    codec=patched_codec(patch_2x2, unpatch_2x2),
    inputs=flux2_inputs,
    pack=pack_cells,
    unpack=unpack_cells,
    patch_size=1,
    takes_guidance=True,
    conditions=(References(10),),
    output=lambda call, output: output[:, : call.latents.shape[1]],
    can_train_vae=True,
    lora_targets={
        "transformer": (
            *(f"attn.{name}" for name in ("to_q", "to_k", "to_v", "to_out.0")),
            *(f"attn.{name}" for name in ("add_q_proj", "add_k_proj", "add_v_proj", "to_add_out")),
            "attn.to_qkv_mlp_proj",  # of single blocks, whose attention and feed-forward layers are one
            "attn.to_out",
        )
    },
    lora_mlp={"transformer": ("ff.linear_in", "ff.linear_out", "ff_context.linear_in", "ff_context.linear_out")},
    lora_blocks={"transformer": ("transformer_blocks", "single_transformer_blocks")},
    latent_bytes_per_pixel=128 * 4 / 16**2,
    caption_bytes=512 * 15360 * 4,
    typical_bytes=226e9,
    layer_names={"transformer": _NAMES},
    partly_unused=("text_encoder",),  # the layers above those that the denoiser reads
    further_classes={"tokenizer": ("transformers.AutoProcessor",)},
    published=FLUX2_DEV_MODEL,
    remarks="""Its processor of texts and images, in place of a tokenizer, loads only with the package
    `torchvision`.""",
)
