"""Masks for models that paint a part of an image: from a mask file, or drawn.

Such a model sees a mask, 1 where it paints, and the latents of the image with gray in place of that part. To keep the
VAE out of the training step, both are cached with the image, for several drawn masks; each time the image is used, one
of them is drawn. Only `add_inpainting` and `chosen_inpainting` need torch.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from PIL import Image, ImageDraw

from modules.config.counted import counted
from modules.config.families import load_families
from modules.config.methods import facts_of
from modules.data.draws import hash64, uniform
from modules.data.masks import mask_of

if TYPE_CHECKING:
    from torch import Tensor

    from modules.config.TrainConfig import TrainConfig
    from modules.data.Dataset import Dataset
    from modules.data.LatentEncoder import LatentEncoder

Shapes = Literal["mixed", "rectangles", "ellipses", "strokes"]
KINDS = ("rectangles", "ellipses", "strokes")
MAX_PARTS = 3  # rectangles, ellipses or strokes of a mask
SIDES = (0.2, 0.7)  # shortest and longest of a rectangle or ellipse, as a fraction of the image's
BRUSH = (0.08, 0.3)  # width of a stroke, as a fraction of the image's shorter side
MAX_BENDS = 6  # of a stroke
# Names in a cache entry: bool[N, M, h, w] and [N, C, h, w], as in modules/families/inpainting.py. Of N > 1 masks, the
# first one is white all over.
MASKS, MASKED = "inpainting_masks", "masked_latents"
# Part of the keys of cache entries; to be increased whenever `draw_mask` draws others.
DRAWING_VERSION = 1


@dataclass(frozen=True)
class MaskRule:
    """How the masks of images without a mask file are drawn. variants: drawn masks of an image. seed: of the run."""

    shapes: Shapes
    variants: int
    seed: int

    def draws(self, name: str, view: int) -> list[int]:
        """A number for each drawn mask of an image, by which it is drawn.

        name: of the image's file; its place would change when images are added. view: number of the augmented variant.
        """
        return [hash64(self.seed, name, view, number, "inpainting mask") for number in range(self.variants)]


def mask_rule(config: TrainConfig) -> MaskRule | None:
    """None for a run that needs no masks for inpainting."""
    if not load_families()[config.family].inpainting or not facts_of(config).uses_denoiser:
        return None
    return MaskRule(config.data.inpainting_shapes, config.data.inpainting_variants, config.seed)


def inpainting_key(dataset: Dataset, sample: int) -> dict[str, object]:
    """What of a sample's cache entry depends on its masks, beside the mask file; empty without inpainting."""
    if dataset.inpainting is None:
        return {}
    if mask_of(dataset, sample):
        return {"inpainting": "file"}
    return {"inpainting": [DRAWING_VERSION, dataset.inpainting.shapes, *_draws(dataset, sample)]}


def num_masks(dataset: Dataset, sample: int) -> int:
    """How many masks for inpainting are cached with a sample."""
    if dataset.inpainting is None:
        return 0
    return 1 if mask_of(dataset, sample) else 1 + dataset.inpainting.variants


def inpainting_masks(dataset: Dataset, sample: int, shape: tuple[int, int], file: np.ndarray | None) -> np.ndarray:
    """bool[N, 1, H, W], True where the model paints. shape: (width, height). file: the mask file, [1, H, W] in 0..1."""
    assert dataset.inpainting is not None  # callers ask only then
    if file is not None:
        return file[None] >= 0.5
    width, height = shape
    drawn = [draw_mask(dataset.inpainting.shapes, draw, width, height) for draw in _draws(dataset, sample)]
    return np.stack([np.ones((height, width), bool), *drawn])[:, None]


def draw_mask(shapes: Shapes, draw: int, width: int, height: int) -> np.ndarray:
    """bool[H, W], True in one to three rectangles, ellipses or brush strokes. draw: as from MaskRule.draws."""
    kind = KINDS[hash64(draw, "kind") % len(KINDS)] if shapes == "mixed" else shapes
    image = Image.new("1", (width, height))
    canvas = ImageDraw.Draw(image)
    for part in range(1 + hash64(draw, "parts") % MAX_PARTS):
        if kind == "strokes":
            _draw_stroke(canvas, hash64(draw, part), width, height)
        else:
            box = _box(hash64(draw, part), width, height)
            (canvas.rectangle if kind == "rectangles" else canvas.ellipse)(box, fill=1)
    return np.asarray(image)


