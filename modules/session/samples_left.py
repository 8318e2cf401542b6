"""Which samples of a finished run are missing because it was asked to stop, for when it is started again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from modules.config.atomic_file import remove
from modules.session.atomic import write_json

if TYPE_CHECKING:
    from modules.session.RunFolder import RunFolder


def note_samples_left(folder: RunFolder, step: int, numbers: Sequence[int]) -> None:
    """Note that a run has finished at `step` without these samples; none: without any missing. Raises OSError."""
    if numbers:
        write_json(folder.samples_left_path, {"step": step, "numbers": list(numbers)})
    else:
        remove(folder.samples_left_path)


def samples_left(folder: RunFolder, step: int) -> list[int]:
    """The numbers of the samples that are missing of a run that has finished at `step`."""
    try:
        noted = json.loads(folder.samples_left_path.read_bytes())
    except (OSError, ValueError):  # as a rule there is no such file
        return []
    is_of_step = isinstance(noted, dict) and noted.get("step") == step and isinstance(noted.get("numbers"), list)
    return [number for number in noted["numbers"] if type(number) is int] if is_of_step else []
