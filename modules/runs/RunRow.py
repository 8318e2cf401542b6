"""A run as one row of the index."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, get_type_hints

from modules.runs.marks import Marks, marks_from_plain, marks_to_plain


@dataclass(frozen=True)
class RunRow:
    """A run as of when its files were last read.

    name: of its folder. status: as from `read_status`. reason: of a failure.
    is_read: whether its events were read; else only what its folder says at a glance is known.
    started, time: of its first event and its last sign of life, in Unix seconds; 0 if unknown. seconds: how long it
    ran, over all its starts. step: the last one. total: the step at which it ends. epoch: of the last step. images:
    trained. loss: smoothed, of the last step. validation: the last validation loss. num_samples: images sampled;
    sample: the last of them, as recorded. saved: (step, path as recorded) of its models, in the order of saving.
    settings: as from `settings_of`; None if config.yaml is missing or can't be read. preset, num_changes: as from
    `closest_preset`.
    """

    name: str
    status: str = "ended"
    reason: str = ""
    is_read: bool = False
    started: float = 0.0
    time: float = 0.0
    seconds: float = 0.0
    step: int = 0
    total: int = 0
    epoch: int = 0
    images: int = 0
    loss: float | None = None
    validation: float | None = None
    num_samples: int = 0
    sample: str = ""
    saved: tuple[tuple[int, str], ...] = ()
    settings: dict[str, Any] | None = None
    preset: str = ""
    num_changes: int = 0
    marks: Marks = field(default_factory=Marks)

    @property
    def shown_name(self) -> str:
        """The name that a person gave it, else that of its folder."""
        return self.marks.name or self.name

    def to_plain(self) -> dict[str, Any]:
        """As JSON data, from which `from_plain` makes the same row."""
        values = {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}
        return {**values, "marks": marks_to_plain(self.marks)}

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> RunRow:
        """Raises KeyError, TypeError or ValueError for anything that `to_plain` has not made."""
        values = {name: plain[name] for name in _fields()}
        for name, kinds in _fields().items():
            if not isinstance(values[name], kinds):
                raise TypeError(f"{name} is {values[name]!r}")
        values["saved"] = tuple((int(step), str(path)) for step, path in plain["saved"])
        values["marks"] = marks_from_plain(plain["marks"])
        return cls(**values)


@lru_cache(maxsize=1)
def _fields() -> dict[str, tuple[type, ...]]:
    """Field -> the types that it may have in JSON."""
    plain = {str: (str,), bool: (bool,), int: (int,), float: (float, int), float | None: (float, int, type(None))}
    hints = get_type_hints(RunRow)
    special: dict[str, tuple[type, ...]] = {"saved": (list,), "settings": (dict, type(None)), "marks": (dict,)}
    return {one.name: special.get(one.name) or plain[hints[one.name]] for one in dataclasses.fields(RunRow)}
