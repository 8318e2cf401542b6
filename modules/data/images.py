"""Loads image files and converts them to arrays, using Pillow only: upright and in sRGB, as a viewer shows them.

Files are untrusted: only the formats of image_formats.py are opened, Pillow's limit on the number of pixels applies,
and any damage is reported as ImageError.
"""

from __future__ import annotations

import struct
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from PIL import Image, ImageEnhance, UnidentifiedImageError
from PIL.ExifTags import Base as ExifTag
from PIL.ImageFile import ImageFile
from PIL.TiffImagePlugin import TiffImageFile

from modules.config.regular_file import open_regular
from modules.data.Augmentation import NO_AUGMENTATION, Augmentation
from modules.data.buckets import crop_box, rotation_margins
from modules.data.color_profiles import ColorState, conversion_of, converted
from modules.data.embedded_profiles import add_profile
from modules.data.errors import ImageError
from modules.data.image_formats import HEAD_BYTES, formats_for, why_unknown
from modules.data.orientation import SIDEWAYS, UPRIGHT, orientation_of

# What Pillow may raise for damaged files. MemoryError is not among them: it is about the machine, not the file.
DAMAGE = (
    Image.DecompressionBombError, OSError, SyntaxError, ValueError, TypeError, LookupError, ArithmeticError, EOFError,
    AttributeError, AssertionError, NotImplementedError, struct.error, zlib.error,
)  # fmt: skip

# Pillow warns of large images and odd metadata in lines that name its own source, not the image. The dataset check
# names large images, and damage that matters is an error. Filters inside of functions would not be safe in threads.
warnings.filterwarnings("ignore", module=r"PIL\.")


def load_image(path: str, at_least: tuple[int, int] | None = None) -> Image.Image:
    """The image at `path`, upright, as 8-bit RGB in sRGB. Transparency becomes white; of animations, the first frame is
    used.

    at_least: width and height that are enough for a preview; large JPEGs are then decoded smaller and much faster.
    Raises ImageError if the file can't be decoded completely.
    """
    return _loaded(path, _to_rgb, at_least)


def load_gray_on_black(path: str) -> Image.Image:
    """The brightness of the image at `path`, upright, as 8 bits. Transparency becomes black. Raises ImageError."""
    return _loaded(path, lambda image: _to_rgb(image, "black").convert("L"))


def load_alpha(path: str) -> Image.Image:
    """The alpha channel of the image at `path`, upright, as 8 bits: white where it is opaque. Raises ImageError."""
    return _loaded(path, lambda image: _straight(image).getchannel("A"))


def load_rgba(path: str) -> Image.Image:
    """The image at `path`, upright, as 8-bit RGBA in sRGB whose colors are not premultiplied. Raises ImageError."""
    return _loaded(path, lambda image: _in_srgb(image).convert("RGBA"))


def may_be_transparent(path: str) -> bool:
    """Whether the image at `path` has an alpha channel or a transparent color, by its header. Raises ImageError."""
    with _opened(path) as image:
        return _has_alpha(image)


def color_conversion(path: str) -> ColorState:
    """What the color profile of the image at `path` asks for, by its header. Raises ImageError."""
    with _opened(path) as image:
        return conversion_of(image).state


def read_size(path: str) -> tuple[int, int]:
    """Width and height of the upright image at `path`, in pixels, read from its header only.

    Raises ImageError if the file is not an image. Damage after the header is not detected.
    """
    with _opened(path) as image:
        width, height = image.size
        if isinstance(image, TiffImageFile):
            # Pillow versions differ in whether a sideways TIFF's size is swapped on opening; its tags are as stored.
            width, height = image.tag_v2[ExifTag.ImageWidth], image.tag_v2[ExifTag.ImageLength]
        if width < 1 or height < 1:
            raise ValueError(f"its size is {width} x {height}")
        return (height, width) if _orientation(image) in SIDEWAYS else (width, height)


def read_orientation(path: str) -> int:
    """The EXIF orientation of the image at `path`, from its metadata; 1 if it is stored upright. Raises ImageError."""
    with _opened(path) as image:
        return _orientation(image)


def size_or_reason(path: str) -> tuple[int, int] | str:
    """The result of `read_size`, or the reason why the size can't be read."""
    try:
        return read_size(path)
    except ImageError as error:
        return error.reason


def fit_image(
    image: Image.Image, bucket_w: int, bucket_h: int, augmentation: Augmentation = NO_AUGMENTATION
) -> Image.Image:
    """`image` flipped, resized (Lanczos) to cover the bucket, cropped to it and rotated; sizes in pixels.

    An image that already has the covering size is cropped without resampling. Only the geometry of `augmentation` is
    applied, so that masks can be fitted in the same way; `adjust_colors` applies the rest.
    """
    if augmentation.mirrored:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    size, (left, top, right, bottom) = crop_box(*image.size, bucket_w, bucket_h, augmentation)
    margin_x, margin_y = rotation_margins(bucket_w, bucket_h, augmentation.degrees)
    upright = _resized_part(image, size, (left - margin_x, top - margin_y, right + margin_x, bottom + margin_y))
    if not augmentation.degrees:
        return upright
    turned = upright.rotate(augmentation.degrees, Image.Resampling.BICUBIC)
    return turned.crop((margin_x, margin_y, margin_x + bucket_w, margin_y + bucket_h))


