"""Makes small color profiles, and colors as they are stored with them, by the mathematics alone."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

# columns: red, green and blue in XYZ, adapted to D50 (Bruce Lindbloom's tables)
SRGB_D50 = ((0.4360747, 0.3850649, 0.1430804), (0.2225045, 0.7168786, 0.0606169), (0.0139322, 0.0971045, 0.7141733))


class Space(NamedTuple):
    """An RGB color space. to_xyz: as SRGB_D50. gamma: of its curve."""

    to_xyz: Sequence[Sequence[float]]
    gamma: float


SPACES = {
    "Adobe RGB": Space(
        ((0.6097559, 0.2052401, 0.1492240), (0.3111242, 0.6256560, 0.0632197), (0.0194811, 0.0608902, 0.7448387)),
        2.19921875,
    ),
    "Display P3": Space(
        ((0.5151020, 0.2919650, 0.1571530), (0.2411820, 0.6922360, 0.0665819), (-0.0010494, 0.0418818, 0.7843780)), 2.2
    ),
    "ProPhoto": Space(
        ((0.7976749, 0.1351917, 0.0313534), (0.2880402, 0.7118741, 0.0000857), (0.0, 0.0, 0.8252100)), 1.8
    ),
}


def stored_as(rgb: Sequence[int], space: Space) -> tuple[int, ...]:
    """The values, 0 to 255, with which an sRGB color is stored in another color space."""
    light = np.linalg.solve(np.array(space.to_xyz), np.array(SRGB_D50) @ linear(rgb))
    return tuple(round(255 * float(value)) for value in light.clip(0, 1) ** (1 / space.gamma))


def linear(rgb: Sequence[int]) -> np.ndarray:
    """The light of an sRGB color, 0 to 1 (IEC 61966-2-1)."""
    values = np.array(rgb) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def rgb_profile(space: Space) -> bytes:
    columns = np.array(space.to_xyz).T
    tags = {name: _xyz(column) for name, column in zip((b"rXYZ", b"gXYZ", b"bXYZ"), columns, strict=True)}
    return _profile(b"RGB ", b"XYZ ", {**tags, **dict.fromkeys((b"rTRC", b"gTRC", b"bTRC"), _curve(space.gamma))})


def srgb_profile() -> bytes:
    """A profile of sRGB that is not littlecms' own: its curve is a table."""
    table = (65535 * linear(np.arange(256))).round().astype(">u2")
    curve = b"curv" + bytes(4) + struct.pack(">I", 256) + table.tobytes()
    columns = np.array(SRGB_D50).T
    tags = {name: _xyz(column) for name, column in zip((b"rXYZ", b"gXYZ", b"bXYZ"), columns, strict=True)}
    return _profile(b"RGB ", b"XYZ ", {**tags, **dict.fromkeys((b"rTRC", b"gTRC", b"bTRC"), curve)})


def gray_profile(gamma: float) -> bytes:
    return _profile(b"GRAY", b"XYZ ", {b"kTRC": _curve(gamma)})


def cmyk_profile(inks: Sequence[Sequence[int]]) -> bytes:
    """A printer with the Lab color, as 8-bit values, of each of the 16 combinations of full inks, black fastest."""
    ramp = bytes(range(256))
    identity = struct.pack(">9i", *(65536 if place % 4 == 0 else 0 for place in range(9)))
    table = b"mft1" + bytes(4) + bytes([4, 3, 2, 0]) + identity + ramp * 4
    return _profile(b"CMYK", b"Lab ", {b"A2B0": table + bytes(value for ink in inks for value in ink) + ramp * 3})


def _curve(gamma: float) -> bytes:
    return b"para" + bytes(8) + struct.pack(">i", round(gamma * 65536))


def _xyz(values: Sequence[float]) -> bytes:
    return b"XYZ " + bytes(4) + struct.pack(">3i", *(round(float(value) * 65536) for value in values))


def _profile(space: bytes, connection: bytes, tags: dict[bytes, bytes]) -> bytes:
    white = (0.9642, 1.0, 0.8249)
    tags = {b"wtpt": _xyz(white), **tags}
    start = 128 + 4 + 12 * len(tags)
    table, body = struct.pack(">I", len(tags)), b""
    for name, data in tags.items():
        table += name + struct.pack(">II", start + len(body), len(data))
        body += data + bytes(-len(data) % 4)
    kind = b"prtr" if space == b"CMYK" else b"mntr"
    header = struct.pack(">I4sI4s4s4s", start + len(body), b"lcms", 0x04200000, kind, space, connection)
    header += bytes(12) + b"acsp" + bytes(28) + _xyz(white)[8:] + bytes(48)
    return header + table + body
