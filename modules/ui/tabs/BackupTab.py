"""The backup tab: when backups are made, the list of backups, and resuming from one of them."""

from __future__ import annotations

import time
import tkinter
from collections.abc import Generator
from tkinter import ttk
from typing import TYPE_CHECKING

import customtkinter as ctk

from modules.config.errors import UserError
from modules.config.files import load_config
from modules.session.backups import BackupInfo, damage, go_back_to, list_backups
from modules.session.RunFolder import RunFolder
from modules.session.working_folder import shown_path
from modules.ui.cards.Card import Card
from modules.ui.keyboard import pressed_once
from modules.ui.tabs.SlicedTab import SlicedTab
from modules.ui.theme import Theme
from modules.ui.widgets.dialogs import ask
from modules.ui.widgets.fitting import fit_columns, fit_side_column
from modules.ui.widgets.form import CardSpec, SettingsCard
from modules.ui.widgets.scrolling import make_scrollbar

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig
    from modules.ui.App import App
    from modules.ui.models.RunState import RunState

SCHEDULE = CardSpec("Schedule", ("backup.every", "backup.unit", "backup.keep", "backup.at_end"), all_importances=True)
SIDE_WIDTH = 400
LOOK_SECONDS = 2.0
COLUMNS = (("step", "Step", 90), ("time", "Created", 130), ("size", "Size", 90), ("state", "State", 260))
CHECKING, COMPLETE = "checking…", "complete"