def adjust_colors(image: Image.Image, augmentation: Augmentation) -> Image.Image:
    """An RGB image with the brightness, contrast, saturation and hue of `augmentation`, in this order.

    Of an RGBA image, alpha stays as it is.
    """
    if image.mode == "RGBA":
        opaque = adjust_colors(image.convert("RGB"), augmentation)
        opaque.putalpha(image.getchannel("A"))
        return opaque
    for enhancer, factor in (
        (ImageEnhance.Brightness, augmentation.brightness),
        (ImageEnhance.Contrast, augmentation.contrast),
        (ImageEnhance.Color, augmentation.saturation),
    ):
        if factor != 1:
            image = enhancer(image).enhance(factor)
    if augmentation.hue:
        hue, saturation, value = image.convert("HSV").split()
        moved = (np.asarray(hue).astype(np.int16) + round(augmentation.hue * 256)) % 256
        image = Image.merge("HSV", (Image.fromarray(moved.astype(np.uint8)), saturation, value)).convert("RGB")
    return image


def _resized_part(image: Image.Image, size: tuple[int, int], box: tuple[int, int, int, int]) -> Image.Image:
    """The part `box` of `image` resized to `size`."""
    if size == image.size:
        return image if box == (0, 0, *size) else image.crop(box)
    # Resizing only the cropped part gives the same pixels as cropping after resizing, and a 20000 x 20 panorama never
    # becomes an image of 512000 x 512.
    scale_x, scale_y = image.width / size[0], image.height / size[1]
    source = (box[0] * scale_x, box[1] * scale_y, box[2] * scale_x, box[3] * scale_y)
    source = (*source[:2], min(source[2], image.width), min(source[3], image.height))  # rounding may exceed the edge
    return image.resize((box[2] - box[0], box[3] - box[1]), Image.Resampling.LANCZOS, box=source)


def to_array(image: Image.Image) -> np.ndarray:
    """An RGB image as float32[3, H, W] in [-1, 1], or an RGBA image as float32[4, H, W]."""
    array = np.array(image, dtype=np.float32).transpose(2, 0, 1)
    return np.ascontiguousarray(array / 127.5 - 1.0)


def to_image(array: np.ndarray) -> Image.Image:
    """The image of which `to_array` gives this array."""
    values = ((array + 1.0) * 127.5).round().astype(np.uint8)
    return Image.fromarray(np.ascontiguousarray(values.transpose(1, 2, 0)))


def _loaded(
    path: str, convert: Callable[[Image.Image], Image.Image], at_least: tuple[int, int] | None = None
) -> Image.Image:
    """What `convert` makes of the decoded image, upright. at_least: as for `load_image`."""
    with _opened(path) as image:
        is_turned = isinstance(image, TiffImageFile)  # by Pillow when it loads it
        orientation = 1 if is_turned else _orientation(image)
        if at_least is not None:
            image.draft(None, (max(at_least),) * 2)  # of either orientation
        image.load()
        transpose = UPRIGHT.get(orientation)
        made = convert(image)
        return made if transpose is None else made.transpose(transpose)


@contextmanager
def _opened(path: str) -> Iterator[ImageFile]:
    """The image in a file; whatever Pillow finds wrong with it, here or in the block, becomes an ImageError."""
    head = b""
    try:
        with open_regular(path) as file:
            head = file.read(HEAD_BYTES)
            file.seek(0)
            with Image.open(file, formats=formats_for(path, head)) as image:
                add_profile(image, file)
                yield image
    except UnidentifiedImageError as error:
        raise ImageError(path, why_unknown(head)) from error
    except DAMAGE as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise ImageError(path, " ".join(reason.split()).rstrip(".")) from error


def _orientation(image: ImageFile) -> int:
    """The orientation of an opened image; 1 if it is damaged, because the pixels may still be good."""
    try:
        return orientation_of(image)
    except DAMAGE:
        return 1


def _to_rgb(image: Image.Image, background: str = "white") -> Image.Image:
    """Converts any mode to RGB. image: already loaded, so that its `info` has the transparent color, if any."""
    made = _in_srgb(image)
    if made.mode == "RGB":
        return made
    return Image.alpha_composite(Image.new("RGBA", made.size, background), made).convert("RGB")


def _in_srgb(image: Image.Image) -> Image.Image:
    """A loaded image of any mode as RGB, or as RGBA if it may be transparent, with the colors of sRGB."""
    conversion = conversion_of(image)
    if image.mode.startswith("I"):
        plain = _gray_from_16_bit(image)
    elif image.mode == "F":
        raise ValueError("it holds floating-point pixels, whose range is unknown; save it with 8 bits")
    elif _has_alpha(image):
        plain = _straight(image)
    elif conversion.mode == "CMYK":
        plain = image
    else:
        plain = image.convert("RGB")
    return plain if conversion.transform is None else converted(plain, conversion)


def _has_alpha(image: Image.Image) -> bool:
    return image.mode in ("LA", "PA", "La", "RGBA", "RGBa") or "transparency" in image.info


def _straight(image: Image.Image) -> Image.Image:
    """The image as RGBA. La and RGBa have premultiplied alpha and can be converted only via LA and RGBA."""
    return image.convert({"La": "LA", "RGBa": "RGBA"}.get(image.mode, image.mode)).convert("RGBA")


def _gray_from_16_bit(image: Image.Image) -> Image.Image:
    """Converts modes I;16, I;16B and I (16-bit PNG in older Pillow), which convert() would clip at 255."""
    values = np.asarray(image).astype(np.int64).clip(0, 65535)
    return Image.fromarray(((values + 128) // 257).astype(np.uint8)).convert("RGB")
