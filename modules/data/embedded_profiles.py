"""Finds the color profiles in files of which Pillow reads none: JPEG 2000 and BMP."""

from __future__ import annotations

import os
from typing import IO

from PIL.ImageFile import ImageFile

_MAX_PROFILE_BYTES = 2**24
_BITMAP_V5_BYTES = 124  # of its header, behind the 14 of the file's
_EMBEDDED = b"DEBM"  # PROFILE_EMBEDDED, little-endian
_RESTRICTED_ICC, _ANY_ICC = 2, 3  # METH of the box "colr" in ISO/IEC 15444-1 and -2


def add_profile(image: ImageFile, file: IO[bytes]) -> None:
    """Puts the profile in `file`, from which `image` was opened, where Pillow puts those of other formats."""
    find = {"JPEG2000": _of_jpeg_2000, "BMP": _of_bitmap}.get(image.format or "")
    if find is None or image.info.get("icc_profile"):
        return
    position = file.tell()
    try:
        if profile := find(file):
            image.info["icc_profile"] = profile
    finally:
        file.seek(position)


def _of_jpeg_2000(file: IO[bytes]) -> bytes:
    size = file.seek(0, os.SEEK_END)
    header = _box(file, b"jp2h", 0, size)
    colors = header and _box(file, b"colr", *header)
    if not colors:
        return b""
    start, end = colors
    file.seek(start)
    content = file.read(min(end - start, _MAX_PROFILE_BYTES))
    return content[3:] if content[:1] in (bytes([_RESTRICTED_ICC]), bytes([_ANY_ICC])) else b""


def _box(file: IO[bytes], kind: bytes, start: int, end: int) -> tuple[int, int] | None:
    """Where the content of the first box of this kind begins and ends, between `start` and `end`."""
    while start + 8 <= end:
        file.seek(start)
        head = file.read(16)
        length, content = int.from_bytes(head[:4], "big"), start + 8
        if length == 1:
            length, content = int.from_bytes(head[8:], "big"), start + 16
        last = start + length if length else end  # 0: up to the end
        if last < content or last > end:
            return None
        if head[4:8] == kind:
            return content, last
        start = last
    return None


def _of_bitmap(file: IO[bytes]) -> bytes:
    file.seek(0)
    header = file.read(14 + _BITMAP_V5_BYTES)[14:]
    if len(header) < _BITMAP_V5_BYTES or int.from_bytes(header[:4], "little") < _BITMAP_V5_BYTES:
        return b""
    if header[56:60] != _EMBEDDED:
        return b""
    file.seek(14 + int.from_bytes(header[112:116], "little"))
    return file.read(min(int.from_bytes(header[116:120], "little"), _MAX_PROFILE_BYTES))
