"""Count the samples of an epoch on disk, from which the number of steps follows. No Tk.

Modules that read images are imported where they are used: NumPy would delay the window's first display.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from modules.config.clips import clip_rule
from modules.config.errors import UserError
from modules.config.problems import Problem
from modules.data.folder_walk import Outputs

if TYPE_CHECKING:
    from modules.config.clips import ClipRule
    from modules.config.ConceptConfig import ConceptConfig
    from modules.config.TrainConfig import TrainConfig


def count_pictures(config: TrainConfig, is_wanted: Callable[[], bool]) -> tuple[int | None, tuple[Problem, ...]]:
    """The samples of an epoch, with clips and repeats, and nothing. If the images can't be used, None and why not, a
    sentence for each concept that starts with the setting. Reads the headers of all images, so call it in a thread.

    is_wanted: as for `scan`.
    """
    from modules.data.clips import with_clips
    from modules.data.concepts import scan
    from modules.data.epoch_plan import count_samples
    from modules.data.holdout import hold_out
    from modules.ui.models.concept_preview import NUM_READERS

    if not any(concept.enabled for concept in config.concepts):  # a problem of the settings alone
        return None, ()
    try:
        rule = clip_rule(config)
        dataset = scan(config.concepts, NUM_READERS, is_wanted, Outputs.of(config), rule is not None)
        dataset = hold_out(with_clips(dataset, rule), config.data.validation_share)
    except UserError as error:
        problems = tuple(_problems_of_concepts(config, is_wanted))
        has_all_paths = all(concept.path.strip() for concept in config.concepts if concept.enabled)
        return None, problems or ((_of_concepts(error),) if has_all_paths else ())
    return count_samples(len(dataset), dataset.repeats, concept_index=dataset.concept_index), ()


def _problems_of_concepts(config: TrainConfig, is_wanted: Callable[[], bool]) -> Iterator[Problem]:
    """Why each concept can't be used on its own: `scan` ends at the first."""
    from modules.data.concepts import scan
    from modules.ui.models.concept_preview import NUM_READERS

    for number, concept in enumerate(config.concepts):
        if concept.enabled and concept.path.strip():  # else a problem of the settings alone
            # those before it are placeholders, so that the message has the right number
            alone = [*(replace(other, enabled=False) for other in config.concepts[:number]), concept]
            try:
                scan(alone, NUM_READERS, is_wanted, Outputs.of(config), clip_rule(config) is not None)
            except UserError as error:
                yield _of_concepts(error)


def _of_concepts(error: UserError) -> Problem:
    problem = error.problems[0]
    return problem if problem.path else replace(problem, path="concepts")


def count_key(config: TrainConfig) -> tuple:
    """Everything that `count_pictures` depends on, except the files: an equal key means the same number."""
    outputs, rule = Outputs.of(config), clip_rule(config)
    return config.data.validation_share, *(_concept_key(concept, outputs, rule) for concept in config.concepts)


def scan_key(concept: ConceptConfig, outputs: Outputs, rule: ClipRule | None = None) -> tuple:
    """Everything that the images and clips found in a concept's folder depend on, whether it is enabled or not.

    outputs: of the next run, which matter if they are inside the folder. rule: how videos become clips.
    """
    return (
        rule,
        outputs.inside(concept.path),
        concept.path,
        concept.include_subfolders,
        concept.frame_folders_fps,
        concept.include,
        concept.exclude,
        concept.captions,
        concept.caption_extension,
        concept.caption_fallback,
        concept.caption_table,
        concept.caption_column,
    )


def _concept_key(concept: ConceptConfig, outputs: Outputs, rule: ClipRule | None) -> tuple:
    if not concept.enabled:
        return ()
    return scan_key(concept, outputs, rule), concept.repeats, concept.share, concept.regularisation, concept.validation
