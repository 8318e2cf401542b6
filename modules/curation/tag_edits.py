"""Edits of captions that are lists of tags, over any number of images. Nothing is written: each edit gives a preview.

A concept says what divides its tags. Tags are compared without regard to case, as training removes them
(`removed_tags`), and an edit changes no more of a caption than it has to. Of an image with several captions each is
edited on its own, and so is each part of a video's caption that starts with a time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from modules.config.errors import UserError
from modules.curation.TagList import TagList, blanks_around, clean, folded, tags_of
from modules.data.timed_captions import STAMP

if TYPE_CHECKING:
    from modules.config.ConceptConfig import ConceptConfig


class Edit(NamedTuple):
    """What an edit makes of a caption."""

    before: str
    after: str


Texts = Mapping[str, str]
"""Path of an image -> its caption, as `Caption.text` of CaptionFiles."""
Preview = dict[str, Edit]
"""Path of an image -> what its caption becomes; images whose captions stay the same are not in it."""
Place = Literal["front", "end"]


def edited_texts(preview: Preview) -> dict[str, str]:
    """What a preview writes, for `CaptionFiles.write`."""
    return {path: edit.after for path, edit in preview.items()}


def in_turn(texts: Texts, concept: ConceptConfig, *edits: Callable[[Texts, ConceptConfig], Preview]) -> Preview:
    """What several edits, each of what the one before has made, change together."""
    edited = dict(texts)
    for edit in edits:
        edited |= edited_texts(edit(edited, concept))
    return {path: Edit(text, edited[path]) for path, text in texts.items() if edited[path] != text}


def add_tags(texts: Texts, tags: Sequence[str], concept: ConceptConfig, place: Place = "end") -> Preview:
    """Add tags that a caption lacks. At the end, they stand before the tags that `kept_separator` keeps last."""
    wanted = [tag for tag in dict.fromkeys(map(clean, tags)) if tag]

    def edit(caption: str) -> str:
        there = set(map(folded, tags_of(caption, concept)))
        new = [tag for tag in wanted if folded(tag) not in there]
        if not new:
            return caption
        tag_list = TagList(caption, concept)
        tag_list.add(new, at_end=place == "end")
        return tag_list.text

    return _preview(texts, concept, edit)


def remove_tags(texts: Texts, tags: Collection[str], concept: ConceptConfig) -> Preview:
    """Remove tags wherever they are, also from groups of tags."""
    removed = set(map(folded, tags))
    return _map_tags(texts, concept, lambda there: lambda tag: None if folded(tag) in removed else tag)


def replace_tag(texts: Texts, old: str, new: str, concept: ConceptConfig) -> Preview:
    """Put one tag in the place of another. Where it is in the caption already, the other one is removed."""

    def change_of(there: set[str]) -> Callable[[str], str | None]:
        target = None if folded(new) in there - {folded(old)} else clean(new) or None
        return lambda tag: target if folded(tag) == folded(old) else tag

    return _map_tags(texts, concept, change_of)


def deduplicate_tags(texts: Texts, concept: ConceptConfig) -> Preview:
    """Remove tags that a caption has already had."""

    def change_of(there: set[str]) -> Callable[[str], str | None]:
        seen: set[str] = set()

        def first_alone(tag: str) -> str | None:
            if folded(tag) in seen:
                return None
            seen.add(folded(tag))
            return tag

        return first_alone

    return _map_tags(texts, concept, change_of)


def move_to_front(texts: Texts, tags: Sequence[str], concept: ConceptConfig) -> Preview:
    """Move tags to the front, in this order, of the captions that have them."""
    order = {folded(tag): number for number, tag in reversed(list(enumerate(tags)))}

    def edit(caption: str) -> str:
        tag_list = TagList(caption, concept)
        moved = [tag for tag in tag_list.tags if folded(tag) in order]
        moved = list({folded(tag): tag for tag in reversed(moved)}.values())
        moved.sort(key=lambda tag: order[folded(tag)])
        if not moved or [folded(tag) for tag in tag_list.tags[: len(moved)]] == list(map(folded, moved)):
            return caption
        tag_list.map_tags(lambda tag: None if folded(tag) in order else tag, in_groups=False)
        tag_list.add(moved, at_end=False)
        return tag_list.text

    return _preview(texts, concept, edit)


def sort_tags(texts: Texts, concept: ConceptConfig, counts: Mapping[str, int] | None = None) -> Preview:
    """Sort the tags by name, or by `counts`, the most frequent first. Tags that the concept keeps in place stay.

    counts: folded tag -> its number of captions, as from `TagIndex.counts`.
    """

    def key(tag: str) -> tuple[int, str]:
        return (-counts.get(folded(tag), 0) if counts else 0, folded(tag))

    def edit(caption: str) -> str:
        tag_list = TagList(caption, concept)
        tag_list.sort(key)
        return tag_list.text

    return _preview(texts, concept, edit)


def tidy_tags(texts: Texts, concept: ConceptConfig) -> Preview:
    """Write all tags with one separator and one blank between them, and none that are empty."""

    def edit(caption: str) -> str:
        tag_list = TagList(caption, concept)
        tag_list.tidy()
        return tag_list.text

    return _preview(texts, concept, edit)


def add_trigger(
    texts: Texts, word: str, concept: ConceptConfig, place: Place = "front", as_tag: bool = True
) -> Preview:
    """Put a trigger word into all captions that do not contain it as a whole word, in this spelling.

    as_tag: whether it is a tag of its own, or a word of the sentence, with a blank instead of the separator.
    Raises UserError if the word is empty.
    """
    word = clean(word)
    if not word:
        raise UserError("The trigger word is empty: write one, such as a name that no other thing has.")
    whole = re.compile(rf"(?<!\w){re.escape(word)}(?!\w)")

    def edit(caption: str) -> str:
        if whole.search(caption):
            return caption
        if not as_tag:
            return " ".join(filter(None, (word, caption) if place == "front" else (caption, word)))
        tag_list = TagList(caption, concept)
        tag_list.add([word], at_end=place == "end")
        return tag_list.text

    return _preview(texts, concept, edit)


def copy_caption(texts: Texts, caption: str, concept: ConceptConfig, only_missing: bool = False) -> Preview:
    """Give all images one caption. only_missing: only those that have none, so that nothing is replaced."""
    chosen = {path: text for path, text in texts.items() if not (only_missing and text.strip())}
    return {path: Edit(text, caption) for path, text in chosen.items() if text != caption}


def find_and_replace(
    texts: Texts,
    find: str,
    replacement: str,
    concept: ConceptConfig,
    *,
    is_regex: bool = False,
    ignore_case: bool = False,
    whole_words: bool = False,
) -> Preview:
    r"""Replace every occurrence of a text, anywhere in the captions.

    is_regex: whether `find` is a regular expression of Python; `replacement` then may have groups, such as \1.
    Raises UserError if one of them is not valid.
    """
    if not find:
        raise UserError("The text to find is empty: write what should be replaced.")
    source = find if is_regex else re.escape(find)
    try:
        pattern = re.compile(rf"(?<!\w)(?:{source})(?!\w)" if whole_words else source, re.IGNORECASE * ignore_case)
        if is_regex:
            pattern.sub(replacement, "")  # an empty text shows a group that does not exist, too
            re.compile(f"{source}|").sub(replacement, "")
    except (re.error, IndexError) as error:
        raise UserError(
            f"{find!r} can't be replaced by {replacement!r} ({error}): correct the regular expression, or turn regular "
            "expressions off."
        ) from error
    return _preview(
        texts, concept, lambda caption: pattern.sub(replacement if is_regex else lambda match: replacement, caption)
    )


def _map_tags(
    texts: Texts, concept: ConceptConfig, change_of: Callable[[set[str]], Callable[[str], str | None]]
) -> Preview:
    """change_of: the folded tags of a caption -> what becomes of each of its tags, in order; None removes it."""

    def edit(caption: str) -> str:
        tag_list = TagList(caption, concept)
        tag_list.map_tags(change_of(set(map(folded, tags_of(caption, concept)))))
        return tag_list.text

    return _preview(texts, concept, edit)


def _preview(texts: Texts, concept: ConceptConfig, edit: Callable[[str], str]) -> Preview:
    """edit: of one caption without times."""
    per_line = concept.captions == "table" or concept.caption_per_line
    edited = ((path, text, _edited_text(text, edit, per_line)) for path, text in texts.items())
    return {path: Edit(text, after) for path, text, after in edited if after != text}


def _edited_text(text: str, edit: Callable[[str], str], per_line: bool) -> str:
    if not per_line or not text.strip():
        return _edited_caption(text, edit)
    lines = ((line, _edited_caption(line, edit) if line.strip() else line) for line in text.split("\n"))
    return "\n".join(after for line, after in lines if after.strip() or not line.strip())


def _edited_caption(caption: str, edit: Callable[[str], str]) -> str:
    """A caption whose parts with a time of their own are each edited; empty ones stay so."""
    stamps = list(STAMP.finditer(caption))
    if not stamps:
        return edit(caption)
    ends = [0, *(stamp.end() for stamp in stamps)]
    starts = [*(stamp.start() for stamp in stamps), len(caption)]
    parts = [caption[end:start] for end, start in zip(ends, starts, strict=True)]
    parts = [_within_blanks(part, edit) if part.strip() else part for part in parts]
    return parts[0] + "".join(stamp[0] + part for stamp, part in zip(stamps, parts[1:], strict=True))


def _within_blanks(text: str, edit: Callable[[str], str]) -> str:
    before, after = blanks_around(text)
    return f"{before}{edit(text.strip())}{after}"
