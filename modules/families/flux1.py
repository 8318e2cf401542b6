"""FLUX.1: a flow transformer on packed latents, with CLIP's pooled output and T5; dev also takes a guidance scale.

Black Forest Labs 2024; blocks and resolution-dependent timestep shift after Esser et al. 2024, arXiv 2403.03206.
Kontext (arXiv 2506.15742) sees a reference image as further tokens, marked by the first coordinate of their positions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from modules.families.conditions import References
from modules.families.Family import DenoiserCall, Family
from modules.families.flux_names import FLUX_NAMES
from modules.families.packing import pack_2x2, token_positions, unpack_2x2
from modules.families.PublishedModel import CLIP_L, KL_VAE_16, T5_XXL, Component, PublishedModel
from modules.families.TextEncoding import TextEncoding

if TYPE_CHECKING:
    from torch import Tensor


def _inputs(call: DenoiserCall) -> dict[str, Any]:
    import torch

    text = call.text_tensor("prompt_embeds")
    tokens, positions = [call.latents], [_positions(call.shape, 0, like=call.latents)]
    for number, reference in enumerate(call.given.get("references", ()), start=1):
        tokens.append(pack_2x2(reference))
        positions.append(_positions(reference.shape, number, like=call.latents))
    return {
        "hidden_states": torch.cat(tokens, dim=1),
        "timestep": call.timestep / 1000,
        "guidance": call.guidance if call.denoiser.config.guidance_embeds else None,
        "encoder_hidden_states": text,
        "pooled_projections": call.text["pooled_prompt_embeds"],
        "txt_ids": text.new_zeros(text.shape[1], 3),
        "img_ids": torch.cat(positions),
    }


def _positions(shape: tuple[int, ...], image: int, like: Tensor) -> Tensor:
    """[N, 3]: number of the image (0 for the noised one), row and column of each token."""
    positions = token_positions(shape[-2] // 2, shape[-1] // 2, like=like)
    positions[:, 0] = image
    return positions


FLUX1_MODEL = PublishedModel(
    denoiser=Component("diffusers.FluxTransformer2DModel", {"guidance_embeds": True}),
    vae=KL_VAE_16,
    text_encoders=((CLIP_L, 77), (T5_XXL, 512)),
    text={"prompt_embeds": (512, 4096), "pooled_prompt_embeds": (768,)},
    side=1024,
)

FLUX1 = Family(
    name="flux1",
    label="FLUX.1",
    pipeline="FluxPipeline",
    denoisers=("transformer",),
    text=TextEncoding(
        outputs=("prompt_embeds", "pooled_prompt_embeds", None),
        encoders=("text_encoder", "text_encoder_2"),
        tokenizers=("tokenizer", "tokenizer_2"),
        options={"max_sequence_length": 512},
    ),
    objective="flow",
    align=16,
    inputs=_inputs,
    pack=pack_2x2,
    unpack=unpack_2x2,
    takes_guidance=True,
    can_train_vae=True,
    lora_targets={
        "transformer": tuple(
            f"attn.{name}"
            for name in ("to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out")
        ),
        "text_encoder": ("q_proj", "k_proj", "v_proj", "out_proj"),
    },
    lora_mlp={
        "transformer": (
            "ff.net.0.proj",
            "ff.net.2",
            "ff_context.net.0.proj",
            "ff_context.net.2",
            "proj_mlp",
            "proj_out",
        ),
        "text_encoder": ("fc1", "fc2"),
    },
    lora_blocks={
        "transformer": ("transformer_blocks", "single_transformer_blocks"),
        "text_encoder": ("encoder.layers",),
    },
    latent_bytes_per_pixel=16 * 4 / 8**2,
    caption_bytes=(512 * 4096 + 768) * 4,
    typical_bytes=67.5e9,
    unused=("image_encoder", "feature_extractor"),
    published=FLUX1_MODEL,
    # as OneTrainer writes them and ComfyUI and diffusers read them; kohya's own scripts fuse queries, keys and values
    kohya_prefixes={"transformer": "lora_transformer", "text_encoder": "lora_te1"},
    original_names=FLUX_NAMES,
    kohya_version=lambda denoiser, scheduler: "flux1",
    embedding_keys={"text_encoder": "clip_l", "text_encoder_2": "t5xxl"},
    distilled={"FLUX.1 schnell": "FLUX.1 dev, or schnell with the adapter `ostris/FLUX.1-schnell-training-adapter`"},
    remarks="Of a LoRA in kohya's format, diffusers reads only the adapters of attention; it has a file of its own.",
)

FLUX1_KONTEXT = replace(
    FLUX1,
    name="flux1_kontext",
    label="FLUX.1 Kontext",
    pipeline="FluxKontextPipeline",
    conditions=(References(),),
    output=lambda call, output: output[:, : call.latents.shape[1]],
    call_options={"_auto_resize": False},  # references come in the size that training uses
)
