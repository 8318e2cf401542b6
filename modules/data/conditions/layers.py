"""Layers: the transparent images that make up an image, for models that decompose images into them.

The layers of `people/ann.jpg` are the images `people/ann_0.*`, `people/ann_1.*` and so on in the concept's layer
folder, from the bottom to the top. They are encoded behind the image itself, along the axis that the frames of clips
have.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image
from PIL.Image import Resampling

from modules.config.counted import counted
from modules.data.conditions.ConditionData import ConditionData
from modules.data.conditions.references import RECORD, is_alike
from modules.data.conditions.SampleLayers import SampleLayers, composed
from modules.data.crops import cropped, whole_size
from modules.data.Dataset import Column
from modules.data.errors import DataError, ImageError
from modules.data.Finding import finding_of
from modules.data.image_views import augmentation_of
from modules.data.images import adjust_colors, fit_image, load_rgba, size_or_reason, to_array
from modules.data.paired_files import find_paired
from modules.data.videos import is_video, load_still, split_time
from modules.families.conditions import Layers

if TYPE_CHECKING:
    from diffusers.pipelines.pipeline_utils import DiffusionPipeline
    from torch import Tensor

    from modules.config.TrainConfig import TrainConfig
    from modules.data.buckets import Buckets
    from modules.data.conditions.ConditionData import Decoded
    from modules.data.Dataset import Dataset
    from modules.data.Finding import Finding
    from modules.data.ImageRequest import ImageRequest
    from modules.data.LatentEncoder import LatentEncoder

NUM_READERS = 8
LAYER = "layer"  # of the column of a dataset: the paths of each sample's layers
GLANCE = 64  # pixels of a side, in which an image is compared with its layers
TOLERANCE = 4.0  # mean difference, of 255: lossy files and soft edges stay far below


class _Layers(ConditionData[Layers]):
    folder_setting = "layer_folder"
    replaces_image = True

    def find(self, dataset: Dataset, config: TrainConfig) -> Dataset:
        return with_layers(dataset, self.family.label)

    def latent_frames(self, dataset: Dataset) -> Sequence[int] | None:
        layers = dataset.column(LAYER)
        return layers and [1 + len(own) for own in layers]

    def describe(self, dataset: Dataset) -> tuple[str, str] | None:
        if (layers := dataset.column(LAYER)) is None:
            return None
        counts = sorted({len(layers[image]) for image in dataset.images_of(range(len(dataset)))})
        several = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])
        return "Layers", f"{several} of each image"

    def findings(self, dataset: Dataset, unusable: Mapping[int, str]) -> Iterator[Finding]:
        """Reports images that are not the sum of their layers, as if these were numbered from the top to the bottom."""
        if dataset.column(LAYER) is None:
            return
        images = [sample for sample in np.flatnonzero(dataset.num_views).tolist() if sample not in unusable]
        with ThreadPoolExecutor(NUM_READERS) as readers:
            sums = readers.map(lambda sample: _adds_up(dataset, sample), images)
            others = [dataset.paths[sample] for sample, adds_up in zip(images, sums, strict=True) if not adds_up]
        if others:
            one = "image doesn't match its composited layers (_0 is the bottom)"
            several = "images don't match their composited layers (_0 is the bottom)"
            yield finding_of("layers", "warning", one, several, others)

    def cached_pixels(self, dataset: Dataset, sample: int, pixels: float) -> float:
        layers = layers_of(dataset, sample)
        return pixels / (1 + len(layers)) if layers else 0.0  # the image once more, without its layers

    def key_parts(
        self, dataset: Dataset, buckets: Buckets, sample: int, contents: Mapping[str, str | None]
    ) -> list[object]:
        layers = layers_of(dataset, sample)
        return [{"layers": [contents[path] for path in layers]}] if layers else []

    def load_pixels(self, dataset: Dataset, buckets: Buckets, sample: int) -> np.ndarray:
        return load_layers(dataset, buckets, sample)

    def encode_pixels(self, pixels: np.ndarray, encoder: LatentEncoder) -> Tensor:
        """[C, 1 + L, h, w]"""
        import torch

        return torch.cat(list(encoder.encode(torch.from_numpy(pixels))), dim=1)

    def encode(self, decoded: Decoded, latents: Tensor, encoder: LatentEncoder) -> dict[str, Tensor]:
        """The image itself as the reference that the model sees without noise."""
        return {f"{RECORD}0": latents[:, :1].clone()}

    def sample_settings(self, dataset: Dataset, sample: int) -> dict[str, Any]:
        return {"reference": dataset.paths[sample]}

    def why_too_few(self, num_images: int) -> str:
        return "" if num_images else "decomposes images; name one."

    def sample_arguments(self, request: ImageRequest, count: int) -> dict[str, Any]:
        """The image to decompose, with its transparency, cropped to the shape of the request."""
        (path,) = request.references
        image = load_still(path).convert("RGBA") if is_video(split_time(path)[0]) else load_rgba(path)
        if request.width and request.height:
            image = fit_image(image, request.width, request.height)
        return {"image": image, **self.spec.options(request.layers, *image.size)}

    def made(self, samples: list[Any], output: Any, pipe: DiffusionPipeline, request: ImageRequest) -> list[Any]:
        return [SampleLayers(layers) for layers in samples]


def with_layers(dataset: Dataset, family: str) -> Dataset:
    """Adds layers to a dataset without views, and removes the images of which one can't be read.

    family: its name, for the messages.
    Raises DataError if a layer folder does not exist, if an image has no layers or some of another aspect ratio, or if
    no image is left.
    """
    found = find_paired(dataset, "layer_folder", "layer", "layers")
    lacking = [path for path, layers in zip(dataset.paths, found, strict=True) if not layers]
    if lacking:
        raise DataError(
            f"{counted(len(lacking), 'image has', 'images have')} no layers, such as {lacking[0]}, but {family} learns "
            "to decompose images: add those of cat.png to the layer folder as cat_0.png, cat_1.png and so on, from "
            "the bottom to the top, or remove the image."
        )
    unique = list(dict.fromkeys(path for layers in found for path in layers))
    with ThreadPoolExecutor(NUM_READERS) as readers:
        sizes = dict(zip(unique, readers.map(size_or_reason, unique), strict=True))
    kept: list[int] = []
    lost: list[tuple[str, str]] = []
    for sample, layers in enumerate(found):
        reasons = [f"its layer {path} can't be read: {sizes[path]}" for path in layers if isinstance(sizes[path], str)]
        if reasons:
            lost.append((dataset.paths[sample], reasons[0]))
            continue
        own = whole_size(dataset, sample)
        for path in layers:
            _check_aspect(path, sizes[path], dataset.paths[sample], own)
        kept.append(sample)
    if not kept:
        raise DataError(f"none of the layers can be read, such as one of {lost[0][0]}: repair or remove them.")
    column = Column(found, files=tuple, identity=lambda layers: (Path(path).name for path in layers))
    return dataset.with_column(LAYER, column).take(kept, lost)


def layers_of(dataset: Dataset, sample: int) -> tuple[str, ...]:
    """The paths of a sample's layers, from the bottom to the top."""
    return dataset.value(LAYER, sample) or ()


