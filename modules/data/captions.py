"""The captions of one image: from a text file next to it, a table, its file name, or its concept."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping, Sequence, Set
from functools import lru_cache
from typing import TYPE_CHECKING

from modules.config.installation import CONVERTS_CAPTIONS
from modules.config.methods import facts_of
from modules.config.regular_file import read_regular
from modules.data.caption_edits import alternatives, as_trained, varies, without_removed_tags
from modules.data.caption_encodings import why_not_utf8
from modules.data.errors import CaptionError, DataError
from modules.data.image_formats import EXTENSIONS
from modules.data.timed_captions import Span, caption_parts, captions_at
from modules.data.videos import EXTENSIONS as VIDEO_EXTENSIONS

if TYPE_CHECKING:
    from modules.config.ConceptConfig import ConceptConfig
    from modules.config.TrainConfig import TrainConfig

MAX_CAPTION_BYTES = 64 * 1024
MAX_LINES_BYTES = 1024 * 1024  # of a text file, which may hold several captions
PUNCTUATION = (",", ".", ";", ":", "!", "?")  # which no space precedes
NUM_LISTED = 5  # unreadable caption files named in an error message
REMEDIES_OF_SEVERAL = {
    "encoding": f"save those in another encoding as UTF-8 ({CONVERTS_CAPTIONS})",
    "size": "shorten those that are too large",
    "access": "make the others readable text files",
}

OTHER_EXTENSIONS = (".txt", ".caption", ".cap", ".tags", ".json")  # of caption files, as other programs write them

# path below the concept's folder, with / -> captions
Table = Mapping[str, tuple[str, ...]]


def read_captions(
    image_path: str | os.PathLike[str], concept: ConceptConfig, table: Table | None = None, span: Span | None = None
) -> tuple[str, ...] | None:
    """The captions of an image of `concept`, each on one line; None if it has none, nor a fallback, prefix or suffix.

    table: the concept's caption table, if it uses one. span: of a clip of a video, whose parts may have their own.
    Raises CaptionError if the text file can't be read, is not UTF-8, or a caption exceeds MAX_CAPTION_BYTES.
    """
    return edited_captions(own_captions(image_path, concept, table), concept, span)


def edited_captions(
    captions: tuple[str, ...] | None, concept: ConceptConfig, span: Span | None = None
) -> tuple[str, ...] | None:
    """As `read_captions`, from what `own_captions` has read."""
    if captions and span:
        captions = captions_at(captions, span)
    if concept.lower_case:
        captions = captions and tuple(map(str.lower, captions))
    if has_fallback(concept) and not any(captions or ()):
        captions = (concept.caption_fallback.strip(),)
    if not captions and has_surroundings(concept):
        captions = ("",)  # a missing caption is treated as an empty one
    # first, for a tag may be removed from one of the alternatives alone
    chosen = [choice for text in captions or () for choice in alternatives(text, concept)]
    edited = [without_removed_tags(text, concept) for text in chosen]
    around = (alternatives(text.strip(), concept) for text in (concept.caption_prefix, concept.caption_suffix))
    texts = [_surrounded(text, *both) for text, *both in itertools.product(edited, *around)]
    if not varies(concept):  # else it is still needed
        texts = [as_trained(text, concept) for text in texts]
    return captions and tuple(texts)


def has_fallback(concept: ConceptConfig) -> bool:
    """Whether images without a caption get one all the same."""
    return concept.captions in ("txt", "table") and bool(concept.caption_fallback.strip())


def has_surroundings(concept: ConceptConfig) -> bool:
    """Whether images without a caption are trained with the prefix and suffix alone."""
    return bool(concept.caption_prefix.strip() or concept.caption_suffix.strip())


def lacks_text(captions: tuple[str, ...] | None, concept: ConceptConfig) -> bool:
    """Whether one of the captions that `own_captions` has read is empty, and no fallback takes its place."""
    if captions is None or concept.captions not in ("txt", "table") or all(captions):
        return False
    return any(captions) or not has_fallback(concept)


def _surrounded(caption: str, prefix: str, suffix: str) -> str:
    text = " ".join(filter(None, (prefix, caption)))
    is_mark = suffix.startswith(PUNCTUATION)
    return f"{text}{suffix}" if text and is_mark else " ".join(filter(None, (text, suffix)))


def own_captions(
    image_path: str | os.PathLike[str], concept: ConceptConfig, table: Table | None
) -> tuple[str, ...] | None:
    """The captions as they are written: those of parts of a video start with a time. Raises like `read_captions`."""
    if concept.captions == "prompt":
        return (concept.prompt,)
    if concept.captions == "file_name":
        return (plain_text(file_stem(image_path)).replace("_", " ").strip(),)
    if concept.captions == "table":
        if table is None:
            raise ValueError("captions from a table need the table")
        found = table.get(path_in_concept(os.fspath(image_path), concept))
        return found and tuple(map(plain_text, found))
    texts = (_read_text(path, concept.caption_per_line) for path in caption_paths(image_path, concept))
    return next((text for text in texts if text is not None), None)


def trained_words(config: TrainConfig) -> tuple[str, ...]:
    """The placeholders of textual inversion that a run trains."""
    return tuple(one.placeholder for one in config.embeddings) if facts_of(config).trains_words else ()


def check_placeholders(config: TrainConfig, captions: Iterable[str]) -> None:
    """Raises DataError if a placeholder of textual inversion appears in no caption."""
    missing = dict(enumerate(trained_words(config)))
    if not missing:
        return
    for caption in captions:
        missing = {number: word for number, word in missing.items() if word not in caption}
        if not missing:
            return
    number, word = next(iter(missing.items()))
    raise DataError.at(
        f"embeddings.{number}.placeholder",
        f"{word!r} appears in no caption: add it to the captions of the images that it should learn.",
    )


def describe_unreadable(errors: Sequence[CaptionError]) -> str:
    """One sentence about all unusable caption files, naming the first few. errors: at least one."""
    if len(errors) == 1:
        return str(errors[0])
    named = [f"{error.path} {error.reason}" for error in errors[:NUM_LISTED]]
    named += [f"and {len(errors) - NUM_LISTED} more"] if len(errors) > NUM_LISTED else []
    kinds = {error.kind for error in errors}
    remedies = [remedy for kind, remedy in REMEDIES_OF_SEVERAL.items() if kind in kinds]
    return f"{len(errors)} captions can't be read ({'; '.join(named)}): {' and '.join(remedies)}."


def caption_paths(image_path: str | os.PathLike[str], concept: ConceptConfig) -> tuple[str, ...]:
    """The paths that an image's caption file may have, of which the first that exists is read.

    `a/b.png` -> `a/b.txt`, `a/b.TXT`, `a/b.Txt`; of a folder of frames, `a/b` -> `a/b.txt` and so on.
    """
    return _paths_with(caption_extension(concept), image_path)


def _paths_with(extension: str, image_path: str | os.PathLike[str]) -> tuple[str, ...]:
    stem = _without_extension(image_path)
    return tuple(stem + case for case in _cases(extension))


@lru_cache(maxsize=64)  # asked for by each image
def _cases(extension: str) -> tuple[str, ...]:
    spellings = (extension, extension.lower(), extension.upper(), f".{extension[1:].capitalize()}")
    return tuple(dict.fromkeys(spellings))


def captions_beside(image_path: str, concept: ConceptConfig, known: Set[str]) -> tuple[bool, str]:
    """Whether an image has a caption file, and one that is not read; "" if there is none.

    That is a second one whose extension differs in case, or, of an image without a caption file, one of another
    extension. known: the paths of the files there are.
    """
    own = [path for path in caption_paths(image_path, concept) if path in known]
    if own:
        return True, own[1] if len(own) > 1 else ""
    others = (path for extension in OTHER_EXTENSIONS for path in _paths_with(extension, image_path))
    return False, next((path for path in others if path in known), "")


def caption_extension(concept: ConceptConfig) -> str:
    """The ending of caption files, with its dot, which may be left out in the settings."""
    return "." + (concept.caption_extension.strip().lstrip(".") or "txt")


def path_in_concept(image_path: str, concept: ConceptConfig) -> str:
    """An image's path relative to its concept's folder, with forward slashes."""
    root = os.path.join(os.path.expanduser(concept.path), "")
    return image_path.removeprefix(root).replace(os.sep, "/")


def file_stem(path: str | os.PathLike[str]) -> str:
    return os.path.basename(_without_extension(path))


def _without_extension(path: str | os.PathLike[str]) -> str:
    """Of a folder of frames, what follows a dot in its name stays."""
    stem, extension = os.path.splitext(os.fspath(path))
    return stem if extension.lower() in EXTENSIONS | VIDEO_EXTENSIONS else os.fspath(path)


def check_length(caption: str, where: str) -> None:
    """Raises DataError for an unreasonably long caption. where: its location, for the message."""
    if _is_too_long(caption):
        raise DataError(f"caption {where} is larger than {MAX_CAPTION_BYTES // 1024} KB: shorten it.")


def _is_too_long(caption: str) -> bool:
    return len(caption.encode("utf-8", "surrogatepass")) > MAX_CAPTION_BYTES


def plain_text(text: str) -> str:
    """`text` without lone surrogates, which tokenizers reject; they come from file names that are not UTF-8."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _read_text(path: str, per_line: bool) -> tuple[str, ...] | None:
    """Raises CaptionError."""
    try:
        content = read_regular(path, MAX_LINES_BYTES + 1)
    except FileNotFoundError as error:
        if not os.path.islink(path):
            return None
        raise CaptionError(path, "access", "is a link to a file that is not there") from error
    except OSError as error:
        raise CaptionError(path, "access", f"can't be read ({error.strerror})") from error
    return texts_in(content, path, per_line)


def texts_in(content: bytes, path: str, per_line: bool) -> tuple[str, ...]:
    """The captions in the content of a caption file. path: for messages. Raises CaptionError."""
    if len(content) > MAX_LINES_BYTES:
        raise CaptionError(path, "size", f"is larger than {MAX_LINES_BYTES // 1024} KB")
    if reason := why_not_utf8(content):
        raise CaptionError(path, "encoding", reason)
    # Windows editors start UTF-8 files with a byte order mark
    lines = [line.strip() for line in content.decode("utf-8-sig").splitlines()]
    lines = [line for line in lines if line]
    if not per_line:
        text = " ".join(lines)
        if any(_is_too_long(part.text) for part in caption_parts((text,))):
            raise CaptionError(path, "size", f"is larger than {MAX_CAPTION_BYTES // 1024} KB")
        return (text,)
    if any(map(_is_too_long, lines)):
        raise CaptionError(path, "size", f"has a line larger than {MAX_CAPTION_BYTES // 1024} KB")
    return tuple(lines) or ("",)
