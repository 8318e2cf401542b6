"""Stable Diffusion XL for inpainting: the U-Net also sees a mask and the latents of the masked image.

The channels are those of the inpainting models of 1.x (sd15_inpaint.py).
"""

from dataclasses import replace

from modules.families.conditions import Inpainting, Sizes
from modules.families.inpainting import why_no_mask, with_mask
from modules.families.PublishedModel import Component
from modules.families.sdxl import SDXL, SDXL_MODEL, SDXL_UNET

SDXL_INPAINT = replace(
    SDXL,
    name="sdxl_inpaint",
    label="Stable Diffusion XL Inpainting",
    pipeline="StableDiffusionXLInpaintPipeline",
    conditions=(Sizes(), Inpainting("latents")),
    inputs=with_mask(SDXL.inputs),
    unsupported=why_no_mask,
    # from pure noise, as in training; the default of the pipeline mixes in the image below the mask
    call_options={"strength": 1.0},
    published=replace(SDXL_MODEL, denoiser=Component(SDXL_UNET.class_name, {**SDXL_UNET.config, "in_channels": 9})),
    matches_lora=lambda shapes: False,  # they are those of the family without a mask
    takes_loras_of="sdxl",
)
