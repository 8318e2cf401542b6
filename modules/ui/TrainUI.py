"""The main window: a top bar, tabs and a bottom bar."""

from __future__ import annotations

import importlib
import sys
import tkinter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import customtkinter as ctk

from modules.config.describe import settings_by_path
from modules.config.errors import UserError
from modules.config.explain import generic_path
from modules.config.installation import PACKAGE
from modules.config.labels import with_labels
from modules.config.visible_text import visible_text
from modules.session.following import RunInfo, find_runs, run_info
from modules.session.printing import print_text
from modules.session.RunFolder import RunFolder
from modules.ui import keyboard
from modules.ui.App import MessageKind
from modules.ui.BottomBar import BottomBar
from modules.ui.file_drops import accept_drops, take_drop
from modules.ui.models.BackgroundChecks import BackgroundChecks
from modules.ui.models.desktop import notify, open_file
from modules.ui.models.DeviceModel import DeviceModel
from modules.ui.models.help_pages import help_page
from modules.ui.models.LaunchModel import LaunchModel
from modules.ui.models.ProblemList import ProblemList
from modules.ui.models.QueueModel import QueueModel
from modules.ui.models.run_text import describe_result
from modules.ui.models.RunModel import RunModel
from modules.ui.models.RunPage import RunPage
from modules.ui.models.RunState import RunState
from modules.ui.models.SettingsModel import SettingsModel
from modules.ui.models.Standby import StandbyPlan
from modules.ui.models.StandbyKeeper import StandbyKeeper
from modules.ui.models.trained_images import newest_model
from modules.ui.OpeningWindow import TABS, OpeningWindow
from modules.ui.SettingsViews import SettingsViews
from modules.ui.TopBar import TopBar
from modules.ui.widgets.dialogs import ask, open_window, position_of
from modules.ui.widgets.form import SettingsForm, find_field
from modules.ui.widgets.Notices import Notices
from modules.ui.window_system import close_on_quit

TAB_OF_GROUP = {
    "general": "general",
    "model": "model",
    "method": "training",
    "data": "dataset",
    "training": "training",
    "optimizer": "training",
    "multi_gpu": "multi-GPU",
    "sampling": "sampling",
    "backup": "backup",
    "output": "model",
}
TAB_OF_PATH = {"seed": "general"}
POLL_SECONDS = 0.1
SAVE_SECONDS = 1.0
QUEUE_SECONDS = 5.0  # while its tab, which looks more often, was not opened
AFTER_PAINT_MS = 300  # for tasks that can wait until the window is first drawn


