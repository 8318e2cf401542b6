"""The bar above the tabs: preset, changes, files, undo, search, family and method."""

from __future__ import annotations

import tkinter
from pathlib import Path
from tkinter import filedialog
from typing import TYPE_CHECKING, Any

import customtkinter as ctk

from modules.config.errors import ConfigError, UserError
from modules.config.presets import list_presets
from modules.config.show_value import show_value
from modules.ui.SettingsSearch import SettingsSearch
from modules.ui.TableWindow import TableWindow
from modules.ui.theme import Theme
from modules.ui.Tooltip import Tooltip

if TYPE_CHECKING:
    from modules.ui.App import App

FILE_TYPES = [("Settings", "*.yaml *.yml *.json")]
MAX_RECENT = 10
MAX_NAME = 26


class TopBar(ctk.CTkFrame):
    def __init__(self, parent: tkinter.Misc, app: App):
        super().__init__(parent, fg_color=Theme.bar, corner_radius=0)
        self.app = app
        self.path: Path | None = None  # where Save writes: the file that was opened or saved last
        ctk.CTkLabel(self, text="Chorus", font=app.theme.font(19, "bold")).pack(side="left", padx=(14, 10), pady=9)
        self.preset = self._button("", self.choose_preset, 150)
        Tooltip(self.preset, app.theme, lambda: "Start from a preset or a settings file.")
        self.modified = self._button("", self.show_changes, 60)
        Tooltip(self.modified, app.theme, lambda: "What differs from the preset or file, to look at and to take back.")
        self._button("Save", self.save, 56)
        self._button("Save as…", self.save_as, 76)
        self.undo = self._button("Undo", app.settings.undo, 58)
        self.method = self._menu("method", 220)
        self.family = self._menu("family", 205)
        self.search = SettingsSearch(self, app)
        self.search.pack(side="right", padx=6)
        self._unsubscribe = app.settings.subscribe(self._changed)
        self._changed(set())

    def destroy(self) -> None:
        self._unsubscribe()
        super().destroy()

    def choose_preset(self) -> TableWindow:
        """Open the list of presets and of the files used last."""
        rows = [(f"preset:{one.name}", (one.name, one.description)) for one in list_presets()]
        recent = [path for path in self.app.preferences.recent if Path(path).is_file()]
        rows += [(f"file:{path}", (Path(path).name, path)) for path in recent]
        columns = {"Preset or file": 190, "What it is for": 520}
        actions = [("Use", self._use), ("Open a file…", lambda names: self.open_file())]
        return TableWindow(self.app, "Start from", columns, rows, actions)

    def show_changes(self) -> TableWindow:
        """Open the list of what differs from the preset."""
        settings = self.app.settings
        rows = [(path, self._change(path)) for path in settings.modified_paths()]
        columns = {"Setting": 270, f"In {settings.preset_name}": 210, "Now": 210}
        actions = [("Show", lambda paths: self.app.flash(paths[0])), ("Take back", settings.reset_to_preset)]
        return TableWindow(self.app, f"Changes to {settings.preset_name}", columns, rows, actions, many=True)

    def save(self) -> None:
        """Write the settings to the file they came from, or ask for one."""
        if self.path is None:
            self.save_as()
        else:
            self._save_to(self.path)

    def save_as(self) -> None:
        """Ask for a file and write the settings there."""
        chosen = filedialog.asksaveasfilename(
            parent=self.app, title="Save settings as", defaultextension=".yaml", filetypes=FILE_TYPES
        )
        if chosen:
            self._save_to(Path(chosen))

    def open_file(self, path: str | Path = "") -> None:
        """Take the settings of a file, which is asked for if none is named."""
        chosen = path or filedialog.askopenfilename(parent=self.app, title="Open settings", filetypes=FILE_TYPES)
        if not chosen:
            return
        try:
            self.app.settings.load_file(chosen)
        except ConfigError as error:
            self.app.show_message(str(error), "error")
        else:
            self._remember(Path(chosen))

    def _use(self, names: list[str]) -> None:
        kind, _, name = names[0].partition(":")
        if kind == "file":
            self.open_file(name)
            return
        try:
            self.app.settings.load_preset(name)
        except ConfigError as error:
            self.app.show_message(str(error), "error")
        else:
            self.path = None

    def _save_to(self, path: Path) -> None:
        try:
            self.app.settings.save(path)
        except UserError as error:
            self.app.show_message(str(error), "error")
        else:
            self._remember(path)
            self.app.show_message(f"Saved {path}.", "info")

    def _remember(self, path: Path) -> None:
        self.path = path.absolute()
        others = [one for one in self.app.preferences.recent if one != str(self.path)]
        self.app.preferences.recent = [str(self.path), *others][:MAX_RECENT]

    def _changed(self, paths: set[str]) -> None:
        settings = self.app.settings
        name = settings.preset_name
        self.preset.configure(text=f"{name if len(name) <= MAX_NAME else name[:MAX_NAME] + '…'}  ▾")
        count = len(settings.modified_paths())
        if count:
            self.modified.configure(text=f"modified ({count})")
            self.modified.pack(side="left", padx=3, after=self.preset)
        else:
            self.modified.pack_forget()
        for path, menu in (("family", self.family), ("method", self.method)):
            menu.set(settings.info(path).choice_labels[settings.get(path)])

    def _change(self, path: str) -> tuple[str, str, str]:
        settings = self.app.settings
        label = settings.info(path).label
        return f"{label}  ({path})", _text(settings.preset_value(path)), _text(settings.shown(path))

    def _button(self, text: str, command: Any, width: int) -> ctk.CTkButton:
        button = ctk.CTkButton(self, text=text, width=width, height=30, font=self.app.theme.font(), command=command)
        button.pack(side="left", padx=3)
        return button

    def _menu(self, path: str, width: int) -> ctk.CTkOptionMenu:
        info = self.app.settings.info(path)
        choices = {label: choice for choice, label in info.choice_labels.items()}
        menu = ctk.CTkOptionMenu(
            self,
            values=list(choices),
            width=width,
            height=30,
            font=self.app.theme.font(),
            dropdown_font=self.app.theme.font(),
            dynamic_resizing=False,
            command=lambda label: self.app.settings.set(path, choices[label]),
        )
        menu.pack(side="right", padx=(3, 14 if path == "method" else 3))
        Tooltip(menu, self.app.theme, lambda: f"{info.label}. {info.help}")
        return menu


def _text(value: Any) -> str:
    """A value in the list of changes."""
    if isinstance(value, list):
        return f"{len(value)} entries" if value and not isinstance(value[0], int) else str(value)
    return value if isinstance(value, str) and value else show_value(value)
