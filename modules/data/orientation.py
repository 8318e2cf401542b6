"""How an image is turned to be upright: its EXIF orientation, wherever its file stores it."""

from __future__ import annotations

import io
import os
import zlib
from typing import IO

from PIL import Image
from PIL.ExifTags import Base as ExifTag
from PIL.ImageFile import ImageFile

# EXIF orientation -> the transposition that makes the image upright
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
SIDEWAYS = {5, 6, 7, 8}

_PNG = b"\x89PNG\r\n\x1a\n"
_METADATA = (b"eXIf", b"iTXt", b"zTXt", b"tEXt")  # chunks of a PNG that may hold the orientation: EXIF or XMP
_TAIL_BYTES = 2**16
_MAX_METADATA_BYTES = 2**24  # of one chunk; thumbnails are far smaller


def orientation_of(image: ImageFile) -> int:
    """The EXIF orientation of an image that is opened but not loaded; 1 (upright) if it has none.

    A PNG may store it behind the pixels, where it goes before one in the header, as when the image is loaded.
    Raises whatever Pillow raises for damaged metadata.
    """
    if image.format == "JXL" and not getattr(image, "jpeg", False):
        return 1  # decoding applies the orientation, and EXIF does not count
    behind = _orientation_behind(image.fp) if image.format == "PNG" and image.fp is not None else None
    if behind is not None:
        return behind
    # of the base class, because PngImageFile.getexif decodes all pixels to find a chunk after them
    return Image.Image.getexif(image).get(ExifTag.Orientation, 1)


def _orientation_behind(file: IO[bytes]) -> int | None:
    """The orientation that the metadata behind the pixels of a PNG gives; None if there is none."""
    position = file.tell()
    try:
        chunks = _chunks_behind(file)
        if not chunks:
            return None
        file.seek(0)
        header = file.read(8 + 25)  # signature and IHDR
    finally:
        file.seek(position)
    # Pillow reads them in front of the pixels, from a PNG without any
    with Image.open(io.BytesIO(header + b"".join(chunks) + _chunk(b"IDAT", b"")), formats=("PNG",)) as image:
        return Image.Image.getexif(image).get(ExifTag.Orientation)


def _chunks_behind(file: IO[bytes]) -> list[bytes]:
    """The chunks with metadata behind the pixels of a PNG, complete.

    Mostly the end of the file tells: it begins within the last chunks of pixels. If it does not, these are large and
    therefore few, and all are visited.
    """
    size = file.seek(0, os.SEEK_END)
    start = max(size - _TAIL_BYTES, len(_PNG))
    file.seek(start)
    tail = file.read(_TAIL_BYTES)
    at = tail.rfind(b"IDAT")
    while at >= 4:
        found = _metadata_from(file, start + at - 4, size)
        if found is not None:
            return found
        at = tail.rfind(b"IDAT", 0, at)
    return _metadata_from(file, len(_PNG), size) or []


def _metadata_from(file: IO[bytes], position: int, size: int) -> list[bytes] | None:
    """The chunks with metadata behind those of pixels, from the chunk at `position` on; None if none begins there."""
    found: list[bytes] = []
    behind = False
    while position + 12 <= size:
        file.seek(position)
        head = file.read(8)
        length, kind = int.from_bytes(head[:4], "big"), head[4:]
        if not kind.isalpha() or position + 12 + length > size:
            break
        if kind == b"IEND":
            return found
        behind = behind or kind == b"IDAT"
        if behind and kind in _METADATA and length <= _MAX_METADATA_BYTES:
            chunk = head + file.read(length + 4)
            if zlib.crc32(chunk[4:-4]) == int.from_bytes(chunk[-4:], "big"):
                found.append(chunk)
        position += 12 + length
    return None


def _chunk(kind: bytes, data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")
