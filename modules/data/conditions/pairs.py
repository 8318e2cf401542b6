"""Pairs: images whose counterparts are trained with them, as the method says; see `MethodFacts.takes_pairs`.

The counterpart of `people/ann.jpg` is the image `people/ann.*` in the concept's folder of paired images. It is cropped,
augmented and encoded like the image, and cached with it. Denoisers don't see it, so that no family declares it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

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
from modules.data.preference_pairs import PROMPT, ListedPair, read_preferences
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
        method = facts_of(config)
        one, several = method.pair_words
        found = find_paired(dataset, "pair_folder", one, several)
        listed = _listed(dataset) if method.lists_pairs else {}
        numbers = dataset.concept_index.tolist()
        rows: list[_Row] = []
        for sample, (path, number, files) in enumerate(zip(dataset.paths, numbers, found, strict=True)):
            if number in listed:
                continue
            if len(files) != 1:
                where = f"concepts.{number}.pair_folder"
                raise DataError.at(
                    where,
                    f"has {counted(len(files), one, several)} for {path}: each image needs one of its name; add it, or "
                    "remove the image.",
                )
            rows.append(_Row(sample, files, None))
        for number, pairs in listed.items():
            samples = {os.path.realpath(dataset.paths[i]): i for i, own in enumerate(numbers) if own == number}
            rows += [_row_of(pair, samples, number) for pair in pairs]
        captionless = {of for of in dataset.captionless if of[0] not in listed}
        taken = replace(dataset, captionless=captionless).take([row.sample for row in rows])
        return with_pairs(taken, [row.files for row in rows]).with_column(PROMPT, Column([row.prompt for row in rows]))

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


class _Row(NamedTuple):
    """sample: of the image. files: its counterpart. prompt: None for the caption of the image."""

    sample: int
    files: tuple[str, ...]
    prompt: str | None


def _listed(dataset: Dataset) -> dict[int, list[ListedPair]]:
    """The pairs of each concept without a folder of paired images, by its number. Raises DataError."""
    used = sorted(set(dataset.concept_index.tolist()))
    return {
        number: read_preferences(dataset.concepts[number].path, f"concepts.{number}")
        for number in used
        if not dataset.concepts[number].pair_folder.strip()
    }


def _row_of(pair: ListedPair, samples: Mapping[str, int], number: int) -> _Row:
    sample = samples.get(os.path.realpath(pair.chosen))
    if sample is None:
        problem = "is not among the images of the concept" if os.path.isfile(pair.chosen) else "is missing"
        raise DataError.at(f"concepts.{number}.path", f"{pair.line}: {pair.chosen} {problem}; correct the line.")
    if not os.path.isfile(pair.rejected):
        raise DataError.at(f"concepts.{number}.path", f"{pair.line}: {pair.rejected} is missing; correct the line.")
    return _Row(sample, (pair.rejected,), pair.prompt)


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