def painted_out(pixels: np.ndarray, masks: np.ndarray) -> np.ndarray:
    """float32[N, 3, H, W]: an image in [-1, 1] with gray in place of what each mask shows. masks: [N, 1, H, W]."""
    return np.where(masks, np.float32(0), pixels)


def add_inpainting(record: dict[str, Tensor], pixels: np.ndarray, masks: np.ndarray, encoder: LatentEncoder) -> None:
    """Adds to a cache entry what the model sees with each mask.

    pixels: [3, H, W], in [-1, 1]. masks: as from `inpainting_masks`.
    """
    import torch

    from modules.families.inpainting import mask_channels

    record[MASKED] = encoder.encode(torch.from_numpy(painted_out(pixels, masks)))
    size = record[MASKED].shape[-2:]
    channels = mask_channels(encoder.family.inpainting, torch.from_numpy(masks).float(), *size)
    record[MASKS] = channels.bool()


def chosen_inpainting(record: Mapping[str, Tensor], draw: tuple[int, ...], whole: float) -> Tensor:
    """[M + C, h, w]: a row of the `inpainting` in `Batch.given`.

    draw: (seed, epoch, sample, repeat). whole: how often a drawn mask is the whole image.
    """
    import torch

    count, number = len(record[MASKS]), 0
    if count > 1 and uniform(*draw, "whole mask") >= whole:
        number = 1 + int(uniform(*draw, "inpainting mask") * (count - 1))
    return torch.cat([record[MASKS][number].to(record[MASKED]), record[MASKED][number]])


def describe_inpainting(dataset: Dataset) -> str | None:
    """How many images have masks; None for a run that needs none."""
    if dataset.inpainting is None:
        return None
    images = dataset.images_of(range(len(dataset)))
    num_with = sum(bool(mask_of(dataset, image)) for image in images)
    has_one = counted(len(images), "image has one", "images have one")
    return f"{num_with} of {has_one}, {dataset.inpainting.variants} are drawn for each other image"


def _draws(dataset: Dataset, sample: int) -> list[int]:
    assert dataset.inpainting is not None  # callers ask only then
    view = -1 if dataset.views is None else int(dataset.views.variant[sample])
    return dataset.inpainting.draws(os.path.basename(dataset.paths[sample]), view)


def _between(limits: tuple[float, float], *draw: int | str) -> float:
    return limits[0] + (limits[1] - limits[0]) * uniform(*draw)


def _box(draw: int, width: int, height: int) -> tuple[int, int, int, int]:
    """Left, top, right and bottom of a box inside the image, both ends included."""
    box_w, box_h = (max(1, round(side * _between(SIDES, draw, name))) for side, name in ((width, "w"), (height, "h")))
    left = int(uniform(draw, "x") * (width - box_w + 1))
    top = int(uniform(draw, "y") * (height - box_h + 1))
    return left, top, left + box_w - 1, top + box_h - 1


def _draw_stroke(canvas: ImageDraw.ImageDraw, draw: int, width: int, height: int) -> None:
    """A line of straight pieces, with round bends and ends, as of a brush."""
    side = min(width, height)
    brush = max(1, round(side * _between(BRUSH, draw, "brush")))
    x, y = uniform(draw, "x") * width, uniform(draw, "y") * height
    points = [(x, y)]
    for bend in range(1 + hash64(draw, "bends") % MAX_BENDS):
        angle = uniform(draw, bend, "angle") * 2 * math.pi
        length = side * _between(SIDES, draw, bend, "length") / 2
        x = min(max(x + length * math.cos(angle), 0), width - 1)
        y = min(max(y + length * math.sin(angle), 0), height - 1)
        points.append((x, y))
    canvas.line(points, fill=1, width=brush)
    radius = (brush - 1) / 2  # the ends of a box are drawn, too
    for x, y in points:
        canvas.ellipse((x - radius, y - radius, x + radius, y + radius), fill=1)
