"""HDR becomes SDR by a rule that can be checked with numbers of the standards."""

import numpy as np
import pytest

from modules.data.hdr import to_sdr


def gray(signal):
    return np.full((1, 1, 3), round(65535 * signal), np.uint16)


@pytest.mark.parametrize(
    ("curve", "signal", "light"),
    [
        ("PQ", 0.0, 0), ("PQ", 0.2997, 10), ("PQ", 0.4403, 50), ("PQ", 0.7518, 203), ("PQ", 0.9026, 203),
        ("HLG", 0.0, 0), ("HLG", 0.4972, 50), ("HLG", 1.0, 203),
    ],
    ids=["PQ 0", "PQ 10", "PQ 50", "PQ 1000", "PQ 4000", "HLG 0", "HLG 50", "HLG 1000"],
)  # fmt: skip
def test_dark_light_stays_and_1000_nits_are_white(curve, signal, light):
    """light: in cd/m2, of which 203 are white; signals as in Rec. ITU-R BT.2100 for a screen of 1000."""
    linear = light / 203
    expected = 255 * (12.92 * linear if linear < 0.0031308 else 1.055 * linear ** (1 / 2.4) - 0.055)
    assert np.abs(to_sdr(gray(signal), curve, 9).astype(int) - expected).max() <= 1


@pytest.mark.parametrize("curve", ["PQ", "HLG"])
def test_brighter_stays_brighter_and_gray_stays_gray(curve):
    ramp = np.repeat(
        np.linspace(0, 49_000 if curve == "PQ" else 65_535, 200).astype(np.uint16)[None, :, None], 3, axis=2
    )
    made = to_sdr(ramp, curve, 9).astype(int)
    assert np.diff(made[0, :, 0]).min() >= 0
    assert np.ptp(made, axis=-1).max() <= 1
    assert made[0, 0, 0] == 0
    assert made[0, -1, 0] >= 254


def test_white_of_hdr_is_bright_but_leaves_room_for_lights():
    assert 200 < to_sdr(gray(0.5807), "PQ", 9)[0, 0, 0] < 240  # 203 cd/m2


@pytest.mark.parametrize("primaries", [9, 2])
def test_red_of_bt709_stored_in_bt2020_is_red_again(primaries):
    light = np.array([0.6274, 0.0691, 0.0164]) * 40  # Rec. ITU-R BT.2087, of 40 cd/m2
    power = (light / 10_000) ** 0.1593017578125
    signal = ((0.8359375 + 18.8515625 * power) / (1 + 18.6875 * power)) ** 78.84375
    red, green, blue = to_sdr((65535 * signal).round().astype(np.uint16)[None, None], "PQ", primaries)[0, 0]
    assert red > 110
    assert max(green, blue) <= 6
