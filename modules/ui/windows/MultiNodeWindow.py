"""The window for several machines: number, addresses and folders, a command for each, and a check of all."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import customtkinter as ctk

from modules.config.errors import UserError
from modules.config.installation import ROOT
from modules.launch.command_text import Places, launch_settings_path
from modules.machine.Machine import read_machine
from modules.ui.cards.Card import Card
from modules.ui.cards.CommandCard import CommandCard
from modules.ui.cards.NodeCheckCard import NodeCheckCard
from modules.ui.theme import Theme
from modules.ui.widgets.dialogs import focus_soon, set_size, show_over
from modules.ui.widgets.form import SettingsForm
from modules.ui.widgets.Page import Page

if TYPE_CHECKING:
    from modules.ui.App import App

SETTINGS = ("enable_multi_gpu", "num_nodes", "world_size", "node_rank", "master_addr", "initial_port", "use_torchrun")
LABELS = {"world_size": "GPUs per machine", "node_rank": "Node rank", "initial_port": "Port"}
# field of Places -> label
PLACES = {
    "interface": "Network interface",
    "config_path": "Settings file on each",
    "python": "Python on each",
    "chorus": "Chorus folder on each machine",
    "folder": "Working folder on each",
}


class MultiNodeWindow(ctk.CTkToplevel):
    """Edits the same settings as the tabs; the folders go to `app.launch` and thus into the multi-GPU tab's command.

    Closing only hides the window, because CustomTkinter never frees one completely.
    """

    def __init__(self, app: App):
        super().__init__(app.root, fg_color=Theme.page)
        self.app, self._devices, self._launch = app, app.devices, app.launch
        self._ends: list[Callable[[], None]] = []  # set before anything that may fail, as `destroy` uses it
        self._shown_file = ""  # the default settings file that is shown, which `show` fills in
        self.title("Several machines")
        set_size(self, "880x780", (480, 400))
        self.page = Page(self)
        self.page.pack(fill="both", expand=True)
        self.page.grid_columnconfigure(0, weight=1)
        self._build_settings()
        self._build_places()
        self.commands = CommandCard(self.page, app, "Commands", shows_all=True, height=170)
        self.check = NodeCheckCard(self.page, app)
        for row, card in enumerate((self.commands, self.check), start=2):
            card.grid(row=row, column=0, sticky="ew", padx=6, pady=6)
        view = app.views.add(self, lambda paths: self.show())
        self._ends += [view.end, app.devices.subscribe(lambda what: view.invalidate())]
        self.bind("<Escape>", lambda event: self.hide())
        self.protocol("WM_DELETE_WINDOW", self.hide)
        app.bind_settings_keys(self)
        self.show()
        if app.devices.machine is None:
            app.in_background(read_machine, app.devices.take_machine)
        show_over(app, self)
        focus_soon(app, self)

    def hide(self) -> None:
        self.check.stop()
        self.app.views.suspend(self)
        self.withdraw()

    def destroy(self) -> None:
        for end in self._ends:
            end()
        super().destroy()

    def show(self) -> None:
        """Update the commands from the settings and folders."""
        config = self.app.settings.config()
        shape = self._devices.shape(config) if config else None
        try:
            self._show_default_file()
            places = Places(**{name: entry.get() for name, entry in self.entries.items()})
            self._launch.set_places(places, places.config_path == self._shown_file)
            commands = self._launch.commands(config, shape)
        except UserError as error:
            self.commands.refuse(str(error))
            return
        note = "Start them in any order: they wait for machine 0. Copy and Save also write the settings file."
        if len(commands) == 1:
            note = "One machine: switch multi-GPU on and raise the number of machines."
        assert config is not None  # else there are no commands
        self.commands.show(config, commands, places, note)

    def _show_default_file(self) -> None:
        """Show the default settings file, which follows the run folder until the user enters another one.

        Raises UserError if there is neither a run folder nor another file.
        """
        entry = self.entries["config_path"]
        try:
            default = launch_settings_path(self.app.settings.get("workspace_dir"))
        except UserError:
            if entry.get() != self._shown_file:
                return
            raise
        if entry.get() == self._shown_file != default:
            entry.delete(0, "end")
            entry.insert(0, default)
        if entry.get() == default:
            self._shown_file = default

    def _default_places(self) -> Places:
        try:
            return Places("run.yaml")
        except UserError:  # the working folder is gone, which `show` reports
            return Places("run.yaml", folder=str(ROOT))

    def _build_settings(self) -> None:
        card = Card(self.page, self.app, "Machines")
        card.grid(row=0, column=0, sticky="ew", padx=6, pady=6)
        self.form = SettingsForm(card, self.app, SETTINGS, LABELS, all_importances=True)
        self.form.grid(row=1, column=0, sticky="ew", padx=(0, 2), pady=(0, 8))

    def _build_places(self) -> None:
        card = Card(self.page, self.app, "Where things are")
        card.grid(row=1, column=0, sticky="ew", padx=6, pady=6)
        table = ctk.CTkFrame(card, fg_color="transparent")
        table.grid(row=1, column=0, sticky="ew", padx=12, pady=(0, 10))
        table.grid_columnconfigure(1, weight=1)
        places = self._launch.places or self._default_places()
        self.entries: dict[str, ctk.CTkEntry] = {}
        for row, (name, label) in enumerate(PLACES.items()):
            title = ctk.CTkLabel(table, text=label, anchor="w", font=self.app.theme.font())
            title.grid(row=row, column=0, sticky="w", padx=(0, 12), pady=3)
            entry = ctk.CTkEntry(table, height=28, font=self.app.theme.font())
            if name == "interface":
                entry.configure(placeholder_text="such as eth0; empty: the libraries choose")
            value = getattr(places, name)
            if value and not (name == "config_path" and self._launch.follows_run_folder):
                entry.insert(0, value)
            entry.grid(row=row, column=1, sticky="ew", pady=3)
            entry.bind("<KeyRelease>", lambda event: self.show(), add="+")
            self.entries[name] = entry
