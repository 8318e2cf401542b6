"""Finds caption files that are not UTF-8 and converts them."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from modules.config.atomic_file import write_bytes
from modules.config.clips import clip_rule
from modules.config.regular_file import read_regular
from modules.data.caption_encodings import WESTERN, byte_at, encoding_of, why_not_utf8
from modules.data.caption_tables import find_table
from modules.data.concepts import captions, scan
from modules.data.errors import CaptionError, DataError
from modules.data.folder_walk import Outputs

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig


@dataclass(frozen=True)
class ConvertedFile:
    """A converted file. encoding: the previous one. kept_as: name of the backup copy next to it. text: its content."""

    path: str
    encoding: str
    kept_as: str
    text: str


def misencoded_captions(config: TrainConfig) -> Iterator[str]:
    """Yields the paths of caption tables and then text files that `config` uses and that are not UTF-8.

    Raises DataError if the images or a table can't be found.
    """
    enabled = {f"concepts.{number}": concept for number, concept in enumerate(config.concepts) if concept.enabled}
    tables = [find_table(concept, setting) for setting, concept in enabled.items() if concept.captions == "table"]
    yield from filter(_is_misencoded, dict.fromkeys(tables))
    with_files = [replace(one, enabled=one.enabled and one.captions == "txt") for one in config.concepts]
    if any(concept.enabled for concept in with_files):
        unreadable: dict[str, CaptionError] = {}
        captions(scan(with_files, outputs=Outputs.of(config), videos=clip_rule(config) is not None), unreadable)
        errors = [error for error in unreadable.values() if error.kind == "encoding"]
        yield from dict.fromkeys(error.path for error in errors)


def convert_to_utf8(path: str, unmarked: str = WESTERN) -> ConvertedFile:
    """Converts a text file to UTF-8 atomically, keeping a copy of the original next to it.

    unmarked: the encoding to assume if the file does not reveal its own.
    Raises DataError if the file can't be decoded, read or written; the file is then unchanged.
    """
    try:
        content = read_regular(path)
        encoding = encoding_of(content, unmarked)
        text = content.decode(encoding)
        copy = shutil.copy2(path, _free_name(path))
        write_bytes(os.path.realpath(path), text.encode("utf-8"))  # keeps a symlink
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} can't be converted: it is not {encoding} ({byte_at(content, error.start)}); pass its encoding, as "
            "in --convert-captions cp1251."
        ) from error
    except OSError as error:
        message = f"{path} can't be converted ({error.strerror}): make the file and its folder writable."
        raise DataError(message) from error
    return ConvertedFile(path, encoding, os.path.basename(copy), text)


def _is_misencoded(path: str) -> bool:
    try:
        return why_not_utf8(read_regular(path)) is not None
    except OSError:  # reported by the dataset check
        return False


def _free_name(path: str) -> str:
    names = itertools.chain([f"{path}.bak"], (f"{path}.bak-{number}" for number in itertools.count(2)))
    return next(name for name in names if not os.path.lexists(name))
