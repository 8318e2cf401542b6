"""Which pictures are kept for validation and never trained on."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from modules.data.draws import uniform
from modules.data.errors import DataError

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig
    from modules.data.concepts import Dataset

NUM_READERS = 8
PEEKED_BYTES = 4096


def hold_out(dataset: Dataset, share: float) -> Dataset:
    """`dataset` with the pictures marked that are for validation: a concept's, or `share` of all by their content.

    A picture's content alone decides, so that equal pictures stay together, on every run and whatever is added; of
    regularisation concepts `share` takes none.
    Raises DataError where no picture is left to train on.
    """
    held_out = np.array([concept.validation for concept in dataset.concepts], bool)[dataset.concept_index]
    if share:
        with ThreadPoolExecutor(NUM_READERS) as readers:
            contents = np.fromiter(readers.map(_peek, dataset.paths), np.uint64, len(dataset))
        # what must not be forgotten tells nothing of what was learnt
        is_prior = np.array([concept.regularisation for concept in dataset.concepts], bool)[dataset.concept_index]
        held_out |= ~is_prior & (uniform(contents, "held out") < share)
    if not held_out.any():
        return dataset
    if held_out.all():
        raise DataError(
            f"all {len(dataset)} pictures are held out for validation (data.validation_share {share:g} and "
            "concepts.N.validation): leave some to train on."
        )
    return replace(dataset, held_out=held_out)


def no_validation_warning(config: TrainConfig, num_held_out: int) -> str | None:
    """A warning where the validation loss is asked for and the pictures to hold out are none."""
    asked = config.data.validation_share or any(concept.enabled and concept.validation for concept in config.concepts)
    if config.validation.unit == "never" or num_held_out or not asked:  # without either the settings are warned of
        return None
    return (
        f"data.validation_share {config.data.validation_share:g} holds out none of the pictures, so no validation loss "
        "is measured: raise it, or mark a concept with validation."
    )


def _peek(path: str) -> int:
    """64 bits of a file's size, beginning and end: equal files have equal ones, and pictures are seldom read whole."""
    with open(path, "rb") as file:
        digest = blake2b(file.read(PEEKED_BYTES), digest_size=8)
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - PEEKED_BYTES, 0))
        digest.update(file.read(PEEKED_BYTES))
    digest.update(size.to_bytes(8, "little"))
    return int.from_bytes(digest.digest(), "little")
