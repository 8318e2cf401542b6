"""Selects the images that are held out for validation and never trained on."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from modules.config.counted import counted
from modules.config.regular_file import open_regular
from modules.data.draws import uniform_array
from modules.data.errors import DataError, ImageError
from modules.data.videos import files_of

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig
    from modules.data.Dataset import Dataset

NUM_READERS = 8
PEEKED_BYTES = 4096


def hold_out(dataset: Dataset, share: float) -> Dataset:
    """Marks the validation images: those of validation concepts, and the fraction `share` of all others.

    The fraction is drawn by the images' content, so that duplicates stay together and the choice is the same in every
    run, even after images are added. It takes no images from regularization concepts.
    Raises DataError if no image is left to train on.
    """
    held_out = np.array([concept.validation for concept in dataset.concepts], bool)[dataset.concept_index]
    if share:
        with ThreadPoolExecutor(NUM_READERS) as readers:
            contents = np.fromiter(readers.map(_peek, dataset.paths), np.uint64, len(dataset))
        # regularization images preserve what the model knows; their loss says nothing about what it learned
        is_prior = np.array([concept.regularisation for concept in dataset.concepts], bool)[dataset.concept_index]
        held_out |= ~is_prior & (uniform_array(contents, "held out") < share)
    if not held_out.any():
        return dataset
    if held_out.all():
        raise DataError(
            f"all {counted(len(dataset), 'image is', 'images are')} held out for validation (data.validation_share "
            f"{share:g} and concepts.N.validation): leave some to train on."
        )
    return replace(dataset, held_out=held_out)


def no_validation_warning(config: TrainConfig, num_held_out: int) -> str | None:
    """A warning if the validation loss is requested but no image is held out."""
    asked = config.data.validation_share or any(concept.enabled and concept.validation for concept in config.concepts)
    if config.validation.unit == "never" or num_held_out or not asked:  # validation_problems warns
        return None
    return (
        f"data.validation_share {config.data.validation_share:g} holds out none of the images, so no validation loss "
        "is measured: increase it, or mark a concept with validation."
    )


def _peek(path: str) -> int:
    """A 64-bit hash of a file's size, beginning and end; equal files have equal hashes, without reading whole files.

    Of a folder of frames, it is made of the first and the last one and their number. Of a file that can't be read any
    more, it is made of its name: training will leave the image out.
    """
    try:
        return _peek_files(files_of(path))
    except (OSError, ImageError):
        return int.from_bytes(blake2b(os.fsencode(os.path.basename(path)), digest_size=8).digest(), "little")


def _peek_files(files: Sequence[str]) -> int:
    digest = blake2b(digest_size=8)
    for name in dict.fromkeys((files[0], files[-1])):
        with open_regular(name) as file:
            digest.update(file.read(PEEKED_BYTES))
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - PEEKED_BYTES, 0))
            digest.update(file.read(PEEKED_BYTES))
        digest.update(size.to_bytes(8, "little"))
    if len(files) > 1:
        digest.update(len(files).to_bytes(8, "little"))
    return int.from_bytes(digest.digest(), "little")
