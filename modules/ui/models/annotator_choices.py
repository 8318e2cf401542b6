"""What the choices of the windows have in common in which a model works on images. No Tk."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from modules.config.errors import UserError
from modules.data.videos import is_video
from modules.ui.models.AnnotatorRun import Part

if TYPE_CHECKING:
    from modules.config.ConceptConfig import ConceptConfig
    from modules.ui.models.DatasetView import DatasetItem

NUM_PREVIEWED = 3


def kept_values(choices: type, values: Mapping[str, object]) -> dict[str, Any]:
    """Of values that were kept, possibly by another version, those that a dataclass of choices can be made of."""
    kinds = {field.name: type(field.default) for field in fields(choices)}
    return {name: value for name, value in values.items() if type(value) is kinds.get(name)}


def given_options(texts: Mapping[str, str], switches: Mapping[str, bool]) -> list[str]:
    """Options of a script: those that have a text, and the switches that are on."""
    given = [f"{name}={text.strip()}" for name, text in texts.items() if text.strip()]  # it may begin with a dash
    return given + [name for name, is_on in switches.items() if is_on]


def check_number(label: str, text: str, kind: type[int] | type[float], least: float, most: float) -> None:
    """Raises UserError unless a text is a number from `least` to `most`. label: of its field."""
    try:
        number = kind(text)
    except ValueError:
        number = None
    if number is None or not least <= number <= most:
        what = "a whole number" if kind is int else "a number"
        raise UserError(f"{label} {text.strip()!r}: is not {what} from {least} to {most}; write one.")


def parts_of(
    items: Iterable[DatasetItem],
    concept_of: Callable[[int], ConceptConfig],
    selected: bool,
    videos: bool,
    only_clips: str,
) -> list[Part]:
    """The items by their concepts, as a run takes them. concept_of: a concept by its number. selected: whether the
    items are not all of their concepts. videos: whether clips are taken. only_clips: said if there is nothing else.

    Raises UserError if there is nothing for a run.
    """
    of_concept: dict[int, list[str]] = {}
    num_videos = 0
    for item in items:
        if is_video(item.path) and not videos:
            num_videos += 1
            continue
        of_concept.setdefault(item.concept, []).append(item.path)
    if not of_concept:
        raise UserError(only_clips if num_videos else "No image is chosen.")
    return [
        Part(concept_of(number), tuple(map(os.path.abspath, paths)) if selected else None)
        for number, paths in sorted(of_concept.items())
    ]
