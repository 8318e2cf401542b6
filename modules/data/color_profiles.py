"""Converts the colors of images to sRGB by the color profiles embedded in them, with littlecms.

Profiles of sRGB itself, of which there are many, are recognized by what they do, and leave the pixels as they are.
"""

from __future__ import annotations

import io
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
from PIL import Image, ImageCms

# An image in one of these takes profiles of one of these color spaces. Gray images may have one of RGB, as in browsers.
_TAKEN = {"L": ("GRAY", "RGB"), "RGB": ("RGB",), "CMYK": ("CMYK",)}
# A profile that changes no color by more than this, of 255, is one of sRGB: they differ by how curves are rounded.
_TOLERANCE = 2
_STEP = 17  # between the shades of each color by which profiles are compared: 16 of them

ColorState = Literal["srgb", "converted", "unusable"]


class Conversion(NamedTuple):
    """What the profile of an image asks for.

    state: "srgb" without a profile and for those of sRGB, "unusable" for a damaged profile or one of another kind of
    image: its pixels count as sRGB. mode: of the image that `transform` takes.
    """

    state: ColorState
    mode: str = ""
    transform: ImageCms.ImageCmsTransform | None = None


_AS_IT_IS, _UNUSABLE = Conversion("srgb"), Conversion("unusable")


def conversion_of(image: Image.Image) -> Conversion:
    """How the colors of an opened image become sRGB, by its header."""
    profile = image.info.get("icc_profile")
    return _conversion(profile, _base_mode(image.mode)) if isinstance(profile, bytes) and profile else _AS_IT_IS


def converted(image: Image.Image, conversion: Conversion) -> Image.Image:
    """`image`, of mode RGB, RGBA or CMYK, in sRGB: as RGB, or as RGBA with the same alpha."""
    assert conversion.transform is not None
    plain = image.getchannel("R") if conversion.mode == "L" else image.convert(conversion.mode)
    result = ImageCms.applyTransform(plain, conversion.transform)
    assert result is not None  # as it is only for a transform in place
    if image.mode == "RGBA":
        result.putalpha(image.getchannel("A"))
    return result


def _base_mode(mode: str) -> str:
    if mode in ("1", "L", "LA", "La") or mode.startswith("I"):
        return "L"
    return "CMYK" if mode == "CMYK" else "RGB"


@lru_cache(maxsize=16)
def _conversion(profile: bytes, base: str) -> Conversion:
    try:
        opened = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        space = opened.profile.xcolor_space.strip()
        if space not in _TAKEN[base]:
            return _UNUSABLE
        mode = {"GRAY": "L"}.get(space, space)
        srgb = ImageCms.createProfile("sRGB")
        # the intent that viewers use; only profiles with tables, as of printers, tell it from others
        transform = ImageCms.buildTransform(opened, srgb, mode, "RGB", ImageCms.Intent.PERCEPTUAL)
    except (ImageCms.PyCMSError, OSError, ValueError, TypeError):  # what Pillow raises for damaged profiles
        return _UNUSABLE
    if mode != "CMYK" and _is_neutral(transform, mode):
        return _AS_IT_IS
    return Conversion("converted", mode, transform)


def _is_neutral(transform: ImageCms.ImageCmsTransform, mode: str) -> bool:
    """Whether a transform leaves the colors of an L or RGB image as they are."""
    if mode == "L":
        before = Image.fromarray(np.arange(256, dtype=np.uint8)[None])
    else:
        shades = np.arange(0, 256, _STEP, dtype=np.uint8)
        before = Image.fromarray(np.stack(np.meshgrid(shades, shades, shades), -1).reshape(1, -1, 3))
    after = ImageCms.applyTransform(before, transform)
    change = np.asarray(after, np.int16) - np.asarray(before.convert("RGB"), np.int16)
    return bool(np.abs(change).max() <= _TOLERANCE)
