"""Files of captions that are not UTF-8, found and written anew in UTF-8."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from modules.config.atomic_file import write_bytes
from modules.data.caption_encodings import byte_at, encoding_of, why_not_utf8
from modules.data.caption_tables import find_table
from modules.data.concepts import captions, scan
from modules.data.errors import CaptionError, DataError
from modules.data.folder_walk import Outputs

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig

WESTERN = "cp1252"  # of Western European Windows: Latin-1 with more signs


@dataclass(frozen=True)
class Conversion:
    """A file that is UTF-8 now. encoding: that it was in. kept_as: name of the copy beside it. text: of the file."""

    path: str
    encoding: str
    kept_as: str
    text: str


def misencoded_captions(config: TrainConfig) -> Iterator[str]:
    """The paths of the caption tables, then of the text files, that `config` trains with and that are not UTF-8.

    Raises DataError for what keeps the images or a table from being found.
    """
    enabled = {f"concepts.{number}": concept for number, concept in enumerate(config.concepts) if concept.enabled}
    tables = [find_table(concept, setting) for setting, concept in enabled.items() if concept.captions == "table"]
    yield from filter(_is_misencoded, dict.fromkeys(tables))
    with_files = [replace(one, enabled=one.enabled and one.captions == "txt") for one in config.concepts]
    if any(concept.enabled for concept in with_files):
        unreadable: dict[str, CaptionError] = {}
        captions(scan(with_files, outputs=Outputs.of(config)), unreadable)
        errors = [error for error in unreadable.values() if error.kind == "encoding"]
        yield from dict.fromkeys(error.path for error in errors)


def convert_to_utf8(path: str, unmarked: str = WESTERN) -> Conversion:
    """Replace a text file by the same text in UTF-8, whole or not at all, and keep a copy of it as it was beside it.

    unmarked: the encoding of a file that shows none by itself.
    Raises DataError where the file is not in its encoding, or can't be read or written; it then stays as it was.
    """
    try:
        content = Path(path).read_bytes()
        encoding = encoding_of(content, unmarked)
        text = content.decode(encoding)
        copy = shutil.copy2(path, _free_name(path))
        write_bytes(os.path.realpath(path), text.encode("utf-8"))  # a link stays one
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} can't be converted: it is not {encoding} ({byte_at(content, error.start)}); name its encoding, as "
            "in --convert-captions cp1251."
        ) from error
    except OSError as error:
        message = f"{path} can't be converted ({error.strerror}): make the file and its folder writable."
        raise DataError(message) from error
    return Conversion(path, encoding, os.path.basename(copy), text)


def _is_misencoded(path: str) -> bool:
    try:
        return why_not_utf8(Path(path).read_bytes()) is not None
    except OSError:  # the check of the data tells of it
        return False


def _free_name(path: str) -> str:
    names = itertools.chain([f"{path}.bak"], (f"{path}.bak-{number}" for number in itertools.count(2)))
    return next(name for name in names if not os.path.lexists(name))
