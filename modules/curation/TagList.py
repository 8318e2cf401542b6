"""The tags of one caption, with all that stands between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from modules.data.caption_edits import joined_tags

if TYPE_CHECKING:
    from modules.config.ConceptConfig import ConceptConfig


def clean(tag: str) -> str:
    """A tag without blanks around it and line ends in it, as training reads it."""
    return " ".join(tag.split())


def folded(tag: str) -> str:
    """What equal tags have in common."""
    return clean(tag).casefold()


def tags_of(caption: str, concept: ConceptConfig) -> list[str]:
    """The tags of a caption in order, those in groups one by one."""
    tags = TagList(caption, concept).tags
    inner = concept.secondary_separator
    return [tag for group in tags for tag in map(clean, group.split(inner) if inner else [group]) if tag]


class TagList:
    """A caption as the lists of tags that `kept_separator` divides it into; one list without it.

    A concept without a tag separator has captions of one tag.
    """

    def __init__(self, caption: str, concept: ConceptConfig):
        self._concept = concept
        kept = concept.kept_separator
        parts = caption.split(kept, 2) if kept else [caption]
        self._bodies = [part.strip() for part in parts]
        self._blanks = [blanks_around(part) for part in parts]

    @property
    def text(self) -> str:
        parts = zip(self._blanks, self._bodies, strict=True)
        return self._concept.kept_separator.join(f"{before}{body}{after}" for (before, after), body in parts)

    @property
    def tags(self) -> list[str]:
        """All tags; a group of tags is one of them."""
        return [tag for body in self._bodies for tag in map(clean, self._split(body)) if tag]

    def add(self, tags: Sequence[str], at_end: bool) -> None:
        """At the front, or at the end of those that are not kept last."""
        part = min(1, len(self._bodies) - 1) if at_end else 0
        body = self._bodies[part]
        if at_end:
            separator = self._concept.tag_separator.strip()
            body = body.removesuffix(separator).rstrip() if separator else body
        texts = [body, *tags] if at_end else [*tags, body]
        self._bodies[part] = joined_tags(list(filter(None, texts)), self._concept)

    def map_tags(self, change: Callable[[str], str | None], in_groups: bool = True) -> None:
        """Replace each tag by `change(tag)`, or remove it where that is None; what is between others stays.

        in_groups: whether groups of tags are looked into.
        """
        inner = self._concept.secondary_separator if in_groups else ""
        for number, body in enumerate(self._bodies):
            self._bodies[number] = _joined(_mapped(self._split(body), change, inner), self._concept.tag_separator)

    def sort(self, key: Callable[[str], Any]) -> None:
        """Sort the tags that shuffling would shuffle."""
        part = min(1, len(self._bodies) - 1)
        tags = [tag for tag in map(clean, self._split(self._bodies[part])) if tag]
        num_kept = 0 if part else self._concept.keep_tags
        ordered = tags[:num_kept] + sorted(tags[num_kept:], key=key)
        if ordered != tags:
            self._bodies[part] = joined_tags(ordered, self._concept)

    def tidy(self) -> None:
        """Write one separator and one blank between tags, and none that are empty."""
        lists = ([tag for tag in map(clean, self._split(body)) if tag] for body in self._bodies)
        self._bodies = [joined_tags(tags, self._concept) for tags in lists]

    def _split(self, body: str) -> list[str]:
        return body.split(self._concept.tag_separator) if self._concept.tag_separator else [body]


def _mapped(texts: list[str], change: Callable[[str], str | None], inner: str) -> list[str]:
    """The texts between separators, each with the blanks around it; those of removed tags are left out."""
    kept = []
    for text in texts:
        tag = clean(text)
        if inner and inner in text:
            after: str | None = _joined(_mapped(text.strip().split(inner), change, ""), inner) or None
            tag = text.strip()
        else:
            after = change(tag) if tag else tag
        if after is not None:
            before, behind = blanks_around(text)
            kept.append(text if after == tag else f"{before}{after}{behind}")
    return kept


def _joined(texts: list[str], separator: str) -> str:
    """A list from which the first or last tag may have been removed, so that blanks would begin or end it."""
    return separator.join(texts).strip()


def blanks_around(text: str) -> tuple[str, str]:
    """What stands before and behind the first and last letter."""
    body = text.strip()
    at = text.find(body) if body else len(text)
    return text[:at], text[at + len(body) :]
