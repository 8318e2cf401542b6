"""The file that lists which of two images is preferred: preferences.jsonl, in the folder of a concept. No torch.

Each line is a JSON object: `{"chosen": "images/a.png", "rejected": "images/b.png", "prompt": "a photo of a cat"}`.
Names of images are relative to the folder.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modules.config.regular_file import open_regular
from modules.data.errors import DataError

FILE_NAME = "preferences.jsonl"
IMAGES = "images"  # the subfolder that images are copied to
PROMPT = "prompt"  # of the column of a dataset: the listed prompt of each sample, or None
FIELDS = ("chosen", "rejected", "prompt")


@dataclass(frozen=True)
class ListedPair:
    """chosen, rejected: paths. line: where it is listed, for messages."""

    chosen: str
    rejected: str
    prompt: str
    line: str = ""


def read_preferences(folder: str, setting: str) -> list[ListedPair]:
    """The pairs that a folder lists. setting: "concepts.N", for messages. Raises DataError if it lists none."""
    root = os.path.expanduser(folder)
    path = os.path.join(root, FILE_NAME)
    try:
        with open_regular(path) as file:
            text = file.read().decode("utf-8-sig")
    except FileNotFoundError as error:
        raise DataError.at(
            f"{setting}.pair_folder",
            f"is empty, and {folder} has no {FILE_NAME}: name the folder with the rejected images, or add that file.",
        ) from error
    except (OSError, ValueError) as error:
        raise DataError.at(f"{setting}.path", f"{path} can't be read ({error}); repair it.") from error
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines:
        raise DataError.at(f"{setting}.path", f"{path} lists no pair; add one, or name concepts.N.pair_folder.")
    return [_pair(line, root, f"{path}, line {number}", setting) for number, line in lines]


def add_preference(folder: Path, chosen: Path, rejected: Path, prompt: str) -> None:
    """Copies two images into a folder and lists them. Raises OSError."""
    (folder / IMAGES).mkdir(parents=True, exist_ok=True)
    names = [_copied(folder, image) for image in (chosen, rejected)]
    line = json.dumps(dict(zip(FIELDS, (*names, prompt), strict=True)), ensure_ascii=False)
    with open(folder / FILE_NAME, "a", encoding="utf-8", newline="\n") as file:
        file.write(line + "\n")


def _pair(line: str, root: str, where: str, setting: str) -> ListedPair:
    try:
        plain: Any = json.loads(line)
    except ValueError:
        plain = None
    if not isinstance(plain, dict) or not all(isinstance(plain.get(name), str) for name in FIELDS):
        raise DataError.at(
            f"{setting}.path",
            f'{where}: each line must be {{"chosen": "a.png", "rejected": "b.png", "prompt": "..."}}; correct it.',
        )
    chosen, rejected = (os.path.join(root, plain[name]) for name in FIELDS[:2])
    return ListedPair(chosen, rejected, plain["prompt"], where)


def _copied(folder: Path, image: Path) -> str:
    """The name of a copy of an image, relative to the folder; of the one that is there, if it has the same content."""
    content = image.read_bytes()
    number = 0
    while True:
        name = f"{image.stem}{f'-{number}' if number else ''}{image.suffix}"
        copy = folder / IMAGES / name
        if not copy.exists():
            shutil.copyfile(image, copy)
            return f"{IMAGES}/{name}"
        if copy.read_bytes() == content:
            return f"{IMAGES}/{name}"
        number += 1
