"""The edits of many captions at once that the dataset window offers, with a preview of each. No Tk."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from modules.config.counted import counted
from modules.config.errors import UserError
from modules.curation import tag_edits
from modules.curation.tag_edits import Preview, Texts
from modules.curation.TagIndex import Misspelling, TagIndex
from modules.ui.models.TagSuggestions import PART, PAUSE_SECONDS, is_tag_list

if TYPE_CHECKING:
    from modules.config.ConceptConfig import ConceptConfig
    from modules.curation.CaptionFiles import Caption
    from modules.ui.models.CaptionWork import CaptionWork
    from modules.ui.models.DatasetView import DatasetItem


CONTEXT = 20  # letters before a change that the preview shows, about
TAG_START, WORD_START = re.compile(r"[,;.|\n]\s+"), re.compile(r"\s+")


@dataclass(frozen=True)
class Fields:
    """What is typed beside an edit: one or two texts, and what is ticked."""

    first: str = ""
    second: str = ""
    is_ticked: bool = False
    ignores_case: bool = False


@dataclass(frozen=True)
class EditKind:
    """make: the preview of the edit. first, second: labels of its texts, "" for none. tick, case: labels of what can be
    ticked. takes_tags: whether the first text is a list of tags."""

    make: Callable[[Texts, Fields, ConceptConfig], Preview]
    first: str = ""
    second: str = ""
    tick: str = ""
    case: str = ""
    takes_tags: bool = False


def tags_in(text: str, concept: ConceptConfig) -> list[str]:
    """The tags that are typed into one line, divided as the concept divides them, or by commas."""
    separator = concept.tag_separator.strip() or ","
    tags = [tag for part in text.split(separator) if (tag := part.strip())]
    if not tags:
        raise UserError("No tag is given: write one or several, with commas between them.")
    return tags


def _place(fields: Fields) -> tag_edits.Place:
    return "front" if fields.is_ticked else "end"


KINDS = {
    "Add tags": EditKind(
        lambda texts, fields, concept: tag_edits.add_tags(
            texts, tags_in(fields.first, concept), concept, _place(fields)
        ),
        "Tags", tick="At the front", takes_tags=True,
    ),
    "Remove tags": EditKind(
        lambda texts, fields, concept: tag_edits.remove_tags(texts, tags_in(fields.first, concept), concept),
        "Tags", takes_tags=True,
    ),
    "Replace a tag": EditKind(
        lambda texts, fields, concept: tag_edits.replace_tag(
            texts, tags_in(fields.first, concept)[0], fields.second, concept
        ),
        "Tag", "Replace with", takes_tags=True,
    ),
    "Move tags to the front": EditKind(
        lambda texts, fields, concept: tag_edits.move_to_front(texts, tags_in(fields.first, concept), concept),
        "Tags", takes_tags=True,
    ),
    "Add a trigger word": EditKind(
        lambda texts, fields, concept: tag_edits.add_trigger(
            texts, fields.first, concept, as_tag=not fields.is_ticked
        ),
        "Trigger word", tick="As a word of the sentence",
    ),
    "Find and replace": EditKind(
        lambda texts, fields, concept: tag_edits.find_and_replace(
            texts, fields.first, fields.second, concept, is_regex=fields.is_ticked, ignore_case=fields.ignores_case
        ),
        "Find", "Replace with", tick="Regular expression", case="Ignore case",
    ),
    "Remove duplicate tags": EditKind(lambda texts, fields, concept: tag_edits.deduplicate_tags(texts, concept)),
    "Sort tags": EditKind(lambda texts, fields, concept: tag_edits.sort_tags(texts, concept)),
    "Tidy separators": EditKind(lambda texts, fields, concept: tag_edits.tidy_tags(texts, concept)),
    "Set the caption": EditKind(
        lambda texts, fields, concept: tag_edits.copy_caption(texts, fields.first, concept, fields.is_ticked),
        "Caption", tick="Only where there is none",
    ),
}  # fmt: skip
"""What the menu lists -> the edit. "Set the caption" starts with that of the current image."""


@dataclass(frozen=True)
class ManyEdits:
    """The preview of an edit of many captions, which may be of several concepts.

    previews: by concept. captions: that they were made from, by path. num_locked: images whose captions can't be
    edited.
    """

    previews: Mapping[int, Preview]
    captions: Mapping[str, Caption]
    num_images: int
    num_locked: int

    @property
    def texts(self) -> dict[int, dict[str, str]]:
        """The new captions, by concept and path; concepts in which nothing changes are left out."""
        made = {number: tag_edits.edited_texts(preview) for number, preview in self.previews.items()}
        return {number: texts for number, texts in made.items() if texts}

    @property
    def rows(self) -> list[tuple[str, str, str]]:
        """Path, and the caption before and after."""
        return [(path, *edit) for preview in self.previews.values() for path, edit in preview.items()]

    @property
    def num_changed(self) -> int:
        return sum(map(len, self.previews.values()))

    @property
    def summary(self) -> str:
        text = f"{self.num_changed:,} of {counted(self.num_images, 'caption')} would change."
        return text + (f" {self.num_locked:,} can't be edited." if self.num_locked else "")


def around_change(before: str, after: str) -> tuple[str, str]:
    """Both texts, without most of what they begin with alike, so that a narrow column shows what is different.

    They begin with a whole tag, or with a whole word if the tag is a long one.
    """
    pairs = enumerate(zip(before, after, strict=False))
    alike = next((place for place, (one, other) in pairs if one != other), min(len(before), len(after)))
    cut = alike - CONTEXT
    if cut <= CONTEXT:
        return before, after
    for start in (TAG_START, WORD_START):
        near = [place for found in start.finditer(before, 0, alike) if abs((place := found.end()) - cut) <= CONTEXT]
        if near:
            cut = max((place for place in near if place <= cut), default=near[0])
            break
    return "…" + before[cut:], "…" + after[cut:]


def read_captions_of(work: CaptionWork, items: Sequence[DatasetItem]) -> dict[int, dict[str, Caption]]:
    """The captions of items, by concept and path."""
    found: dict[int, dict[str, Caption]] = {}
    for item in items:
        found.setdefault(item.concept, {})[item.path] = work.read(item)
    return found


def misspelled_in(work: CaptionWork, captions: Mapping[int, Mapping[str, Caption]]) -> list[Misspelling]:
    """Rare tags of these captions that look like frequent ones, the clearest first; none of captions that are
    sentences. Call it in a thread: thousands take seconds."""
    found: list[Misspelling] = []
    for number, of_concept in captions.items():
        concept = work.concept(number)
        index = TagIndex(concept)
        for place, (path, caption) in enumerate(of_concept.items(), 1):
            if any(is_tag_list(line, concept) for line in caption.text.split("\n")):
                index.put(path, caption.text)
            if place % PART == 0:
                time.sleep(PAUSE_SECONDS)  # in which the window can go on
        found += index.misspellings()
    return found


def preview_edit(
    work: CaptionWork, captions: Mapping[int, Mapping[str, Caption]], kind: str, fields: Fields
) -> ManyEdits:
    """What an edit makes of these captions. Raises UserError if what is typed can't be used."""
    previews, num_locked = {}, 0
    for number, of_concept in captions.items():
        texts = {path: caption.text for path, caption in of_concept.items() if caption.can_edit}
        num_locked += len(of_concept) - len(texts)
        previews[number] = KINDS[kind].make(texts, fields, work.concept(number))
    every = {path: caption for of_concept in captions.values() for path, caption in of_concept.items()}
    return ManyEdits(previews, every, len(every), num_locked)


def label_of_edit(kind: str, fields: Fields, count: int) -> str:
    """What undo calls it."""
    text = f" ({fields.first})" if fields.first and KINDS[kind].first else ""
    return f"{kind}{text[:60]} in {counted(count, 'caption')}"
