"""The connected part of an image around a point whose color is like that of the point. Uses numpy only."""

from __future__ import annotations

import numpy as np


def similar_region(pixels: np.ndarray, x: int, y: int, tolerance: int) -> np.ndarray:
    """Which pixels are connected with that at x, y, by sides, through pixels of about its color; bool[H, W].

    pixels: uint8[H, W, 3]. tolerance: by how much each of red, green and blue may differ, 0 to 255.
    """
    wanted = pixels[y, x].astype(np.int16)
    low, high = (wanted - tolerance).clip(0, 255), (wanted + tolerance).clip(0, 255)
    alike = np.ones(pixels.shape[:2], bool)
    for channel in range(pixels.shape[2]):
        alike &= (pixels[..., channel] >= low[channel]) & (pixels[..., channel] <= high[channel])
    return connected_part(alike, x, y)


def connected_part(wanted: np.ndarray, x: int, y: int) -> np.ndarray:
    """The pixels of `wanted`, bool[H, W], that are connected with that at x, y; none if that is not wanted.

    By runs of wanted pixels in each row, of which there are far fewer than pixels, joined with those below them.
    """
    if not wanted[y, x]:
        return np.zeros_like(wanted)
    begins = wanted.copy()
    begins[:, 1:] &= ~wanted[:, :-1]
    runs = np.cumsum(begins.ravel(), dtype=np.int32).reshape(wanted.shape) - 1  # of each wanted pixel, its run
    touching = wanted[1:] & wanted[:-1]
    # where runs touch for the first time: one of them begins there, or did not touch in the column before
    first = touching.copy()
    first[:, 1:] &= ~touching[:, :-1]
    lowest = _lowest_connected(int(runs[-1, -1]) + 1, runs[:-1][first], runs[1:][first])
    is_part = lowest == lowest[runs[y, x]]
    return wanted & is_part[runs.clip(0)]


def _lowest_connected(count: int, one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """For each of `count` nodes, the lowest number of those that it is connected with. one, other: ends of the edges.

    By hooking trees onto each other and halving their paths, in about log(count) rounds.
    Source: Zhang, Azad and Hu 2020, FastSV, arXiv 1910.05971.
    """
    parents = np.arange(count, dtype=np.int32)
    while True:
        before = parents.copy()
        grand = parents[parents]
        for start, end in ((one, other), (other, one)):
            np.minimum.at(parents, before[start], grand[end])
            np.minimum.at(parents, start, grand[end])
        np.minimum(parents, grand, out=parents)
        if np.array_equal(parents, before):
            return parents
