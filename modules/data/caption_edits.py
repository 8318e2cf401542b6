"""Changes to captions: tags that are left out, alternatives in braces, and how a caption is made of its tags."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING

from modules.data.errors import DataError

if TYPE_CHECKING:
    from modules.config.ConceptConfig import ConceptConfig

MAX_ALTERNATIVES = 64  # of one caption: each of them is encoded and cached
_BRACES = re.compile(r"\{([^{}]*\|[^{}]*)\}")


def without_removed_tags(caption: str, concept: ConceptConfig) -> str:
    """`caption` without the tags that `removed_tags` lists, which are compared without regard to case."""
    if not concept.removed_tags.strip() or not concept.tag_separator:
        return caption
    removed = _patterns(concept.removed_tags, concept.tag_separator)
    parts = []
    for part in _parts(caption, concept):
        tags = tags_in(part, concept)
        kept = [_without_matches(tag, removed, concept.secondary_separator) for tag in tags]
        parts.append(joined_tags(list(filter(None, kept)), concept) if kept != tags else part)
    return concept.kept_separator.join(parts)


def _without_matches(group: str, removed: Iterable[re.Pattern[str]], inner: str) -> str:
    """A tag, or what is left of a group of tags joined by `inner`; "" if nothing is."""
    if _matches(group, removed):
        return ""
    tags = group.split(inner) if inner else [group]
    kept = [tag for tag in tags if not _matches(tag.strip(), removed)]
    return inner.join(kept).strip() if len(kept) < len(tags) else group


def varies(concept: ConceptConfig) -> bool:
    """Whether the tags of a caption are drawn anew for each showing."""
    return concept.shuffle_tags or concept.tag_dropout > 0 or concept.capitalization != "off"


def as_trained(caption: str, concept: ConceptConfig) -> str:
    """`caption`, whose tags don't vary, as one list of tags without the separators that only steer how they vary."""
    parts = _parts(caption, concept)
    if len(parts) > 1:
        caption = joined_tags([tag for part in parts for tag in tags_in(part, concept)], concept)
    return with_open_groups(caption, concept)


def with_open_groups(caption: str, concept: ConceptConfig) -> str:
    """`caption` with the separator between tags in place of that within a group of tags."""
    inner = concept.secondary_separator
    if not inner or inner not in caption:
        return caption
    tags = [tag for group in tags_in(caption, concept) for tag in map(str.strip, group.split(inner)) if tag]
    return joined_tags(tags, concept)


def may_be_dropped(tag: str, concept: ConceptConfig) -> bool:
    """Whether tag dropout can leave out this tag, by the concept's lists."""
    if _matches(tag, _patterns(concept.undropped_tags, concept.tag_separator)):
        return False
    only = concept.dropped_tags
    return not only.strip() or _matches(tag, _patterns(only, concept.tag_separator))


def three_parts(caption: str, concept: ConceptConfig) -> tuple[list[str], list[str], list[str]]:
    """The tags that stay first, those that may be shuffled and left out, and those that stay last."""
    first, *others = (tags_in(part, concept) for part in _parts(caption, concept))
    if not others:
        return first[: concept.keep_tags], first[concept.keep_tags :], []
    return first, others[0], others[1] if len(others) > 1 else []


def tags_in(caption: str, concept: ConceptConfig) -> list[str]:
    return [tag for tag in map(str.strip, caption.split(concept.tag_separator)) if tag]


def _parts(caption: str, concept: ConceptConfig) -> list[str]:
    return caption.split(concept.kept_separator, 2) if concept.kept_separator else [caption]


def joined_tags(tags: list[str], concept: ConceptConfig) -> str:
    """One caption of these tags."""
    separator = concept.tag_separator if concept.tag_separator.isspace() else f"{concept.tag_separator.strip()} "
    return separator.join(tags)


def class_caption(caption: str, concept: ConceptConfig) -> str | None:
    """`caption` with the class in place of the trigger word, or None if it is not in it."""
    trigger = concept.trigger_word.strip()
    if not trigger or not concept.class_word.strip():
        return None
    changes_case = concept.lower_case or concept.capitalization != "off"
    pattern = re.compile(rf"(?<!\w){re.escape(trigger)}(?!\w)", re.IGNORECASE if changes_case else 0)
    text, count = pattern.subn(lambda match: concept.class_word.strip(), caption)
    return text if count else None


def alternatives(caption: str, concept: ConceptConfig) -> tuple[str, ...]:
    """What a caption with {red|blue} stands for, each once. Raises DataError if there are too many."""
    if not concept.wildcards or "|" not in caption:
        return (caption,)
    parts = _BRACES.split(caption)  # plain text and choices in turn
    choices = [part.split("|") if number % 2 else [part] for number, part in enumerate(parts)]
    texts = tuple(itertools.islice(("".join(chosen) for chosen in itertools.product(*choices)), MAX_ALTERNATIVES + 1))
    if len(texts) > MAX_ALTERNATIVES:
        raise DataError(
            f"caption {caption[:60]!r} stands for more than {MAX_ALTERNATIVES} texts: use fewer choices in braces."
        )
    return tuple(dict.fromkeys(" ".join(text.split()) for text in texts))


def _matches(tag: str, patterns: Iterable[re.Pattern[str]]) -> bool:
    return any(pattern.fullmatch(tag) for pattern in patterns)


@lru_cache(maxsize=64)
def _patterns(tags: str, separator: str) -> tuple[re.Pattern[str], ...]:
    """The tags of a list as regular expressions; each on its own, for (?i) and \\1 refer to all of an expression."""
    return tuple(re.compile(tag, re.IGNORECASE) for tag in map(str.strip, tags.split(separator)) if tag)
