"""The commands of the next run, and where they find things on every machine. No Tk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from modules.config.errors import UserError
from modules.config.TrainConfig import TrainConfig
from modules.launch.command_text import Command, Places, launch_settings_path, node_commands
from modules.machine.run_shape import RunShape
from modules.ui.models.Listeners import Listeners


class LaunchModel:
    """places: what a person has said; None: as it is on this machine.

    follows_run_folder: the settings file is the one beside the run folder, whichever that is then.
    """

    def __init__(self) -> None:
        self.places: Places | None = None
        self.follows_run_folder = True
        self._listeners: Listeners[[]] = Listeners()

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` when the places have. Returns a function that ends it."""
        return self._listeners.add(changed)

    def set_places(self, places: Places, follows_run_folder: bool) -> None:
        if (places, follows_run_folder) == (self.places, self.follows_run_folder):
            return
        self.places, self.follows_run_folder = places, follows_run_folder
        self._listeners.tell()

    def places_of(self, config: TrainConfig) -> Places:
        """Raises UserError for a path that has no place in a command."""
        if not self.follows_run_folder:
            return self.places
        default = launch_settings_path(config.workspace_dir)
        return replace(self.places, config_path=default) if self.places else Places(default)

    def commands(self, config: TrainConfig | None, shape: RunShape | None) -> list[Command]:
        """One for each machine. Raises UserError, also where the settings or this machine allow no run (None)."""
        if config is None or shape is None:
            raise UserError("There is no command while a setting is wrong: mend it first.")
        return node_commands(config, shape.ranks_per_node, self.places_of(config))
