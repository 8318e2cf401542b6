"""Imports settings files of other programs, whichever program they are of."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from modules.config.errors import ConfigError, UserError
from modules.importers import ai_toolkit, diffusion_pipe, kohya_ss, leco, musubi, onetrainer, sd_scripts, simpletuner
from modules.importers.ImportResult import ImportResult
from modules.importers.read_file import read_content


class Importer(Protocol):
    """A module of this folder that imports the files of one program.

    recognizes: whether a file with this content is of the program. translate: its settings; raises UserError if they
    are of a model or a version that Chorus lacks. Files: what it reads, for a message.
    """

    FILES: str

    def recognizes(self, path: Path, content: Any) -> bool: ...
    def translate(self, path: Path, content: Any) -> ImportResult: ...


IMPORTERS: tuple[Importer, ...] = (
    onetrainer,
    diffusion_pipe,
    musubi,
    sd_scripts,
    kohya_ss,
    ai_toolkit,
    simpletuner,
    leco,
)
LISTS = ("concepts", "sampling.samples", "embeddings")


def import_files(paths: Sequence[str | Path]) -> ImportResult:
    """The settings of one file, or of several of the same run, such as settings, concepts and samples.

    Raises ConfigError if a file can't be read, and UserError if it is of no program that is known, or of a model that
    Chorus lacks.
    """
    results = [_import_file(Path(path)) for path in paths]
    result = results[0]
    for other in results[1:]:
        result = _joined(result, other)
    return result


def is_foreign(path: str | Path) -> bool:
    """Whether a settings file is of another program, and not of Chorus; False if it can't be read."""
    try:
        content = read_content(Path(path))
    except ConfigError:
        return False
    return any(importer.recognizes(Path(path), content) for importer in IMPORTERS)


def _import_file(path: Path) -> ImportResult:
    if path.is_dir():
        return sd_scripts.translate_folder(path)
    content = read_content(path)
    for importer in IMPORTERS:
        if importer.recognizes(path, content):
            return importer.translate(path, content)
    known = "; ".join(importer.FILES for importer in IMPORTERS)
    raise UserError(f"{path} is no settings file that Chorus can import. It imports {known}.")


def _joined(first: ImportResult, other: ImportResult) -> ImportResult:
    """Both together. Entries of lists, such as concepts, come behind those of the first; else the later file holds."""
    numbers = {name: _entries(first, name) for name in LISTS}
    found = [name for name in LISTS if _entries(other, name)]
    values = first.values | {_moved(path, numbers): value for path, value in other.values.items()}
    lines = []
    for mine, theirs in ((first.taken, other.taken), (first.changed, other.changed), (first.left, other.left)):
        kept = [line for line in mine if not (line.path in found and not line.here)]  # a list that the other file has
        lines.append([*kept, *(replace(line, path=_moved(line.path, numbers)) for line in theirs)])
    taken, changed, left = lines
    return ImportResult(first.program, values, taken, changed, left)


def _entries(result: ImportResult, name: str) -> int:
    pattern = re.compile(rf"{re.escape(name)}\.(\d+)\.")
    numbers = [int(match[1]) for path in result.values if (match := pattern.match(path))]
    return max(numbers, default=-1) + 1


def _moved(path: str, numbers: dict[str, int]) -> str:
    for name, offset in numbers.items():
        if match := re.match(rf"{re.escape(name)}\.(\d+)\.(.+)", path):
            return f"{name}.{int(match[1]) + offset}.{match[2]}"
    return path
