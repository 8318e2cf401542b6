"""Stable Diffusion 1.x and 2.x for inpainting: the U-Net also sees a mask and the latents of the masked image.

Rombach et al. 2022, arXiv 2112.10752, section 4.5. The published models have 4 channels of noised latents, 1 of the
mask and 4 of the masked image, in this order.
"""

from dataclasses import replace

from modules.families.conditions import Inpainting
from modules.families.inpainting import why_no_mask, with_mask
from modules.families.PublishedModel import CLIP_L, KL_VAE, Component, PublishedModel
from modules.families.sd15 import SD15

SD15_INPAINT = replace(
    SD15,
    name="sd15_inpaint",
    label="Stable Diffusion 1.x / 2.x Inpainting",
    is_default=False,
    pipeline="StableDiffusionInpaintPipeline",
    other_pipelines=(),
    conditions=(Inpainting("latents"),),
    inputs=with_mask(SD15.inputs),
    unsupported=why_no_mask,
    published=PublishedModel(
        denoiser=Component("diffusers.UNet2DConditionModel", {"cross_attention_dim": 768, "in_channels": 9}),
        vae=KL_VAE,
        text_encoders=((CLIP_L, 77),),
        text={"prompt_embeds": (77, 768)},
        side=512,
    ),
    matches_lora=lambda shapes: False,  # they are those of the family without a mask
    takes_loras_of="sd15",
)
