"""Bria FIBO: a flow transformer like FLUX.1, whose blocks each see another layer of SmolLM3, on the VAE of Wan 2.2.

Bria 2025, arXiv 2511.06876: trained on long captions in JSON. Each latent cell is a token.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from modules.families.Family import DenoiserCall, Family
from modules.families.flux1 import FLUX1
from modules.families.packing import token_positions
from modules.families.patched_vae import pack_cells, unpack_cells
from modules.families.PublishedModel import Component, PublishedModel
from modules.families.TextEncoding import TextEncoding
from modules.families.wan22 import WAN_22_5B

if TYPE_CHECKING:
    from torch import Tensor

_WIDTH, _STATES = 2048, 37  # of SmolLM3: its hidden states are the embeddings and the outputs of 36 layers


def _select(pipe: Any, outputs: Mapping[str, Any]) -> dict[str, Any]:
    """With all hidden states as one tensor [B, length, states, width]."""
    import torch

    return {**outputs, "hidden_states": torch.stack(list(outputs["hidden_states"]), dim=2)}


def _inputs(call: DenoiserCall) -> dict[str, Any]:
    text, config = call.text_tensor("prompt_embeds"), call.denoiser.config
    blocks = config.num_layers + config.num_single_layers
    states = list(call.text_tensor("hidden_states").unbind(2))[-blocks:]
    height, width = call.shape[-2:]
    return {
        "hidden_states": call.latents,
        "timestep": call.timestep,
        "encoder_hidden_states": text,
        "text_encoder_layers": states + states[-1:] * (blocks - len(states)),
        "joint_attention_kwargs": _mask(call),
        "txt_ids": text.new_zeros(text.shape[1], 3),
        "img_ids": token_positions(height, width, like=call.latents),
    }


def _mask(call: DenoiserCall) -> dict[str, Tensor]:
    """Of the keys in attention, text and then image; none if no text is padded."""
    import torch

    if "mask" not in call.text:
        return {}
    text = call.text_tensor("mask")
    image = text.new_ones(call.latents.shape[:2])
    return {"attention_mask": torch.cat([text, image], dim=1)[:, None, None]}


def _pack(latents_BCFHW: Tensor) -> Tensor:
    return pack_cells(latents_BCFHW.squeeze(2))


def _of_transformer(names: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    return {"transformer": names["transformer"]}


assert WAN_22_5B.published is not None

BRIA_FIBO = Family(
    name="bria_fibo",
    label="Bria FIBO",
    pipeline="BriaFiboPipeline",
    denoisers=("transformer",),
    text=TextEncoding(
        outputs=("prompt_embeds", None, None, None, None, "hidden_states", None),
        encoders=("text_encoder",),
        tokenizers=("tokenizer",),
        options={"guidance_scale": 1.0, "max_sequence_length": 3000},  # 1: without the unconditional half
        select=_select,
        collate="pad",
        padded=("prompt_embeds", "hidden_states"),
        mask="mask",
        reads_denoiser=True,
    ),
    objective="flow",
    align=16,
    codec=WAN_22_5B.codec,
    inputs=_inputs,
    pack=_pack,
    unpack=unpack_cells,
    patch_size=1,
    lora_targets=_of_transformer(FLUX1.lora_targets),
    lora_mlp=_of_transformer(FLUX1.lora_mlp),
    lora_blocks=_of_transformer(FLUX1.lora_blocks),
    latent_bytes_per_pixel=48 * 4 / 16**2,
    caption_bytes=1000 * (_STATES + 2) * _WIDTH * 4,  # for a caption of about 1000 tokens
    typical_bytes=48.4e9,
    further_classes={"tokenizer": ("transformers.AutoTokenizer",)},
    published=PublishedModel(
        denoiser=Component(
            "diffusers.BriaFiboTransformer2DModel", {"in_channels": 48, "num_layers": 8, "num_single_layers": 38}
        ),
        vae=WAN_22_5B.published.vae,
        text_encoders=((Component("transformers.SmolLM3ForCausalLM", config_class="SmolLM3Config"), 1000),),
        text={"prompt_embeds": (1000, 2 * _WIDTH), "hidden_states": (1000, _STATES, _WIDTH)},
        side=1024,
    ),
    remarks="""Trained on long captions in JSON: write captions and prompts like them. The model asks to
    accept its license on its page first.""",
)
