"""Thresholds, growing and feathering of masks."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import ndimage

from modules.annotators.mask_edges import Edges, finished


def soft_disk() -> np.ndarray:
    y, x = np.mgrid[:40, :60]
    return np.clip(1.2 - np.hypot(x - 30, y - 20) / 15, 0, 1).astype(np.float32)


def test_a_threshold_makes_pixels_black_or_white_and_none_keeps_them_soft():
    soft = soft_disk()
    assert np.array_equal(np.asarray(finished(soft, Edges())), (soft >= 0.5) * np.uint8(255))
    assert np.array_equal(np.asarray(finished(soft, Edges(threshold=None))), np.rint(soft * 255))
    inverted = np.asarray(finished(soft, Edges(invert=True)))
    assert np.array_equal(inverted, 255 - np.asarray(finished(soft, Edges())))


@pytest.mark.parametrize("pixels", [1, 4, 7, -1, -6])
def test_masks_grow_and_shrink_to_a_square_neighborhood(pixels):
    soft = soft_disk()
    values = np.rint(soft * 255).astype(np.uint8)
    filter_ = ndimage.maximum_filter if pixels > 0 else ndimage.minimum_filter
    expected = filter_(values, 2 * abs(pixels) + 1, mode="nearest")
    assert np.array_equal(np.asarray(finished(soft, Edges(threshold=None, grow=pixels))), expected)


def test_a_feathered_edge_fades_over_its_pixels_to_either_side():
    soft = np.zeros((20, 40), np.float32)
    soft[:, 20:] = 1
    row = np.asarray(finished(soft, Edges(feather=4)))[10]
    assert row[:16].max() == 0
    assert row[24:].min() == 255
    assert (np.diff(row[15:25].astype(int)) > 0).all()
