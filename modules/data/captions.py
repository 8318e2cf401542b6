"""The captions of one picture: from a text file beside it, a table, its name, or its concept."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from modules.data.errors import DataError

if TYPE_CHECKING:
    from modules.config.ConceptConfig import ConceptConfig
    from modules.config.TrainConfig import TrainConfig

MAX_CAPTION_BYTES = 64 * 1024
MAX_LINES_BYTES = 1024 * 1024  # of a text file that holds several captions

# path below the concept's folder, with / -> captions
Table = Mapping[str, tuple[str, ...]]


def read_captions(
    picture_path: str | os.PathLike[str], concept: ConceptConfig, table: Table | None = None
) -> tuple[str, ...] | None:
    """The captions of a picture of `concept`, each on one line; None if it should have one and has none.

    table: of the concept, if that is where its captions are.
    Raises DataError if the text file can't be read, is not UTF-8 or holds more than MAX_CAPTION_BYTES for a caption.
    """
    if concept.captions == "prompt":
        return (concept.prompt,)
    if concept.captions == "file_name":
        return (_plain_text(file_stem(picture_path)).replace("_", " ").strip(),)
    if concept.captions == "table":
        found = table.get(path_in_concept(os.fspath(picture_path), concept))
        return found and tuple(map(_plain_text, found))
    return _read_text(caption_path(picture_path), concept.caption_per_line)


def check_placeholders(config: TrainConfig, captions: Iterable[str]) -> None:
    """Raises DataError where a word that textual inversion shall train stands in no caption."""
    if config.method != "embedding":
        return
    missing = {number: embedding.placeholder for number, embedding in enumerate(config.embeddings)}
    for caption in captions:
        missing = {number: word for number, word in missing.items() if word not in caption}
        if not missing:
            return
    number, word = next(iter(missing.items()))
    raise DataError(
        f"embeddings.{number}.placeholder {word!r} stands in no caption: write it into the captions of the pictures "
        "that it shall learn."
    )


def caption_path(picture_path: str | os.PathLike[str]) -> str:
    """Where the caption of a picture is looked for: `a/b.png` -> `a/b.txt`."""
    return os.path.splitext(picture_path)[0] + ".txt"


def path_in_concept(picture_path: str, concept: ConceptConfig) -> str:
    """A picture's path below the folder of its concept, with / between the parts."""
    root = os.path.join(os.path.expanduser(concept.path), "")
    return picture_path.removeprefix(root).replace(os.sep, "/")


def file_stem(path: str | os.PathLike[str]) -> str:
    return os.path.splitext(os.path.basename(path))[0]


def check_length(caption: str, where: str) -> None:
    """Raises DataError for a caption that no text encoder would take; `where` it is, for the message."""
    if len(caption.encode("utf-8", "surrogatepass")) > MAX_CAPTION_BYTES:
        raise DataError(f"caption {where} is larger than {MAX_CAPTION_BYTES // 1024} KB: shorten it.")


def _plain_text(text: str) -> str:
    """`text` as every tokenizer takes it: halves of characters and bytes of names that are not UTF-8 are replaced."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _read_text(path: str, per_line: bool) -> tuple[str, ...] | None:
    limit = MAX_LINES_BYTES if per_line else MAX_CAPTION_BYTES
    try:
        with open(path, "rb") as file:
            content = file.read(limit + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataError(f"caption {path} can't be read ({error.strerror}): make it a readable text file.") from error
    if len(content) > limit:
        raise DataError(f"caption {path} is larger than {limit // 1024} KB: shorten it.")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = content[error.start]
        message = f"caption {path} is not UTF-8 (byte 0x{byte:02x} at {error.start}): save it as UTF-8."
        raise DataError(message) from error
    # Windows editors open UTF-8 files with a byte order mark. It is removed here, not by utf-8-sig, which would move
    # the position of a wrong byte.
    lines = [line.strip() for line in text.removeprefix("\ufeff").splitlines()]
    lines = [line for line in lines if line]
    if not per_line:
        return (" ".join(lines),)
    for line in lines:
        check_length(line, path)
    return tuple(lines) or ("",)
