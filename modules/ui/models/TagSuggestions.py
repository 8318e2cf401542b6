"""The tags that a person may be typing into a caption, from all captions of the same concept. No Tk."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from modules.curation.TagIndex import TagCount, TagIndex
from modules.curation.TagList import clean, folded, tags_of

if TYPE_CHECKING:
    from modules.config.ConceptConfig import ConceptConfig
    from modules.ui.models.DatasetView import DatasetItem

LIMIT = 8  # suggestions at once
MAX_WORDS = 3.0  # of a tag, on average: the parts of a sentence with commas have more
PART, PAUSE_SECONDS = 4, 0.0005  # images indexed (0.7 ms) between two pauses, in which the window can go on
MIN_LETTERS = 2  # that are typed; of a script without upper and lower case one letter is a word


class TypedTag(NamedTuple):
    """The tag that is being typed. start: where it begins in the text, which has it up to the cursor."""

    start: int
    text: str


class Suggestions(NamedTuple):
    """tags: the likeliest first. is_tag: whether what is typed is a tag already."""

    tags: list[TagCount]
    is_tag: bool


@dataclass
class _Known:
    """What is known of one concept. captions: by path. num_captions: of them all; num_lists: that are lists of tags."""

    index: TagIndex
    captions: dict[str, tuple[str, ...]] = field(default_factory=dict)
    num_captions: int = 0
    num_lists: int = 0


class TagSuggestions:
    """The tags of concepts, by their numbers, indexed when they are first asked for.

    `find` may take seconds then: call it in a thread. Later it reads only what has changed.
    """

    def __init__(self, concept_of: Callable[[int], ConceptConfig]):
        self._concept_of = concept_of
        self._known: dict[int, _Known] = {}
        self._lock = threading.Lock()  # an index must not change while it is searched

    def find(self, items: Sequence[DatasetItem], number: int, caption: str, typed: str) -> Suggestions:
        """What `typed` may become; nothing if the captions are sentences.

        items: all that are there. number: of the concept. caption: that is being typed, without `typed`: the tags in it
        are not suggested again.
        """
        concept = self._concept_of(number)
        with self._lock:
            known = self._known.setdefault(number, _Known(TagIndex(concept)))
            _follow(known, [item for item in items if item.concept == number], concept)
            if not typed or not _is_list(caption, known, concept):
                return Suggestions([], False)
            present, here = {folded(tag) for tag in tags_of(caption, concept)}, folded(typed)
            found = known.index.suggest(typed, LIMIT + len(present) + 1)
        keys = [folded(one.tag) for one in found]
        others = [one for one, key in zip(found, keys, strict=True) if key != here and key not in present]
        return Suggestions(others[:LIMIT], here in keys)


def _follow(known: _Known, items: Sequence[DatasetItem], concept: ConceptConfig) -> None:
    """Let the index have the captions that the items have now."""
    num_changed = 0
    for item in items:
        captions, before = item.captions or (), known.captions.get(item.path, ())
        if captions is before or captions == before:
            continue
        known.num_captions += len(captions) - len(before)
        known.num_lists += sum(is_tag_list(text, concept) for text in captions)
        known.num_lists -= sum(is_tag_list(text, concept) for text in before)
        known.captions[item.path] = captions
        known.index.put(item.path, "\n".join(captions))
        num_changed += 1
        if num_changed % PART == 0:
            time.sleep(PAUSE_SECONDS)


def _is_list(caption: str, known: _Known, concept: ConceptConfig) -> bool:
    """Whether a caption is a list of tags; one of less than two tags is if most others are."""
    if len(tags_of(caption, concept)) >= 2:
        return is_tag_list(caption, concept)
    return 2 * known.num_lists >= max(1, known.num_captions)


def is_tag_list(caption: str, concept: ConceptConfig) -> bool:
    """Whether a caption is a list of tags, rather than a sentence, which may have commas, too."""
    if not concept.tag_separator.strip():
        return False
    tags = tags_of(caption, concept)
    return len(tags) >= 2 and sum(len(tag.split()) for tag in tags) <= MAX_WORDS * len(tags)


def typed_tag(text: str, cursor: int, concept: ConceptConfig) -> TypedTag | None:
    """The tag before the cursor, at letter `cursor`; None if nothing can be suggested for it.

    Nothing is for a tag whose end stands behind the cursor, and for less than MIN_LETTERS.
    """
    marks = [one for one in (concept.tag_separator, concept.kept_separator, concept.secondary_separator, "\n") if one]
    if not concept.tag_separator.strip():
        return None
    start = max(text.rfind(mark, 0, cursor) + len(mark) if mark in text[:cursor] else 0 for mark in marks)
    ends = [at for mark in marks if (at := text.find(mark, cursor)) >= 0]
    if text[cursor : min(ends, default=len(text))].strip():
        return None
    start += len(text[start:cursor]) - len(text[start:cursor].lstrip())
    typed = text[start:cursor]
    has_case = typed.upper() != typed.lower()
    if len(clean(typed)) < (MIN_LETTERS if has_case or typed.isdigit() else 1):
        return None
    return TypedTag(start, typed)
