"""Count the samples of an epoch on disk, from which the number of steps follows. No Tk.

Modules that read images are imported where they are used: NumPy would delay the window's first display.
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
    """The samples of an epoch, including repeats; None if they can't be counted, which the concepts tab and the check
    before a start report. Reads the headers of all images, so call it in a thread.

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
    """Everything that `count_pictures` depends on, except the files: an equal key means the same number."""
    outputs = Outputs.of(config)
    return config.data.validation_share, *(_concept_key(concept, outputs) for concept in config.concepts)


def scan_key(concept: ConceptConfig, outputs: Outputs) -> tuple:
    """Everything that the images found in a concept's folder depend on, whether it is enabled or not.

    outputs: of the next run, which matter if they are inside the folder.
    """
    return (
        outputs.inside(concept.path),
        concept.path,
        concept.include_subfolders,
        concept.include,
        concept.exclude,
        concept.captions,
        concept.caption_extension,
        concept.caption_fallback,
        concept.caption_table,
        concept.caption_column,
    )


def _concept_key(concept: ConceptConfig, outputs: Outputs) -> tuple:
    if not concept.enabled:
        return ()
    return scan_key(concept, outputs), concept.repeats, concept.share, concept.regularisation, concept.validation
