"""What a person notes about a run: a name, tags, a note, a star and its best image. In marks.json of the run folder."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from modules.config.errors import UserError
from modules.session.atomic import write_json
from modules.session.RunFolder import RunFolder

MARKS_NAME = "marks.json"
MAX_NAME, MAX_TAG, MAX_TAGS, MAX_NOTE = 120, 40, 20, 4000  # letters, and tags
MAX_BYTES = 64 * 1024


@dataclass(frozen=True)
class Result:
    """The image that was chosen as what the run has achieved.

    image: its path from the run folder on, with slashes. step: after which its model was saved. strength: of the LoRA;
    None for a model that is no LoRA. model: the files it was generated with, as `image`.
    """

    image: str
    prompt: str = ""
    step: int = 0
    seed: int | None = None
    strength: float | None = None
    model: tuple[str, ...] = ()


@dataclass(frozen=True)
class Marks:
    """name: shown in place of that of the folder, which stays as it is; "" for none."""

    name: str = ""
    tags: tuple[str, ...] = ()
    note: str = ""
    star: bool = False
    result: Result | None = None


def read_marks(folder: str | Path) -> Marks:
    """The marks of the run in `folder`; none if there is no such file, or none that can be read."""
    try:
        with open(Path(folder) / MARKS_NAME, "rb") as file:
            return marks_from_plain(json.loads(file.read(MAX_BYTES)))
    except (OSError, ValueError, RecursionError):
        return Marks()


def change_marks(folder: str | Path, **changes: Any) -> Marks:
    """Change some of the marks of a run, leaving the others as they are in the file, and return them all.

    changes: fields of Marks. Texts are cut to what the file holds. Raises UserError if the file can't be written.
    """
    RunFolder(folder)  # raises UserError for an impossible path
    marks = _tidy(replace(read_marks(folder), **changes))
    try:
        RunFolder(folder).look_for_run()  # else the file would be made anew where a disk was unmounted
        write_json(Path(folder) / MARKS_NAME, marks_to_plain(marks))
    except OSError as error:
        raise UserError(
            f"{Path(folder) / MARKS_NAME} can't be written ({error.strerror}): check the disk of the run."
        ) from error
    return marks


def marks_to_plain(marks: Marks) -> dict[str, Any]:
    """As in the file: without what has not been noted."""
    plain = {name: value for name, value in vars(marks).items() if value}
    return plain if marks.result is None else {**plain, "result": asdict(marks.result)}


def marks_from_plain(plain: Any) -> Marks:
    """Fields of another type than they should have are as if they were missing."""
    if not isinstance(plain, dict):
        return Marks()
    tags, result = plain.get("tags"), plain.get("result")
    return _tidy(
        Marks(
            _text(plain.get("name")),
            tuple(map(_text, tags)) if isinstance(tags, list | tuple) else (),
            _text(plain.get("note")),
            plain.get("star") is True,
            _result(result) if isinstance(result, dict) else None,
        )
    )


def tags_of(text: str) -> tuple[str, ...]:
    """The tags in a text that separates them by commas, each once."""
    return _tidy_tags(text.split(","))


def _result(plain: dict[str, Any]) -> Result | None:
    image, seed, strength = _text(plain.get("image")), plain.get("seed"), plain.get("strength")
    if not image:
        return None
    model = plain.get("model")
    return Result(
        image,
        _text(plain.get("prompt")),
        step if isinstance(step := plain.get("step"), int) else 0,
        seed if isinstance(seed, int) else None,
        float(strength) if isinstance(strength, int | float) else None,
        tuple(map(_text, model)) if isinstance(model, list | tuple) else (),
    )


def _tidy(marks: Marks) -> Marks:
    name = " ".join(marks.name.split())[:MAX_NAME]
    return replace(marks, name=name, tags=_tidy_tags(marks.tags), note=marks.note.strip()[:MAX_NOTE])


def _tidy_tags(tags: Iterable[str]) -> tuple[str, ...]:
    words = (" ".join(tag.replace(",", " ").split())[:MAX_TAG] for tag in tags)
    return tuple(dict.fromkeys(word for word in words if word))[:MAX_TAGS]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
