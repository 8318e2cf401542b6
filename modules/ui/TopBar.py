"""The bar above the tabs: preset, changes, files, undo, search, family and method."""

from __future__ import annotations

import tkinter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import customtkinter as ctk

from modules.config.counted import counted
from modules.config.describe import settings_by_path
from modules.config.errors import ConfigError, UserError
from modules.config.files import load_config
from modules.config.show_value import show_value
from modules.ui.models.path_picker import SAVE_FOLDER, PathQuestion
from modules.ui.models.Preferences import MAX_RECENT
from modules.ui.theme import Theme
from modules.ui.widgets.dialogs import ask_path, open_window
from modules.ui.widgets.fitting import FittedButton, FittedMenu
from modules.ui.widgets.SettingsSearch import SettingsSearch
from modules.ui.widgets.Tooltip import Tooltip

if TYPE_CHECKING:
    from modules.importers.ImportResult import ImportResult
    from modules.ui.App import App
    from modules.ui.windows.ChangesWindow import Changes, ChangesWindow
    from modules.ui.windows.PresetWindow import PresetWindow

FILE_TYPES = [("Settings", "*.yaml *.yml *.json")]
OPENED_TYPES = [*FILE_TYPES, ("Settings of other trainers", "*.json *.toml *.sh *.bat *.cmd *.ps1 *.txt *.env")]
PRESET_WIDTH, FAMILY_WIDTH, METHOD_WIDTH = 160, 215, 170
MIN_RIGHT = 400  # unscaled pixels for search, family and method side by side


