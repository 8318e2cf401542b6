"""The caption of one picture: from a text file beside it, from its name, or from its concept."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from modules.data.errors import DataError

if TYPE_CHECKING:
    from modules.config.ConceptConfig import ConceptConfig

MAX_CAPTION_BYTES = 64 * 1024


def read_caption(picture_path: str | os.PathLike[str], concept: ConceptConfig) -> str | None:
    """The caption of a picture of `concept`, on one line; None if it should have a text file and has none.

    Raises DataError if the text file can't be read, is not UTF-8 or is larger than MAX_CAPTION_BYTES.
    """
    if concept.captions == "prompt":
        return concept.prompt
    if concept.captions == "file_name":
        return file_stem(picture_path).replace("_", " ").strip()
    return _read_text(caption_path(picture_path))


def caption_path(picture_path: str | os.PathLike[str]) -> str:
    """Where the caption of a picture is looked for: `a/b.png` -> `a/b.txt`."""
    return os.path.splitext(picture_path)[0] + ".txt"


def file_stem(path: str | os.PathLike[str]) -> str:
    return os.path.splitext(os.path.basename(path))[0]


def _read_text(path: str) -> str | None:
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_CAPTION_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataError(f"caption {path} can't be read ({error.strerror}): make it a readable text file.") from error
    if len(content) > MAX_CAPTION_BYTES:
        raise DataError(f"caption {path} is larger than {MAX_CAPTION_BYTES // 1024} KB: shorten it.")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = content[error.start]
        message = f"caption {path} is not UTF-8 (byte 0x{byte:02x} at {error.start}): save it as UTF-8."
        raise DataError(message) from error
    # Windows editors open UTF-8 files with a byte order mark. It is removed here, not by utf-8-sig, which would move
    # the position of a wrong byte.
    lines = (line.strip() for line in text.removeprefix("\ufeff").splitlines())
    return " ".join(line for line in lines if line)
