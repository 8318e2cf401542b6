"""The commands that start the next run, and the paths they use on every machine. No Tk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from modules.config.errors import UserError
from modules.config.TrainConfig import TrainConfig
from modules.launch.command_text import Command, Places, launch_settings_path, node_commands
from modules.machine.run_shape import RunShape
from modules.ui.models.Listeners import Listeners


class LaunchModel:
    """places: as entered by the user; None: those of this machine.

    follows_run_folder: the settings file is always the one beside the current run folder.
    """

    def __init__(self) -> None:
        self.places: Places | None = None
        self.follows_run_folder = True
        self._listeners: Listeners[[]] = Listeners()

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` when the places change. Returns a function that unsubscribes."""
        return self._listeners.add(changed)

    def set_places(self, places: Places, follows_run_folder: bool) -> None:
        if (places, follows_run_folder) == (self.places, self.follows_run_folder):
            return
        self.places, self.follows_run_folder = places, follows_run_folder
        self._listeners.tell()

    def places_of(self, config: TrainConfig) -> Places:
        """The places for `config`. Raises UserError for a path that can't be used in a command."""
        if not self.follows_run_folder:
            assert self.places is not None  # set together with it
            return self.places
        default = launch_settings_path(config.workspace_dir)
        return replace(self.places, config_path=default) if self.places else Places(default)

    def commands(self, config: TrainConfig | None, shape: RunShape | None) -> list[Command]:
        """One command per machine. Raises UserError, also if the settings or the machine allow no run (None)."""
        if config is None or shape is None:
            raise UserError("There is no command while a setting is invalid: fix it first.")
        return node_commands(config, shape.ranks_per_node, self.places_of(config))