class TopBar(ctk.CTkFrame):
    def __init__(self, parent: tkinter.Misc, app: App):
        super().__init__(parent, fg_color=Theme.bar, corner_radius=0)
        self.app = app
        self._rows = 0
        self._left, self._right = (ctk.CTkFrame(self, fg_color="transparent") for _ in range(2))
        self._build_left()
        self._build_right()
        self._unsubscribe = app.settings.subscribe(self._changed)
        self._changed(set())
        for frame in (self, self._left):  # the left one changes its size when its buttons appear and disappear
            frame._canvas.bind("<Configure>", lambda event: self._arrange(), add="+")
        self._arrange()

    def destroy(self) -> None:
        self._unsubscribe()
        super().destroy()

    def choose_preset(self) -> PresetWindow:
        """Open the list of presets and recent files."""
        from modules.ui.windows.PresetWindow import PresetWindow  # like the other windows, only once it is wanted

        recent = list(self.app.preferences.recent)
        return open_window(self.app, PresetWindow, self._use, self._compare, self.open_file, recent)

    def show_changes(self) -> ChangesWindow:
        """Open the list of differences from the preset."""
        from modules.ui.windows.ChangesWindow import Changes, ChangesWindow

        settings = self.app.settings

        def find() -> Changes:
            rows = [(path, self._change(path)) for path in settings.modified_paths()]
            return Changes(f"Changes to {settings.preset_name}", (f"In {settings.preset_name}", "Now"), rows)

        actions = [("Show", lambda paths: self.app.flash(paths[0])), ("Revert", settings.reset_to_preset)]
        return open_window(self.app, ChangesWindow, find, actions, True)

    def save(self) -> None:
        """Save the settings to the file they came from, or ask for one."""
        if source_file := self.app.settings.source_file:
            self._save_to(Path(source_file))
        else:
            self.save_as()

    def save_as(self) -> None:
        """Ask for a file and save the settings there."""
        settings = self.app.settings
        name = f"{settings.preset_name}.yaml" if settings.source_run else "settings.yaml"
        question = PathQuestion("new_file", "Save settings as", settings.source_file or SAVE_FOLDER, name, FILE_TYPES)
        chosen = ask_path(self.app, question)
        if chosen:
            self._save_to(Path(chosen))

    def open_file(self, path: str | Path = "") -> None:
        """Load the settings of a file; ask for one if none is given."""
        from modules.importers.import_files import is_foreign  # takes a fifth of the imports of the window

        chosen = path or ask_path(self.app, PathQuestion("file", "Open settings", SAVE_FOLDER, types=OPENED_TYPES))
        if not chosen:
            return
        if is_foreign(chosen):
            self._import(Path(chosen))
            return
        try:
            self.app.settings.load_file(chosen)
        except ConfigError as error:
            self.app.show_message(str(error), "error")
        else:
            self._remember()

    def _import(self, path: Path) -> None:
        """Show what becomes of another program's settings, and take them if that is wanted."""
        from modules.importers.import_files import import_files
        from modules.ui.windows.ImportWindow import ImportWindow

        def take(result: ImportResult, data_only: bool) -> None:
            try:
                self.app.settings.load_imported(result, path.name, data_only)
            except UserError as error:
                self.app.show_message(str(error), "error")
            else:
                self.app.show_message(f"Imported from {path.name}. Undo restores the earlier settings.", "info")

        def show(result: ImportResult) -> None:
            open_window(self.app, ImportWindow, path.name, result, take)

        def refuse(error: Exception) -> None:
            if not isinstance(error, UserError):
                raise error
            self.app.show_message(str(error), "error")

        self.app.in_background(lambda: import_files([path]), show, refuse)

    def _use(self, names: list[str]) -> None:
        kind, _, name = names[0].partition(":")
        if kind == "file":
            self.open_file(name)
            return
        try:
            kept = self.app.settings.load_preset(name)
        except ConfigError as error:
            self.app.show_message(str(error), "error")
            return
        if kept:
            parts = ", ".join(settings_by_path()[path].kept_as for path in kept)
            self.app.show_message(f"Kept your {parts}. Undo reverts the rest.", "info")

    def _compare(self, names: list[str], opener: PresetWindow) -> None:
        """Open the list of changes that a preset or file would make."""
        from modules.ui.windows.ChangesWindow import Changes, ChangesWindow

        settings = self.app.settings
        kind, _, origin = names[0].partition(":")
        name = Path(origin).name

        def find() -> Changes:
            changes = settings.compare(load_config(origin)) if kind == "file" else settings.compare_preset(origin)
            rows = [(path, (self._named(path), _text(now), _text(then))) for path, now, then in changes]
            return Changes(f"What {name} would change", ("Now", f"In {name}"), rows)

        actions = [("Apply", lambda paths: self._use(names)), ("Show", lambda paths: self.app.flash(paths[0]))]
        try:
            open_window(self.app, ChangesWindow, find, actions, False, opener)
        except ConfigError as error:
            self.app.show_message(str(error), "error")

    def _save_to(self, path: Path) -> None:
        settings = self.app.settings
        try:
            settings.save(path)
        except UserError as error:
            is_refused = bool(settings.refused_input())
            holds = (lambda: bool(settings.refused_input())) if is_refused else None
            self.app.show_message(str(error), "error", holds)
        else:
            self._remember()
            self.app.show_message(f"Saved {path}.", "info")

    def _remember(self) -> None:
        """Put the current file first in the list of recent files."""
        path = self.app.settings.source_file
        if not path:  # a copy of a run's settings
            return
        others = [one for one in self.app.preferences.recent if one != path]
        self.app.preferences.recent = [path, *others][:MAX_RECENT]

    def _changed(self, paths: set[str]) -> None:
        settings = self.app.settings
        name = settings.preset_name
        self.preset.configure(text=f"{name}  ▾")
        count = len(settings.modified_paths())
        if count:
            self.modified.configure(text=f"modified ({count})")
            self.modified.grid()
        else:
            self.modified.grid_remove()
        for path, menu in (("family", self.family), ("method", self.method)):
            menu.set(settings.info(path).choice_labels[settings.get(path)])

    def _change(self, path: str) -> tuple[str, str, str]:
        settings = self.app.settings
        return self._named(path), _text(settings.preset_value(path)), _text(settings.shown(path))

    def _describe_origin(self) -> str:
        settings = self.app.settings
        name = f"A copy of the settings of the run {settings.source_run}"
        return f"{name if settings.source_run else settings.preset_name}: start from another preset or a file."

    def _named(self, path: str) -> str:
        return f"{self.app.settings.info(path).label}  ({path})"

    # --- widgets -----------------------------------------------------------------------------------------------------

    def _build_left(self) -> None:
        theme, font = self.app.theme, self.app.theme.font()
        title = ctk.CTkLabel(self._left, text="Chorus", font=theme.font(19, "bold"))
        title.grid(row=0, column=0, padx=(0, 10))
        self.preset = FittedButton(self._left, width=PRESET_WIDTH, height=30, font=font, command=self.choose_preset)
        self.preset.grid_propagate(False)  # keeps its width, whatever its text is
        self.preset.grid(row=0, column=1, sticky="ew", padx=3)
        Tooltip(self.preset, theme, self._describe_origin)
        buttons: tuple[tuple[str, Callable[[], object]], ...] = (
            ("Save", self.save),
            ("Save as…", self.save_as),
            ("Undo", self.app.settings.undo),
            ("", self.show_changes),  # last, as it comes and goes: the others stay under the pointer
        )
        made = []
        for column, (text, command) in enumerate(buttons, start=2):
            button = ctk.CTkButton(self._left, text=text, width=52, height=30, font=font, command=command)
            button.grid(row=0, column=column, padx=3)
            made.append(button)
        self.undo, self.modified = made[-2:]
        Tooltip(self.modified, theme, lambda: "What differs from the preset or file, with a way to revert it.")

    def _build_right(self) -> None:
        self.search = SettingsSearch(self._right, self.app)
        self.family, self.method = self._menu("family", FAMILY_WIDTH), self._menu("method", METHOD_WIDTH)
        widgets: tuple[ctk.CTkBaseClass, ...] = (self.search, self.family, self.method)
        for column, widget in enumerate(widgets):
            widget.grid(row=0, column=column, sticky="ew", padx=(3, 3 if column < 2 else 0))
            self._right.grid_columnconfigure(column, weight=1)

    def _menu(self, path: str, width: int) -> FittedMenu:
        info = self.app.settings.info(path)
        choices = {label: choice for choice, label in info.choice_labels.items()}
        menu = FittedMenu(
            self._right,
            values=list(choices),
            width=width,
            height=30,
            font=self.app.theme.font(),
            dropdown_font=self.app.theme.font(),
            command=lambda label: self.app.settings.set(path, choices[label]),
        )
        Tooltip(menu, self.app.theme, lambda: f"{info.label}: {menu.get()}. {info.help}")
        return menu

    def _arrange(self) -> None:
        """Arrange everything in one row if there is room, else in two."""
        scaled, width = self.app.theme.scaled, self.winfo_width()
        self._right.grid_columnconfigure(0, minsize=self.search.min_width)  # the menus end in "…" where they are cut
        is_wide = width <= 1 or width >= self._left.winfo_reqwidth() + scaled(MIN_RIGHT + 40)
        rows = 1 if is_wide else 2
        if rows == self._rows:
            return
        self._rows = rows
        self._left.grid_columnconfigure(1, weight=0 if is_wide else 1)  # of the preset
        # The space between the two takes all surplus width; if there is too little, the right one shrinks.
        for column, weight in enumerate((0, 1000, 1) if is_wide else (1, 0, 0)):
            self.grid_columnconfigure(column, weight=weight)
        self._left.grid(row=0, column=0, sticky="ew", padx=14, pady=(9, 9 if is_wide else 3))
        if is_wide:
            self._right.grid(row=0, column=2, sticky="ew", padx=(0, 14), pady=9)
        else:
            self._right.grid(row=1, column=0, sticky="ew", padx=14, pady=(3, 9))


def _text(value: Any) -> str:
    """A value as text in the list of changes."""
    if isinstance(value, list):
        return counted(len(value), "entry", "entries") if value and not isinstance(value[0], int) else str(value)
    return value if isinstance(value, str) and value else show_value(value)
