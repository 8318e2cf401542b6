"""What a model that paints a part of an image sees beside the noised latents.

Legend: B batch, C channels of latents, M channels of the mask, H W pixels, h w latent cells.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from modules.families.conditions import MaskResolution

if TYPE_CHECKING:
    from torch import Tensor

    from modules.families.Family import DenoiserCall


def mask_channels(resolution: MaskResolution, mask_B1HW: Tensor, height: int, width: int) -> Tensor:
    """[B, M, h, w]: the mask as the denoiser sees it. height, width: of the latents."""
    from torch.nn import functional

    if resolution == "latents":
        return functional.interpolate(mask_B1HW, size=(height, width), mode="nearest")
    return functional.pixel_unshuffle(mask_B1HW, mask_B1HW.shape[-1] // width)


def clip_mask_channels(mask_F1HW: Tensor, shape: tuple[int, ...]) -> Tensor:
    """[M, f, h, w]: the mask of a clip with a channel for each pixel of a latent cell. shape: of the latents, C f h w.

    Source: diffusers 0.42, WanVACEPipeline.prepare_masks, where a latent frame has the mask of the frame in its middle.
    """
    from torch.nn import functional

    frames, height, width = shape[1:]
    channels = mask_channels("pixels", mask_F1HW, height, width).movedim(1, 0)
    return functional.interpolate(channels[None], size=(frames, height, width), mode="nearest-exact")[0]


def num_source_channels(is_masked: bool, channels: int, pixels_per_cell: int) -> int:
    """Of `source_clip` in Batch.given, with latents of so many channels. is_masked: as SourceClip.masked."""
    return 2 * channels + num_mask_channels("pixels", pixels_per_cell) if is_masked else channels


def num_mask_channels(resolution: MaskResolution, pixels_per_cell: int) -> int:
    """M, of latents with so many pixels along each side of a cell."""
    return {"": 0, "latents": 1, "pixels": pixels_per_cell**2}[resolution]


def with_mask(inputs: Callable[[DenoiserCall], dict[str, Any]]) -> Callable[[DenoiserCall], dict[str, Any]]:
    """The `inputs` of a U-Net that sees mask and masked image as further channels behind the noised latents."""

    def with_channels(call: DenoiserCall) -> dict[str, Any]:
        import torch

        return {**inputs(call), "sample": torch.cat([call.latents, call.given["inpainting"]], dim=1)}

    return with_channels


def why_no_mask(config: Mapping[str, Any]) -> str:
    """For `Family.unsupported`: what a U-Net without channels for a mask is."""
    channels = config.get("in_channels", 4)
    return "" if channels == 9 else f"a U-Net with {channels} input channels instead of 9"
