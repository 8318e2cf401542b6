"""Makes SDR of HDR videos, by one rule: 203 cd/m2 are the white of SDR, and up to 1000 are compressed into it."""

from __future__ import annotations

from functools import cache
from typing import Literal

import numpy as np

Curve = Literal["PQ", "HLG"]

PEAK = 1000.0  # cd/m2 for which most HDR is graded; what is brighter becomes white
WHITE = 203.0  # cd/m2 of diffuse white in HDR (Report ITU-R BT.2408)
# FFmpeg's numbers of color primaries -> their linear RGB in that of BT.709; of BT.2020 as in Rec. ITU-R BT.2087
_BT709, _BT2020, _DISPLAY_P3 = 1, 9, 12
_TO_BT709 = {
    _BT709: np.eye(3),
    _BT2020: np.array([[1.6605, -0.5876, -0.0728], [-0.1246, 1.1329, -0.0083], [-0.0182, -0.1006, 1.1187]]),
    _DISPLAY_P3: np.array([[1.2249, -0.2247, 0.0], [-0.0420, 1.0419, 0.0], [-0.0197, -0.0786, 1.0979]]),
}
_LUMINANCE = np.array([0.2627, 0.6780, 0.0593], np.float32)  # of BT.2020
_STEPS = 2**16


def to_sdr(signal_HW3: np.ndarray, curve: Curve, primaries: int) -> np.ndarray:
    """A frame as uint8[H, W, 3] in sRGB.

    signal_HW3: uint16, nonlinear RGB over the whole range. primaries: FFmpeg's number; unknown ones are BT.2020.
    """
    light = _light_of(curve)[signal_HW3]
    if curve == "HLG":  # the light of the scene, of which a screen of 1000 cd/m2 makes this (Rec. ITU-R BT.2100)
        light *= PEAK * (light @ _LUMINANCE)[..., None] ** 0.2
    to_bt709 = _TO_BT709.get(primaries, _TO_BT709[_BT2020])
    light = np.maximum(light @ to_bt709.T.astype(np.float32), 0)
    # by the brightest color of a pixel, so that the hue stays
    brightest = light.max(-1, keepdims=True)
    mapped = np.interp(brightest, *_tone_curve()).astype(np.float32)
    light *= mapped / np.maximum(brightest, 1e-6) / WHITE
    encoded = np.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055)
    return (255 * encoded.clip(0, 1)).round().astype(np.uint8)


@cache
def _light_of(curve: Curve) -> np.ndarray:
    """float32[65536]: signal -> cd/m2 (PQ, SMPTE ST 2084), or scene light in 0..1 (HLG, ARIB STD-B67)."""
    signal = np.linspace(0, 1, _STEPS)
    if curve == "PQ":
        return _pq_light(signal).astype(np.float32)
    a, b, c = 0.17883277, 0.28466892, 0.55991073
    return np.where(signal <= 0.5, signal**2 / 3, (np.exp((signal - c) / a) + b) / 12).astype(np.float32)


@cache
def _tone_curve() -> tuple[np.ndarray, np.ndarray]:
    """cd/m2 up to PEAK -> cd/m2 up to WHITE, as points of a curve: the EETF of Report ITU-R BT.2390, section 5.4.1."""
    top = _pq_signal(np.array(PEAK))
    before = np.linspace(0, 1, 4096)
    white = float(_pq_signal(np.array(WHITE)) / top)
    knee = 1.5 * white - 0.5
    t = ((before - knee) / (1 - knee)).clip(0, 1)
    rolled = (2 * t**3 - 3 * t**2 + 1) * knee + (t**3 - 2 * t**2 + t) * (1 - knee) + (3 * t**2 - 2 * t**3) * white
    after = np.where(before < knee, before, rolled)
    return _pq_light(before * top), _pq_light(after * top)


def _pq_light(signal: np.ndarray) -> np.ndarray:
    power = signal ** (1 / 78.84375)
    return 10_000 * (np.maximum(power - 0.8359375, 0) / (18.8515625 - 18.6875 * power)) ** (1 / 0.1593017578125)


def _pq_signal(light: np.ndarray) -> np.ndarray:
    power = (light / 10_000) ** 0.1593017578125
    return ((0.8359375 + 18.8515625 * power) / (1 + 18.6875 * power)) ** 78.84375