class BackupTab(SlicedTab):
    """Shows the backups of the run that the window follows or, without one, those in the run folder of the settings."""

    def __init__(self, parent: tkinter.Misc, app: App):
        super().__init__(parent, app)
        self.backups: list[BackupInfo] = []
        self.states: dict[BackupInfo, str] = {}
        self._folder: RunFolder | None = None
        self._is_looking = self._is_checking = self._is_resuming = False
        self.grid_columnconfigure(1, weight=1)
        self.grid_rowconfigure(0, weight=1)
        self._build_side()
        app.in_slices(self._steps)

    # --- the list -----------------------------------------------------------------------------------------------------

    def folder(self) -> RunFolder:
        """The folder whose backups are shown. Raises UserError if the settings have none."""
        return RunFolder(self.app.run.state.folder or self.app.settings.get("workspace_dir"))

    def _on_settings(self, paths: set[str] | None) -> None:
        if paths is None or "workspace_dir" in paths:
            self.look()

    def look(self) -> None:
        """Read the list of backups in a thread."""
        if self._is_looking:
            return
        try:
            folder = self.folder()
        except UserError as error:
            self._note.configure(text=str(error))
            return
        self._is_looking = True
        self.app.in_background(lambda: list_backups(folder), lambda found: self._show(folder, found), self._end_looking)

    def _end_looking(self, error: Exception) -> None:
        self._is_looking = False
        raise error

    def _show(self, folder: RunFolder, found: list[BackupInfo]) -> None:
        self._is_looking = False
        if not self.winfo_exists():
            return
        place = shown_path(folder.path)
        self._note.configure(text=place if found else f"{place} holds no backup yet.")
        if found != self.backups or self._folder is None or folder.path != self._folder.path:
            self._folder, self.backups = folder, found
            self.states = {info: self.states.get(info, CHECKING) for info in found}
            self._fill()
        self._check_next()

    def _fill(self) -> None:
        chosen = self.table.selection()
        self.table.delete(*self.table.get_children())
        for info in self.backups:
            self.table.insert("", "end", iid=info.path.name, values=self._cells(info), tags=self._tags(info))
        still = [name for name in chosen if self.table.exists(name)]
        if still:
            self.table.selection_set(still)
        else:
            self._choose_usable()
        self._show_chosen()

    def _choose_usable(self) -> None:
        """Select the latest backup that is not known to be damaged."""
        usable = [i.path.name for i in self.backups if not i.is_aside and not self.is_damaged(i)]
        self.table.selection_set(usable[:1])

    def _check_next(self) -> None:
        """Verify the next unchecked backup; only one at a time, as they may be large."""
        waiting = [info for info, state in self.states.items() if state == CHECKING]
        if self._is_checking or not waiting:
            return
        self._is_checking = True
        info = waiting[0]

        def fail(error: Exception) -> None:
            self._checked(info, "it can't be read")  # and continue with the next one
            raise error

        self.app.in_background(lambda: damage(info.path), lambda problem: self._checked(info, problem), fail)

    def _checked(self, info: BackupInfo, problem: str | None) -> None:
        self._is_checking = False
        if not self.winfo_exists():
            return
        if info in self.states:
            self.states[info] = COMPLETE if problem is None else f"damaged: {problem}"
            self.table.item(info.path.name, values=self._cells(info), tags=self._tags(info))
            if problem is not None and info == self.chosen():
                self._choose_usable()
            self._show_chosen()
        self._check_next()

    def _cells(self, info: BackupInfo) -> tuple[str, ...]:
        made = time.strftime("%d %b %H:%M:%S", time.localtime(info.time))
        state = f"{self.states[info]}, set aside" if info.is_aside else self.states[info]
        return f"{info.step:,}", made, size_text(info.num_bytes), state

    def _tags(self, info: BackupInfo) -> tuple[str, ...]:
        if self.is_damaged(info):
            return ("damaged",)
        return ("aside",) if info.is_aside else ()

    def is_damaged(self, info: BackupInfo) -> bool:
        return self.states[info].startswith("damaged")

    def chosen(self) -> BackupInfo | None:
        names = self.table.selection()
        return next((info for info in self.backups if names and info.path.name == names[0]), None)

    # --- actions ------------------------------------------------------------------------------------------------------

    def resume(self) -> None:
        """Resume from the selected backup; later ones are set aside."""
        info, folder = self.chosen(), self._folder
        if info is None or folder is None or self._is_resuming or self.app.run.state.is_running:
            return
        if self.is_damaged(info):
            self.app.show_message(f"The backup of step {info.step:,} is {self.states[info]}: choose another.", "error")
            return
        config = self._settings_of(folder)
        if config is None or not self._agrees(info):
            return
        self._is_resuming = True
        self._on_run(self.app.run.state)
        self.app.in_background(
            lambda: go_back_to(folder, info.step), lambda _: self._start(config), lambda error: self._refuse(error)
        )

    def _settings_of(self, folder: RunFolder) -> TrainConfig | None:
        """The window's settings if they belong to this folder, else those the run was started with."""
        try:
            if RunFolder(self.app.settings.get("workspace_dir")).path != folder.path:
                return load_config(folder.config_path)
        except UserError as error:
            self.app.show_message(str(error), "error")
            return None
        if blocking := self.app.problems.blocking():
            self.app.flash(blocking[0].path)
            return None
        return self.app.settings.config()

    def _agrees(self, info: BackupInfo) -> bool:
        later = sum(other.step > info.step and not other.is_aside for other in self.backups)
        if not later and not info.is_aside:
            return True
        text = f"Resume from step {info.step:,}? " + (
            f"{later} later {'backups are' if later > 1 else 'backup is'} set aside and can be chosen again."
            if later
            else "It was set aside before."
        )
        return ask(self.app, "Resume", text, ("Resume", "Cancel")) == "Resume"

    def _start(self, config: TrainConfig) -> None:
        try:
            self.app.run.start(config, resume=True)
        except UserError as error:
            self._refuse(error)
        else:
            self._end_resuming()

    def _refuse(self, error: Exception) -> None:
        self._end_resuming()
        if not isinstance(error, UserError):
            raise error
        self.app.show_message(str(error), "error")

    def _end_resuming(self) -> None:
        self._is_resuming = False
        self._on_run(self.app.run.state)

    def _ask_run(self, command: str, answer: str) -> None:
        try:
            self.app.run.command(command)
        except UserError as error:
            self.app.show_message(str(error), "error")
        else:
            self.app.show_message(answer, "info")

    def _show_chosen(self) -> None:
        info = self.chosen()
        text = "" if info is None else f"Step {info.step:,} is {self.states[info]}" + ", set aside." * info.is_aside
        self._detail.configure(text=text if text.endswith(".") or not text else f"{text}.")
        self._on_run(self.app.run.state)

    def _on_run(self, state: RunState) -> None:
        can_ask = "normal" if state.is_running and not state.is_stopping else "disabled"
        info = self.chosen()
        can_resume = info is not None and not self.is_damaged(info) and not (state.is_running or self._is_resuming)
        wanted = (
            (self._back_up, can_ask),
            (self._save, can_ask),
            (self._resume, "normal" if can_resume else "disabled"),
        )
        for button, value in wanted:
            if button.cget("state") != value:
                button.configure(state=value)

    # --- widgets ------------------------------------------------------------------------------------------------------

    def _build(self) -> Generator[None, None, None]:
        """Build the tab in slices, so that opening it never stalls the window."""
        yield from self._build_list()
        view = self.app.views.add(self, self._on_settings)
        self._ends = [
            self.app.run.subscribe(self._on_run),
            view.end,
            self.app.every(LOOK_SECONDS, view.invalidate),  # while hidden, it is refreshed when shown again
            self.app.theme.on_change(self._restyle),
        ]
        self._restyle()
        self._on_run(self.app.run.state)

    def _build_side(self) -> None:
        side = ctk.CTkFrame(self, fg_color="transparent")
        side.grid(row=0, column=0, sticky="new", padx=(4, 0))
        theme = self.app.theme
        fit_side_column(
            self, SIDE_WIDTH, theme, lambda width: side.grid_columnconfigure(0, minsize=theme.scaled(width), weight=1)
        )
        SettingsCard(side, self.app, SCHEDULE, lambda: None).grid(row=0, column=0, sticky="ew", padx=4, pady=4)
        now = Card(side, self.app, "Now")
        now.grid(row=1, column=0, sticky="ew", padx=4, pady=4)
        now.add_note(1).configure(text="Runs within two steps.")
        self._back_up, self._save = now.add_buttons(
            2,
            ("Back up now", pressed_once(lambda: self._ask_run("backup", "A backup is written within two steps."))),
            ("Save model now", pressed_once(lambda: self._ask_run("save", "The model is saved within two steps."))),
        )

    def _build_list(self) -> Generator[None, None, None]:
        card = Card(self, self.app, "Backups")
        card.grid(row=0, column=1, sticky="nsew", padx=(4, 8), pady=(4, 8))
        card.grid_rowconfigure(2, weight=1)
        self._note = card.add_note(1)
        yield
        names = [name for name, _, _ in COLUMNS]
        frame = ctk.CTkFrame(card, fg_color="transparent")
        frame.grid(row=2, column=0, sticky="nsew", padx=12, pady=4)
        frame.grid_columnconfigure(0, weight=1)
        frame.grid_rowconfigure(0, weight=1)
        self.table = ttk.Treeview(frame, columns=names, show="headings", selectmode="browse", height=8)
        for name, title, _ in COLUMNS:
            self.table.heading(name, text=title, anchor="w")
        self.table.grid(row=0, column=0, sticky="nsew")
        make_scrollbar(frame, self.table, row=0, column=1)
        widths = {name: width for name, _, width in COLUMNS}
        self._fit_columns = fit_columns(self.table, widths, self.app.theme, stretched="state")
        self.table.bind("<<TreeviewSelect>>", lambda event: self._show_chosen())
        self.table.bind("<Return>", lambda event: self.resume())
        self.table.bind("<Double-1>", lambda event: self.resume())
        yield
        self._detail = card.add_note(3)
        (self._resume,) = card.add_buttons(4, ("Resume from here", self.resume))

    def _restyle(self) -> None:
        theme = self.app.theme
        self._fit_columns()
        self.table.tag_configure("damaged", foreground=theme.now(Theme.error))
        self.table.tag_configure("aside", foreground=theme.now(Theme.muted))


def size_text(num_bytes: int) -> str:
    """A size such as "4.1 GiB"."""
    size, unit = float(num_bytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1000 or unit == "GiB":
            break
        size /= 1024
    return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