class TrainUI(OpeningWindow):
    """The main window. It fulfils App, which is all that its parts know of it.

    state_dir: where the last settings and the appearance of the window are kept; None keeps nothing. queue_dir: the
    folder of the queue.
    """

    def __init__(self, state_dir: Path | None, queue_dir: Path):
        super().__init__(state_dir)
        self._fill(queue_dir)

    @classmethod
    def take_over(cls, opening: OpeningWindow, queue_dir: Path) -> TrainUI:
        """Make the window that was shown while this module was imported the main window."""
        opening.__class__ = cls  # no other window could take its place without a flicker, or what was clicked in it
        assert isinstance(opening, cls)
        opening._fill(queue_dir)
        opening.update_idletasks()  # keys that wait for a field reach it only once it is mapped
        return opening

    def _fill(self, queue_dir: Path) -> None:
        """Add all that needs the settings."""
        state_dir = self.state_dir
        self.settings = SettingsModel(state_dir / "settings.json" if state_dir else None)
        self.problems = ProblemList(self.settings)
        self.views = SettingsViews(self.settings)
        self.standby = StandbyKeeper(self._standby_plans, lambda: self.preferences.preloads)
        self.run = RunModel(self.standby.take)
        self.queue = QueueModel(queue_dir, self.settings, self, self._has_gpus, self.show_message)
        self.page = RunPage(
            self,
            lambda: self.settings.get("workspace_dir"),
            lambda: self.preferences.runs,
            state_dir / "page.token" if state_dir else None,
            lambda text: self.show_message(text, "error", lambda: bool(self.page.error)),
        )
        self.devices = DeviceModel()
        self.launch = LaunchModel()
        self.checks = BackgroundChecks(self, self.settings, self.problems, self.run, self.devices)
        self.log_rank: int | None = None
        self.revealed: set[str] = set()
        self.is_asking = False
        self.tabs: dict[str, ctk.CTkFrame] = {}
        self._was_running = False
        self._told_waiting = ""
        self._told_run: object = None  # the history of the run whose end was last reported
        self._is_saving = self._save_failed = False
        self._build()
        self._bind_keys()
        first_tab = self.first_tab
        self.tab_bar.select("")  # it may have been marked while there was no page
        self.open_tab(first_tab)
        self.end_opening()
        self.every(POLL_SECONDS, self.run.poll)
        self.every(SAVE_SECONDS, self._save_state)
        self.every(QUEUE_SECONDS, self.queue.look)
        self.run.subscribe(self._run_changed)
        self.protocol("WM_DELETE_WINDOW", self.close)
        close_on_quit(self, self.close)
        self.after(AFTER_PAINT_MS, self._load_tabs)
        self.after(AFTER_PAINT_MS, self._find_run)
        self.after(AFTER_PAINT_MS, self.queue.continue_after_restart)
        self.after(AFTER_PAINT_MS, self.checks.start)
        if self.preferences.serves_page:
            self.after(AFTER_PAINT_MS, lambda: self.page.start(self.preferences.page_address))
        self.after(AFTER_PAINT_MS, lambda: accept_drops(self, lambda paths: take_drop(self, paths)))
        if notice := self.first_notice or self.settings.notice:
            self.show_message(notice, "warning")

    @property
    def root(self) -> TrainUI:
        return self

    @property
    def message(self) -> ctk.CTkLabel:
        """The label of the latest message."""
        return self.banner.newest

    def open_tab(self, name: str) -> ctk.CTkFrame:
        if name not in self.tabs:
            kind = getattr(_module_of(name), TABS[name])
            self.preferences.tab, before = name, self.preferences.tab  # first: the tab in front is built first
            try:
                self.tabs[name] = kind(self.content, self)
            except BaseException:
                self.preferences.tab = before  # else the window would next open with a tab that can't be made
                raise
        if name != self.tab_bar.selected:
            self.views.resume(self.tabs[name])
            if self.tab_bar.selected:
                before = self.tabs[self.tab_bar.selected]
                self.views.suspend(before)
                before.grid_remove()
                if str(self.focus_lastfor()).startswith((f"{before}.", f"{self.tab_bar}.")):
                    self.tab_bar.focus_on(name)  # else keys would go to a hidden field
            self.tabs[name].grid(row=0, column=0, sticky="nsew")
            self.tab_bar.select(name)
            self.preferences.tab = name
        return self.tabs[name]

    def flash(self, path: str) -> None:
        tab = self.open_tab(tab_of(path))
        path = self._in_a_part(tab, path)
        info = settings_by_path().get(path)
        if info is not None and info.type == "list" and not self._does_matter(path):
            return
        show = getattr(tab, "show_setting", None)
        if show is not None:
            show(path)
        found = find_field(tab, path)
        if found is None:
            return
        if not found.is_shown:
            if not self._does_matter(path):
                return
            if self.problems.at(path):
                self.set_show_all(True)
            else:
                self.revealed.add(path)
                assert isinstance(found.parent, SettingsForm)
                found.parent.refresh()
        self.update_idletasks()
        found.flash()

    def bind_settings_keys(self, window: tkinter.Tk | tkinter.Toplevel) -> None:
        command = self._command_key()
        keys = {
            f"<{command}-s>": self.top_bar.save,
            f"<{command}-Shift-S>": self.top_bar.save_as,
            f"<{command}-z>": self.settings.undo,
            f"<{command}-y>": self.settings.redo,
            f"<{command}-Shift-Z>": self.settings.redo,
        }
        keyboard.bind_keys(window, keys)

    def show_help(self) -> None:
        """Open the page of the documentation about the tab in front."""
        try:
            open_file(help_page(self.tab_bar.selected))
        except UserError as error:
            self.show_message(str(error), "error")

    def start_run(self) -> None:
        self.bottom_bar.control.start()

    def start_preset(self, name: str) -> None:
        self.bottom_bar.control.start_preset(name)

    def open_settings(self, path: str) -> None:
        self.top_bar.open_file(path)

    def resume_run(self) -> None:
        self.bottom_bar.control.resume()

    def show_message(self, text: str, kind: MessageKind = "info", holds: Callable[[], bool] | None = None) -> None:
        self.banner.show(with_labels(visible_text(text)), kind, holds)

    def set_show_all(self, show_all: bool) -> None:
        """Show all settings, or only the basic ones."""
        super().set_show_all(show_all)
        self.revealed.clear()
        self.views.invalidate()

    def close(self) -> None:
        """Close the window once edits of a dataset are written; if a run is active, first ask whether to stop it."""
        if any(saves_first(self.close) for saves_first in self.before_closing):
            return
        if (row := self.queue.editing) is not None and self.settings.modified_paths():
            text = f"The changed settings of {row.name} are not saved to the queue. Close the window without them?"
            if ask(self, "Close the window", text, ("Cancel", "Discard"), danger="Discard") != "Discard":
                return
        if self.run.state.is_running:
            text = "Training continues if you close the window. Keep training, or stop within two steps and save?"
            answer = ask(self, "Close the window", text, ("Keep training", "Stop and save", "Cancel"))
            if answer is None or answer == "Cancel":
                return
            if answer == "Stop and save":
                try:
                    self.run.stop()
                except UserError as error:
                    self.show_message(str(error), "error")
                    return
        self.destroy()

    def destroy(self) -> None:
        self.queue.end_editing()  # what is kept for next time are the settings of the next run
        for write in self._pending_saves():
            try:
                write()
            except OSError as error:  # too late for a message
                print_text(f"The settings can't be saved for next time: {error.strerror}.", sys.stderr)
        self.standby.close()
        self.page.close()
        self.checks.close()
        self.run.close()
        super().destroy()

    def finish(self, seconds: float) -> None:
        self.run.finish(seconds)
        super().finish(seconds)

    def _in_a_part(self, tab: ctk.CTkFrame, path: str) -> str:
        """The path of a list's setting ("concepts[].repeats") in the part chosen on the tab, or in the first one. If
        the list is empty, its own path, with a message."""
        parts, of_part, name = path.partition("[]")
        if not of_part:
            return path
        if self.settings.get(parts):
            return f"{parts}.{getattr(tab, 'chosen_part', None) or 0}{name}"
        self.show_message(f"Each {self.settings.info(parts).part_name} has this setting: add one first.", "info")
        return parts

    def _does_matter(self, path: str) -> bool:
        """Whether a setting has any effect; if not, a message says so."""
        if self.settings.is_visible(path) or self.problems.at(path):  # it may be refused here
            return True
        label = self.settings.info(path).label
        self.show_message(f"{label} has no effect with the current family, method and settings.", "info")
        return False

    def _build(self) -> None:
        self.top_bar = TopBar(self, self)
        self.top_bar.lower()  # the tabs were there before; the Tab key goes from the back to the front
        self.top_bar.grid(row=0, column=0, sticky="ew")
        self.banner = Notices(self, self, self.content)
        self.bottom_bar = BottomBar(self, self)
        self.bottom_bar.grid(row=3, column=0, sticky="ew")

    def _bind_keys(self) -> None:
        command = self._command_key()
        keys = {
            f"<{command}-o>": self.top_bar.choose_preset,
            f"<{command}-f>": self.top_bar.search.focus_set,
            "<F1>": self.show_help,
            "<F5>": self.bottom_bar.control.start,
            "<Control-Tab>": lambda: self.tab_bar.choose_neighbour(1),
            "<Control-Next>": lambda: self.tab_bar.choose_neighbour(1),
            "<Control-Prior>": lambda: self.tab_bar.choose_neighbour(-1),
        }
        keyboard.bind_keys(self, keys)
        self.bind_settings_keys(self)
        for event in ("<KeyPress>", "<ButtonPress>"):
            self.bind_all(event, lambda event: self.standby.note_use(), add="+")

    def _command_key(self) -> str:
        return "Command" if self.tk.call("tk", "windowingsystem") == "aqua" else "Control"

    def _pending_saves(self) -> list[Callable[[], None]]:
        """Functions that write the settings and preferences, if they have changed."""
        if self.winfo_viewable():  # before that it has no size
            self.preferences.geometry = "{}+{}+{}".format(self.geometry().partition("+")[0], *position_of(self))
        return [write for kept in (self.settings, self.preferences) if (write := kept.pending_save()) is not None]

    def _save_state(self) -> None:
        writes = [] if self._is_saving else self._pending_saves()
        if writes:
            self.in_background(lambda: [write() for write in writes], self._end_saving, self._tell_save_failed)
            self._is_saving = True

    def _end_saving(self, _: object = None) -> None:
        self._is_saving = False

    def _tell_save_failed(self, error: Exception) -> None:
        self._end_saving()
        if not isinstance(error, OSError):
            raise error
        if not self._save_failed:
            self._save_failed = True
            self.show_message(f"The settings can't be saved for next time: {error.strerror}.", "warning")

    def _has_gpus(self) -> bool:
        """Whether this machine has GPUs; assumed until it is known."""
        return self.devices.machine is None or bool(self.devices.gpus)

    def _standby_plans(self) -> list[StandbyPlan]:
        """What may be started next: a run, and images from the last one."""
        config, state = self.settings.in_effect, self.run.state
        shape = self.devices.shape(config)
        if state.is_running or self.devices.machine is None:
            return []
        gpus = self.devices.gpus
        plans = [] if shape is None else [StandbyPlan("train", config.family, shape.ranks_per_node, gpus)]
        if state.exit is not None and newest_model(state.saved):
            plans.append(StandbyPlan("sample", config.family, gpus=gpus))
        return plans

    def _load_tabs(self) -> None:
        """Import the other tabs in a thread: some need NumPy, which would delay opening them by 100 ms."""
        self.in_background(lambda: [_module_of(name) for name in TABS], lambda modules: None)

    def _find_run(self) -> None:
        """Attach to a running run, or to the last one in the run folder of the settings."""
        try:
            own = RunFolder(self.settings.get("workspace_dir")).path
        except UserError:  # reported when the folder is used
            return

        def find() -> RunInfo | None:
            running = [info for info in find_runs(own.parent) if info.status == "running"]
            return running[0] if running else run_info(own)

        self.in_background(find, self._attach)

    def _attach(self, info: RunInfo | None) -> None:
        if info is None or self.run.state.folder is not None:
            return
        try:
            self.run.attach(info.folder, info.status == "running")
        except UserError as error:
            self.show_message(str(error), "warning")
            return
        if info.status == "running":
            self.show_message(f"The run {info.folder.name} is still running: the window follows it.", "info")

    def _run_changed(self, state: RunState) -> None:
        """Remember the run, and report its end once; for a run that had already ended, only a failure."""
        was_running, self._was_running = self._was_running, state.is_running
        if state.folder is not None and self.preferences.runs[:1] != [str(state.folder)]:
            self.preferences.remember_run(state.folder)
        self._tell_waiting(state)
        if state.is_running or state.exit is None or state.folder is None:
            return
        is_new, self._told_run = self.run.history is not self._told_run, self.run.history
        status, text = state.exit.get("status"), str(state.exit.get("text", ""))
        if was_running and not self.has_focus:  # the user is looking at something else
            notify(f"{state.folder.name}: {status}", describe_result(state))
        if was_running and status == "failed":
            from modules.ui.windows.CrashReportWindow import CrashReportWindow

            report = open_window(self, CrashReportWindow, state.folder)
            self.show_message(f"The run failed: {text}", "error", lambda: bool(report.winfo_exists()))
        elif is_new and status == "failed":
            reason = text.partition("\n")[0].rstrip(".")
            message = f"The run {state.folder.name} failed: {reason}. Its report is on the Tools tab."
            failed = self.run.history
            self.show_message(message, "error", lambda: self.run.history is failed and self.preferences.tab != "tools")

    def _tell_waiting(self, state: RunState) -> None:
        """Say what the run waits for, as long as it does: it may give up in a few minutes."""
        waits_for = state.waits_for if state.is_running and state.folder is not None else ""
        if waits_for and waits_for != self._told_waiting:
            self.show_message(
                f"{waits_for}.", "warning", lambda: self.run.state.is_running and self.run.state.waits_for == waits_for
            )
        self._told_waiting = waits_for


def tab_of(path: str) -> str:
    """The name of the tab that has the field of a setting."""
    generic = generic_path(path)
    if generic.startswith("concepts"):
        return "dataset"
    info = settings_by_path().get(generic)
    if info is None:
        return "general"
    return TAB_OF_PATH.get(path, TAB_OF_GROUP[info.group])


def _module_of(tab: str) -> ModuleType:
    return importlib.import_module(f"{PACKAGE}.ui.tabs.{TABS[tab]}")
