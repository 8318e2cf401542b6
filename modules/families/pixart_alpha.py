"""PixArt-alpha: the predecessor of PixArt-Sigma, with shorter texts; the model for 1024 pixels also takes the size.

Chen et al. 2023, arXiv 2310.00426. It has the autoencoder of Stable Diffusion 1.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from modules.families.Family import DenoiserCall
from modules.families.pixart_sigma import PIXART_SIGMA
from modules.families.PublishedModel import KL_VAE, T5_XXL, Component, PublishedModel

_PIXELS_PER_CELL = 8
_NUM_TOKENS = 120  # of every text


def _inputs(call: DenoiserCall) -> dict[str, Any]:
    import torch

    inputs = PIXART_SIGMA.inputs(call)
    if call.denoiser.config.sample_size != 128:  # as the pipeline tells the models apart
        return inputs
    height, width = (call.latents.new_full((len(call.latents), 1), n * _PIXELS_PER_CELL) for n in call.shape[-2:])
    sizes = {"resolution": torch.cat([height, width], dim=1), "aspect_ratio": height / width}
    return {**inputs, "added_cond_kwargs": sizes}


PIXART_ALPHA = replace(
    PIXART_SIGMA,
    name="pixart_alpha",
    label="PixArt-alpha",
    pipeline="PixArtAlphaPipeline",
    text=replace(PIXART_SIGMA.text, options={**PIXART_SIGMA.text.options, "max_sequence_length": _NUM_TOKENS}),
    inputs=_inputs,
    min_sample_steps=2,  # its pipeline takes a single step to be that of a distilled model, with another scheduler
    caption_bytes=_NUM_TOKENS * (4096 * 4 + 8),
    published=PublishedModel(
        denoiser=Component("diffusers.PixArtTransformer2DModel", {"caption_channels": 4096, "interpolation_scale": 2}),
        vae=KL_VAE,
        text_encoders=((T5_XXL, _NUM_TOKENS),),
        text={"prompt_embeds": (_NUM_TOKENS, 4096), "prompt_attention_mask": (_NUM_TOKENS,)},
        side=1024,
    ),
)
