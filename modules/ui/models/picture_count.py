"""How many samples an epoch has, counted on the disk for the run's steps. No Tk.

What reads pictures is imported where it is used: NumPy would hold up the first picture of the window.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from modules.config.errors import UserError
from modules.data.folder_walk import Outputs

if TYPE_CHECKING:
    from modules.config.ConceptConfig import ConceptConfig
    from modules.config.TrainConfig import TrainConfig


def count_pictures(config: TrainConfig, is_wanted: Callable[[], bool]) -> int | None:
    """Samples of an epoch, repeats counted; None where they can't be, which the concepts tab and the check before the
    start tell. Reads the headers of all pictures; for a thread.

    is_wanted: as for `scan`.
    """
    from modules.data.concepts import scan
    from modules.data.epoch_plan import count_samples
    from modules.data.holdout import hold_out
    from modules.ui.models.concept_preview import NUM_READERS

    try:
        dataset = scan(config.concepts, NUM_READERS, is_wanted, Outputs.of(config))
        dataset = hold_out(dataset, config.data.validation_share)
    except UserError:
        return None
    return count_samples(len(dataset), dataset.repeats, concept_index=dataset.concept_index)


def count_key(config: TrainConfig) -> tuple:
    """What `count_pictures` depends on: the same key, the same number, unless files have changed."""
    outputs = Outputs.of(config)
    return config.data.validation_share, *(_concept_key(concept, outputs) for concept in config.concepts)


def scan_key(concept: ConceptConfig, outputs: Outputs) -> tuple:
    """What the pictures that are found in a concept's folder depend on, whether it is enabled or not.

    outputs: of the run to come, which matter where they lie in the folder.
    """
    return (
        outputs.inside(concept.path),
        concept.path,
        concept.include_subfolders,
        concept.include,
        concept.exclude,
        concept.captions,
        concept.caption_table,
        concept.caption_column,
    )


def _concept_key(concept: ConceptConfig, outputs: Outputs) -> tuple:
    if not concept.enabled:
        return ()
    return scan_key(concept, outputs), concept.repeats, concept.share, concept.regularisation, concept.validation
