from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from modules.config.errors import UserError
from modules.config.files import config_from_values, put_value, to_values
from modules.config.presets import merge_values
from modules.config.TrainConfig import TrainConfig
from modules.config.visible_text import visible_line

DATA = ("concepts.", "data.")


@dataclass(frozen=True)
class Line:
    """What became of a setting of another program.

    theirs: the setting there, with its value. here: the setting of Chorus, with its value; "" if there is none.
    why: what differs, or what to do. path: of the setting of Chorus. is_given: whether the file has it; otherwise it is
    the other program's default.
    """

    theirs: str
    here: str = ""
    why: str = ""
    path: str = ""
    is_given: bool = True

    def __str__(self) -> str:
        text = f"{self.theirs} -> {self.here}" if self.here else self.theirs
        return visible_line(f"{text}: {self.why}" if self.why else text)


@dataclass
class ImportResult:
    """Settings from a file of another program.

    program: its name. values: path of a setting of Chorus -> value.
    taken: settings that mean the same here. changed: those that mean something else. left: those that are not taken.
    """

    program: str
    values: dict[str, Any] = field(default_factory=dict)
    taken: list[Line] = field(default_factory=list)
    changed: list[Line] = field(default_factory=list)
    left: list[Line] = field(default_factory=list)

    @property
    def has_concepts(self) -> bool:
        """Whether there are folders of images among the settings."""
        return any(path.startswith("concepts.") for path in self.values)

    def replace(self, path: str, value: Any) -> None:
        """Set a value, which takes the place of an earlier one and of its line."""
        if path in self.values:
            self.taken = [line for line in self.taken if line.path != path]
            self.changed = [line for line in self.changed if line.path != path]
        self.values[path] = value

    def config(self) -> TrainConfig:
        """The settings of Chorus; those that the other program has nothing for have our defaults."""
        return config_from_values(nested(self.values), "the imported settings")

    def data_in(self, config: TrainConfig) -> TrainConfig:
        """`config` with the concepts and the settings of the data of these. Raises UserError as `data_alone` does."""
        values = merge_values(to_values(config), nested(self.data_alone().values))
        return config_from_values(values, "the imported settings")

    def data_alone(self) -> ImportResult:
        """The concepts and the settings of the data.

        Raises UserError if there are no concepts.
        """
        values = {path: value for path, value in self.values.items() if path.startswith(DATA)}
        if not self.has_concepts:
            raise UserError(f"the settings of {self.program} name no folder of images: import a file that does.")
        lists = ([line for line in lines if line.path.startswith(DATA)] for lines in (self.taken, self.changed))
        taken, changed = lists
        return ImportResult(self.program, values, taken, changed, list(self.left))

    def text(self) -> str:
        """The three lists, first those that need to be read."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        titles = (
            ("Taken, with another meaning here", self.changed),
            ("Not taken", self.left),
            ("Taken, with the same meaning", self.taken),
        )
        for title, lines in titles:
            given = [line for line in lines if line.is_given]
            yield f"{title}: {len(given)}"
            yield from (f"  {line}" for line in given)
            if assumed := [line for line in lines if not line.is_given]:
                yield f"  Not in the file, so the default of {self.program} is written:"
                yield from (f"    {line}" for line in assumed)


def nested(values: dict[str, Any]) -> dict[str, Any]:
    """Values by path as the sections and lists of a settings file: {"lora.rank": 4} -> {"lora": {"rank": 4}}."""
    result: dict[str, Any] = {}
    for path, value in values.items():
        if problem := put_value(result, path, value):
            raise ValueError(problem)
    return result
