"""Masks for models that paint a part of an image: from a mask file, or drawn.

Such a model sees a mask, 1 where it paints, and the latents of the image with gray in place of that part. To keep the
VAE out of the training step, both are cached with the image, for several drawn masks; each time the image is used, one
of them is drawn.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from PIL import Image, ImageDraw

from modules.config.counted import counted
from modules.data.conditions.ConditionData import ConditionData
from modules.data.crops import read_crop, with_crops
from modules.data.Dataset import Column, Dataset, Views
from modules.data.draws import hash64, uniform
from modules.data.errors import DataError
from modules.data.images import fit_image, read_size, size_or_reason
from modules.data.masks import is_mask_clip, load_mask, mask_beside, mask_of, with_masks
from modules.data.videos import info_or_reason, load_still, split_time
from modules.families.conditions import Inpainting, SourceClip

if TYPE_CHECKING:
    from torch import Tensor

    from modules.config.SampleConfig import SampleConfig
    from modules.config.TrainConfig import TrainConfig
    from modules.data.buckets import Buckets
    from modules.data.conditions.ConditionData import Decoded, Rows
    from modules.data.ImageRequest import ImageRequest
    from modules.data.LatentEncoder import LatentEncoder
    from modules.families.Family import Family

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
RULE = "inpainting"  # of the column of a dataset: the MaskRule of each sample


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


class _Inpainting(ConditionData[Inpainting]):
    def find(self, dataset: Dataset, config: TrainConfig) -> Dataset:
        return with_rule(dataset, mask_rule(config))

    def describe(self, dataset: Dataset) -> tuple[str, str] | None:
        images = dataset.images_of(range(len(dataset)))
        num_with = sum(bool(mask_of(dataset, image)) for image in images)
        has_one = counted(len(images), "image has one", "images have one")
        rule = _rule_of(dataset, 0)
        return "Masks", f"{num_with} of {has_one}, {rule.variants} are drawn for each other image"

    @staticmethod
    def previews(
        config: TrainConfig, number: int, path: str, picture: Image.Image, shape: tuple[int, int]
    ) -> Iterator[tuple[str, Image.Image]]:
        """The image without augmentation, with gray in place of each of its masks."""
        rule, concept = mask_rule(config), config.concepts[number]
        one, whole = np.ones(1, np.int32), read_size(path)
        crop = read_crop(concept, path, whole)
        width, height = whole if crop is None else crop.size
        is_varied = concept.augmentation.is_on
        views = Views(np.zeros(1, np.int64), np.zeros(1, np.int32), rule.seed) if is_varied else None
        dataset = Dataset([concept], [path], np.zeros(1, np.int32), one * width, one * height, [])
        dataset = with_masks(with_crops(dataset, [crop]))
        dataset = with_rule(replace(dataset, views=views), rule)
        file, mask = mask_of(dataset, 0), None
        if file:
            mask = load_mask(file, whole, *shape, is_alpha=file == path, crop=crop)
        names = ["mask file"] if file else ["whole image", *(f"mask {number + 1}" for number in range(rule.variants))]
        image, gray = fit_image(picture, *shape), Image.new("RGB", shape, "gray")
        for name, painted in zip(names, inpainting_masks(dataset, 0, shape, mask), strict=False):
            yield name, Image.composite(gray, image, Image.fromarray(painted[0]))

    def cached_pixels(self, dataset: Dataset, sample: int, pixels: float) -> float:
        # a mask has a byte for each pixel
        mask_bytes = 1 / self.family.latent_bytes_per_pixel if self.spec.resolution == "pixels" else 0.0
        num_masks = 1 if mask_of(dataset, sample) else 1 + _rule_of(dataset, sample).variants
        return num_masks * (1 + mask_bytes) * pixels

    def key_parts(
        self, dataset: Dataset, buckets: Buckets, sample: int, contents: Mapping[str, str | None]
    ) -> list[object]:
        """Beside the mask file, which every key has."""
        if mask_of(dataset, sample):
            return [{"inpainting": "file"}]
        return [{"inpainting": [DRAWING_VERSION, _rule_of(dataset, sample).shapes, *_draws(dataset, sample)]}]

    def load(self, dataset: Dataset, buckets: Buckets, sample: int, mask: np.ndarray | None) -> np.ndarray:
        return inpainting_masks(dataset, sample, buckets.shape_of(sample), mask)

    def encode(self, decoded: Decoded, latents: Tensor, encoder: LatentEncoder) -> dict[str, Tensor]:
        """What the model sees with each mask."""
        import torch

        from modules.families.inpainting import mask_channels

        pixels, masks = decoded.pixels, decoded.loaded[self.spec.name]
        assert pixels is not None  # models for inpainting train on images
        masked = encoder.encode(torch.from_numpy(painted_out(pixels, masks)))
        channels = mask_channels(self.spec.resolution, torch.from_numpy(masks).float(), *masked.shape[-2:])
        return {MASKED: masked, MASKS: channels.bool()}

    def given(self, rows: Rows) -> dict[str, Tensor | list[list[Tensor]]]:
        import torch

        pairs = zip(rows.records, rows.draws, strict=True)
        whole = rows.data.inpainting_whole
        return {"inpainting": torch.stack([chosen_inpainting(record, draw, whole) for record, draw in pairs])}

    def sample_settings(self, dataset: Dataset, sample: int) -> dict[str, Any]:
        return {"reference": dataset.paths[sample], "mask": mask_of(dataset, sample) or ""}

    def check_sample(self, sample: SampleConfig, path: str) -> None:
        check_mask(sample.mask, sample.reference, self.family, f"{path}.mask", "reference")

    def sample_arguments(self, request: ImageRequest, count: int) -> dict[str, Any]:
        image, mask = self._to_paint(request)
        # one for each prompt, so that each is encoded with its own generator, whatever the size of the batch
        size = {"width": image.width, "height": image.height}
        return {"image": [image] * count, "mask_image": [mask] * count, **size}

    def _to_paint(self, request: ImageRequest) -> tuple[Image.Image, Image.Image]:
        """The image to paint in and its mask, white where the model paints.

        They have the size of the request, or else that of the image. Without an image, all of it is painted.
        """
        if not request.references:
            side = self.family.published.side if self.family.published else 512
            size = request.width or side, request.height or side
            return Image.new("RGB", size, "gray"), Image.new("L", size, 255)
        path, align = request.references[0], self.family.align
        image = load_still(path)
        own = image.size
        width, height = request.width or own[0], request.height or own[1]
        shape = width // align * align, height // align * align
        mask = os.path.expanduser(request.mask) or mask_beside(path)
        if not mask:
            return fit_image(image, *shape), _middle(*shape)
        fitted = load_mask(mask, own, *shape, is_alpha=mask == path)
        return fit_image(image, *shape), Image.fromarray((fitted[0] * 255).round().astype(np.uint8))


def mask_rule(config: TrainConfig) -> MaskRule:
    return MaskRule(config.data.inpainting_shapes, config.data.inpainting_variants, config.seed)


def with_rule(dataset: Dataset, rule: MaskRule) -> Dataset:
    """The dataset with the rule by which masks of its images are drawn."""
    return dataset.with_column(RULE, Column([rule] * len(dataset)))


def check_mask(mask: str, reference: str, family: Family | None, setting: str, image_setting: str) -> None:
    """Raises DataError if a model of `family` can't paint what `mask` shows.

    setting, image_setting: of the mask and of the image, as named in messages.
    """
    if not mask:
        return
    takes_clips = family is not None and bool(family.fact(SourceClip, "masked"))
    if family is None or not (family.has(Inpainting) or takes_clips):
        raise DataError.at(setting, f"{mask}: {family.label if family else 'this model'} takes no mask; leave it out.")
    if not reference:
        raise DataError.at(
            setting, f"{mask}: there is no image to paint in; set {image_setting}, or leave the mask out."
        )
    for path in mask.split("\n"):  # of a folder of frames, those from a time on
        file = os.path.expanduser(split_time(path)[0])
        reads = info_or_reason if takes_clips and is_mask_clip(file) else size_or_reason
        if isinstance(reason := reads(file), str):
            raise DataError.at(setting, f"{path}: it can't be read ({reason}); choose another mask.")


def inpainting_masks(dataset: Dataset, sample: int, shape: tuple[int, int], file: np.ndarray | None) -> np.ndarray:
    """bool[N, 1, H, W], True where the model paints. shape: (width, height). file: the mask file, [1, H, W] in 0..1."""
    if file is not None:
        return file[None] >= 0.5
    (width, height), shapes = shape, _rule_of(dataset, sample).shapes
    drawn = [draw_mask(shapes, draw, width, height) for draw in _draws(dataset, sample)]
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


def chosen_inpainting(record: Mapping[str, Tensor], draw: tuple[int, ...], whole: float) -> Tensor:
    """[M + C, h, w]: a row of the `inpainting` in `Batch.given`.

    draw: (seed, epoch, sample, repeat). whole: how often a drawn mask is the whole image.
    """
    import torch

    count, number = len(record[MASKS]), 0
    if count > 1 and uniform(*draw, "whole mask") >= whole:
        number = 1 + int(uniform(*draw, "inpainting mask") * (count - 1))
    return torch.cat([record[MASKS][number].to(record[MASKED]), record[MASKED][number]])


def _rule_of(dataset: Dataset, sample: int) -> MaskRule:
    return dataset.value(RULE, sample)


def _draws(dataset: Dataset, sample: int) -> list[int]:
    view = -1 if dataset.views is None else int(dataset.views.variant[sample])
    return _rule_of(dataset, sample).draws(os.path.basename(dataset.paths[sample]), view)


def _middle(width: int, height: int) -> Image.Image:
    """A mask of the middle half of both sides."""
    mask = Image.new("L", (width, height))
    mask.paste(255, (width // 4, height // 4, width - width // 4, height - height // 4))
    return mask


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


CONDITION = _Inpainting