def load_layers(dataset: Dataset, buckets: Buckets, sample: int) -> np.ndarray:
    """float32[1 + L, 4, H, W] in [-1, 1]: the image of a sample and its layers, all cropped and augmented alike.

    Raises ImageError.
    """
    augmentation = augmentation_of(dataset, sample)
    size = whole_size(dataset, sample)

    def load(path: str) -> np.ndarray:
        image = load_rgba(path)
        if image.size != size:
            image = image.resize(size, Resampling.LANCZOS)
        image = cropped(dataset, sample, image)
        fitted = to_array(adjust_colors(fit_image(image, *buckets.shape_of(sample), augmentation), augmentation))
        fitted[:, fitted[3] == -1] = -1  # as resizing leaves it: what a program keeps there can't be seen
        return fitted

    image = load(dataset.paths[sample])
    layers = []
    for path in layers_of(dataset, sample):
        try:
            layers.append(load(path))
        except ImageError as error:
            raise ImageError(path, f"its layer {os.path.basename(path)} can't be read: {error.reason}") from error
    return np.stack([image, *layers])


def add_up(image: str, layers: Sequence[str]) -> bool:
    """Whether the layers on top of each other look like their image, at a glance. Raises ImageError."""
    own, *parts = (load_rgba(path).resize((GLANCE, GLANCE), Resampling.BOX) for path in (image, *layers))
    white = Image.new("RGBA", (GLANCE, GLANCE), "white")
    seen, made = (np.asarray(composed([white, one]), np.float32) for one in (own, composed(parts)))
    return float(np.abs(seen - made).mean()) <= TOLERANCE


def _adds_up(dataset: Dataset, sample: int) -> bool:
    try:
        return add_up(dataset.paths[sample], layers_of(dataset, sample))
    except ImageError:  # damage behind the header, which decoding every image finds
        return True


def _check_aspect(path: str, size: tuple[int, int] | str, image: str, of_image: tuple[int, int]) -> None:
    assert not isinstance(size, str)  # such images are left out before
    if not is_alike(size, of_image):
        raise DataError(
            f"layer {path} is {size[0]} x {size[1]} and its image {os.path.basename(image)} {of_image[0]} x "
            f"{of_image[1]}: a layer needs the aspect ratio of its image; save it in the size of the image."
        )


CONDITION = _Layers
