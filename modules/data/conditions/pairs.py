"""Pairs: images whose counterparts are trained with them, as the method says; see `MethodFacts.takes_pairs`.

The counterpart of `people/ann.jpg` is the image `people/ann.*` in the concept's folder of paired images. It is cropped,
augmented and encoded like the image, and cached with it. Denoisers don't see it, so that no family declares it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from modules.config.counted import counted
from modules.config.methods import facts_of
from modules.data.Batch import PAIRED
from modules.data.conditions.ConditionData import ConditionData
from modules.data.Dataset import Column
from modules.data.errors import DataError, ImageError
from modules.data.image_views import augmentation_of
from modules.data.images import adjust_colors, fit_image, load_image, to_array
from modules.data.paired_files import find_paired
from modules.families.conditions import Condition

if TYPE_CHECKING:
    from torch import Tensor

    from modules.config.TrainConfig import TrainConfig
    from modules.data.buckets import Buckets
    from modules.data.conditions.ConditionData import Decoded, Rows
    from modules.data.Dataset import Dataset
    from modules.data.LatentEncoder import LatentEncoder
    from modules.families.Family import Family

PAIR = "pair"  # of the column of a dataset: the path of each sample's counterpart, in a tuple


@dataclass(frozen=True)
class Pairs(Condition):
    """A counterpart of each image."""


class _Pairs(ConditionData[Pairs]):
    folder_setting = "pair_folder"

    def find(self, dataset: Dataset, config: TrainConfig) -> Dataset:
        one, several = facts_of(config).pair_words
        found = find_paired(dataset, "pair_folder", one, several)
        for path, files in zip(dataset.paths, found, strict=True):
            if len(files) != 1:
                raise DataError(
                    f"{path} has {counted(len(files), one)} in concepts.N.pair_folder: each image needs one of its "
                    "name; add it, or remove the image."
                )
        return with_pairs(dataset, found)

    def describe(self, dataset: Dataset) -> tuple[str, str] | None:
        return None if dataset.column(PAIR) is None else ("Pairs", "one image for each")

    def cached_pixels(self, dataset: Dataset, sample: int, pixels: float) -> float:
        return pixels

    def key_parts(
        self, dataset: Dataset, buckets: Buckets, sample: int, contents: Mapping[str, str | None]
    ) -> list[object]:
        return [{"pair": [contents[path] for path in dataset.value(PAIR, sample) or ()]}]

    def load(self, dataset: Dataset, buckets: Buckets, sample: int, mask: np.ndarray | None) -> np.ndarray:
        (path,) = dataset.value(PAIR, sample)
        augmentation = augmentation_of(dataset, sample)
        try:
            image = fit_image(load_image(path), *buckets.shape_of(sample), augmentation)
        except ImageError as error:
            reason = f"its counterpart {os.path.basename(path)} can't be read: {error.reason}"
            raise ImageError(path, reason) from error
        return to_array(adjust_colors(image, augmentation))

    def encode(self, decoded: Decoded, latents: Tensor, encoder: LatentEncoder) -> dict[str, Tensor]:
        import torch

        return {PAIR: encoder.encode(torch.from_numpy(decoded.loaded[self.spec.name])[None])[0]}

    def given(self, rows: Rows) -> dict[str, Any]:
        import torch

        return {PAIRED: torch.stack([record[PAIR] for record in rows.records])}


def with_pairs(dataset: Dataset, found: list[tuple[str, ...]]) -> Dataset:
    """The dataset with the counterpart of each sample."""
    column = Column(found, files=tuple, identity=lambda files: (Path(path).name for path in files))
    return dataset.with_column(PAIR, column)


def family_of_run(family: Family, config: TrainConfig) -> Family:
    """The family, with pairs among its conditions if the method learns from them."""
    if not facts_of(config).takes_pairs(config) or family.condition(Pairs) is not None:
        return family
    return replace(family, conditions=(*family.conditions, Pairs()))


CONDITION = _Pairs
