from __future__ import annotations

import os
from pathlib import Path, PureWindowsPath
from typing import Any

from modules.config.describe import is_visible, settings_by_path, value_at
from modules.config.errors import UserError
from modules.config.families import load_families
from modules.config.methods import METHODS
from modules.config.other_programs import load_program
from modules.config.TrainConfig import TrainConfig
from modules.importers.SdScriptsTranslation import script_takes


class SdScriptsArguments:
    """The arguments of one of sd-scripts' training scripts, made of settings of Chorus.

    arguments: by name, without those that have sd-scripts' default. to_do: what a person has to do before a start.
    Raises UserError if no script trains the family with the method.
    """

    def __init__(self, config: TrainConfig):
        self.config = config
        self.program = load_program("sd_scripts")
        self.family = load_families()[config.family]
        self.method = METHODS[config.method]
        self.script = self._script()
        self.facts = self.program.facts["export"].get(self.family.name, {})
        self.to_do: list[str] = []
        self._defaults = self.program.facts["script_defaults"].get(self.script.partition("_")[0], {})
        self._arguments: dict[str, Any] = {}

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments, in the order of the table."""
        return {name: self._arguments[name] for name in self.program.settings if name in self._arguments}

    @property
    def is_flow(self) -> bool:
        """Whether the model is a flow model."""
        return self.family.objective == "flow"

    @property
    def is_unet(self) -> bool:
        """Whether the denoiser is a U-Net."""
        return "unet" in self.family.denoisers

    def takes(self, name: str) -> bool:
        """Whether the script has an argument, and uses it."""
        return script_takes(self.program, self.script, name)

    def put(self, name: str, value: Any) -> None:
        """Set an argument, unless the value is None or the script's default, or the script lacks the argument.

        Raises KeyError for an argument that the table lacks.
        """
        default = self._defaults.get(name, self.program.settings[name].default)
        if value is not None and value != default and self.takes(name):
            self._arguments[name] = value

    def active(self, path: str) -> Any:
        """The value of a setting of Chorus; None if it has no effect, given the others."""
        return value_at(self.config, path) if is_visible(settings_by_path()[path], self.config) else None

    def _script(self) -> str:
        scripts = self.program.facts["scripts"]
        for script, trained in scripts.items():
            if trained == [self.method.name, self.family.name]:
                return script
        families = sorted({family for method, family in scripts.values() if method == self.method.name})
        if not families:
            raise UserError.at(
                "method", f"{self.method.name}: sd-scripts can't train it; choose another method, or stay here."
            )
        raise UserError.at(
            "family",
            f"{self.family.name}: sd-scripts has no script that trains it with method {self.method.name}; "
            f"with this method it trains {', '.join(families)}.",
        )


def full_path(path: str, may_be_name: bool = False) -> str:
    """The path from the root, because the scripts start in another folder.

    may_be_name: whether it may also be a name on the Hugging Face Hub, which stays as it is.
    """
    is_windows = bool(PureWindowsPath(path).drive)
    if not path or is_windows or Path(path).is_absolute() or (may_be_name and not Path(path).exists()):
        return path
    return os.path.abspath(path)
