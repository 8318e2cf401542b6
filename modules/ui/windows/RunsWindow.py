"""The window with all runs: find, sort, mark, compare and delete them, or start again with their settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import customtkinter as ctk

from modules.config.counted import counted
from modules.config.errors import UserError
from modules.runs.deletion import Sizes, delete_run, sizes_of
from modules.runs.marks import change_marks
from modules.runs.RunTable import FILTERS, RunTable, TableRun
from modules.runs.settings_of_run import changed_values
from modules.session.byte_sizes import spoken_bytes
from modules.session.following import is_running
from modules.session.free_folders import next_free_folder
from modules.session.RunFolder import RunFolder
from modules.ui.models.desktop import open_folder
from modules.ui.models.RunsModel import FoundRuns, RunsModel, output_folders
from modules.ui.theme import Theme
from modules.ui.widgets.dialogs import ask, open_window, set_size, show_over
from modules.ui.widgets.fitting import lay_in_rows
from modules.ui.widgets.RunList import RunList
from modules.ui.windows.RunPane import RunPane

if TYPE_CHECKING:
    from modules.ui.App import App

LOOK_SECONDS = 0.7  # between two looks at the indexes
TYPING_MS = 150  # after the last key in the search


class RunsWindow(ctk.CTkToplevel):
    """Marks are written at once. Keys: Return shows a run on the monitor, Delete deletes, Ctrl+F leads to the search,
    S stars."""

    def __init__(self, app: App):
        super().__init__(app.root, fg_color=Theme.page)
        self.app = app
        self.table = RunTable()
        self._found: FoundRuns | None = None
        self._is_looking = self._is_closed = False
        self._typing: str | None = None
        self.model = RunsModel(output_folders(app.settings.get("workspace_dir"), app.preferences.runs))
        self.title("Runs")
        set_size(self, "1340x760", (640, 420))
        self.grid_columnconfigure(0, weight=1)
        self.grid_rowconfigure(1, weight=1)
        self._build_bar()
        self.list = RunList(self, app, self.table, self._show_chosen, self._show_runs, self._toggle_star, self.monitor)
        self.list.empty = "Looking for runs…"
        self.list.grid(row=1, column=0, sticky="nsew", padx=(12, 4), pady=(0, 8))
        self.pane = RunPane(self, app, self._write_marks)
        self.pane.grid(row=1, column=1, sticky="nsew", padx=(4, 12), pady=(0, 8))
        self._build_buttons()
        self._bind_keys()
        self._show_chosen()
        show_over(app, self)
        self._look(is_first=True)
        self._stop_looking = app.every(LOOK_SECONDS, self._look)
        app.in_background(self.model.start, lambda _: None, self._tell_error)
        self.list.canvas.focus_set()

    def destroy(self) -> None:
        self._is_closed = True
        self.pane.save()
        self._stop_looking()
        self.model.close()
        super().destroy()

    # --- actions -----------------------------------------------------------------------------------------------------

    def monitor(self, run: TableRun) -> None:
        """Show a run on the Monitor tab."""
        if self.app.run.state.folder != run.folder:
            try:
                self.app.run.attach(run.folder, run.row.status == "running")
            except UserError as error:
                self._tell(str(error), Theme.error)
                return
        self.app.open_tab("monitor")
        self.app.root.lift()

    def load_settings(self, run: TableRun) -> None:
        """Load all settings of a run, for a new run beside it."""
        settings = self.app.settings
        try:
            with settings.one_undo_step():
                settings.load_run(run.folder)
                settings.set("workspace_dir", next_free_folder(str(run.folder)))
        except UserError as error:
            self._tell(str(error), Theme.error)
            return
        name = Path(settings.get("workspace_dir")).name
        self._tell(f"Loaded the settings of {run.row.shown_name}, for a new run in {name}. Undo restores yours.")

    def load_changes(self, run: TableRun) -> None:
        """Change the current settings as this run had changed those of the one before it."""
        if run.before is None or run.before.settings is None or run.row.settings is None:
            return
        values = changed_values(run.row.settings, run.before.settings)
        self.app.settings.set_many(values)
        self._tell(f"Changed {counted(len(values), 'setting')} as {run.row.shown_name} had. Undo restores yours.")

    def delete(self) -> None:
        """Ask, with what it frees, and delete the selected runs."""
        runs = self.list.chosen_runs
        if not runs:
            return
        self._tell("Counting what this frees…")

        def count() -> tuple[list[str], Sizes]:
            running = [run.row.shown_name for run in runs if is_running(RunFolder(run.folder))]
            return running, sum((sizes_of(run.folder) for run in runs), Sizes())

        self.app.in_background(count, partial(self._ask_to_delete, runs), self._tell_error)

    def _ask_to_delete(self, runs: list[TableRun], found: tuple[list[str], Sizes]) -> None:
        running, sizes = found
        if self._is_closed:
            return
        self._tell("")
        if running:
            self._tell(f"{', '.join(running[:3])} is running: stop it before you delete it.", Theme.error)
            return
        whose = f"the run {runs[0].row.shown_name}" if len(runs) == 1 else counted(len(runs), "run")
        if not sizes.num_models:
            text = f"Delete {whose}? This frees {spoken_bytes(sizes.rest)}. No model was saved there."
            answers: tuple[str, ...] = ("Cancel", "Delete")
        else:
            models = f"{counted(sizes.num_models, 'model file')} ({spoken_bytes(sizes.models)})"
            text = (
                f"Delete {whose} with samples, backups and curves? This frees {spoken_bytes(sizes.rest)}, and "
                f"{spoken_bytes(sizes.rest + sizes.models)} with the {models}."
            )
            answers = ("Cancel", "Keep the models", "Delete the models, too")
        answer = ask(self.app, "Delete runs", text, answers, danger=answers[-1])
        if answer is None or answer == "Cancel":
            return
        with_models = answer != "Keep the models"

        def work() -> list[Path]:
            return [path for run in runs for path in delete_run(run.folder, with_models)]

        self._tell("Deleting…")
        self.app.in_background(work, partial(self._note_deleted, runs, with_models), self._tell_error)

    def _note_deleted(self, runs: list[TableRun], with_models: bool, left: list[Path]) -> None:
        if self._is_closed:
            return
        gone = {run.folder for run in runs}
        rows = [(folder, [row for row in rows if folder / row.name not in gone]) for folder, rows in self._rows()]
        self._take_rows(rows)
        stays = f" {left[0]} and {len(left) - 1} more stay." if len(left) > 1 else f" {left[0]} stays." if left else ""
        self._tell(
            f"Deleted {counted(len(runs), 'run')}.{stays if with_models else ' The models stay.' if left else ''}"
        )

    def compare(self) -> None:
        from modules.ui.windows.CompareRunsWindow import CompareRunsWindow

        folders = tuple(run.folder for run in self.list.chosen_runs)
        if len(folders) >= 1:
            open_window(self.app, CompareRunsWindow, folders)

    def open_chosen_folder(self) -> None:
        for run in self.list.chosen_runs[:1]:
            try:
                open_folder(run.folder)
            except UserError as error:
                self._tell(str(error), Theme.error)

    # --- marks -------------------------------------------------------------------------------------------------------

    def _toggle_star(self, run: TableRun) -> None:
        self._write_marks(run, {"star": not run.row.marks.star})

    def _write_marks(self, run: TableRun, changes: dict[str, Any]) -> None:
        """Write changed marks in a thread, and show them at once."""

        def show(marks: Any) -> None:
            if self._is_closed:
                return
            rows = [
                (
                    folder,
                    [dataclasses.replace(row, marks=marks) if folder / row.name == run.folder else row for row in rows],
                )
                for folder, rows in self._rows()
            ]
            self._take_rows(rows)

        def fail(error: Exception) -> None:
            if self._is_closed and isinstance(error, UserError):
                values = (", ".join(value) if isinstance(value, tuple) else value for value in changes.values())
                typed = "; ".join(str(value) for value in values if value)
                self.app.show_message(f"{error} Not noted of {run.row.shown_name}: {typed}", "error")
            self._tell_error(error)

        self.app.in_background(partial(change_marks, run.folder, **changes), show, fail)

    # --- what is shown -----------------------------------------------------------------------------------------------

    def _look(self, is_first: bool = False) -> None:
        if self._is_looking or self._is_closed:
            return
        self._is_looking = True
        model = self.model

        def take(found: FoundRuns | None) -> None:
            self._is_looking = False
            if self._is_closed:
                return
            if model.error:
                self._tell(model.error, Theme.error)
            if found is not None:
                self._found = found
                self.list.empty = (
                    "No run passes the filter and the search."
                    if any(r for _, r in found.rows)
                    else ("No run yet. Start one, and it is listed here.")
                )
                self._take_rows([(folder, list(rows)) for folder, rows in found.rows])

        def fail(error: Exception) -> None:
            self._is_looking = False
            raise error

        self.app.in_background(lambda: model.look(is_first), take, fail)

    def _rows(self) -> list[tuple[Path, list[Any]]]:
        """The rows as they are shown now."""
        return [
            (folder, [run.row for run in self.table.runs if run.folder.parent == folder])
            for folder in self.model.folders
        ]

    def _take_rows(self, rows: list[tuple[Path, list[Any]]]) -> None:
        self.table.take(rows)
        self._show_runs()

    def _show_runs(self) -> None:
        self.list.show_runs(dict(self._found.pictures) if self._found is not None else {})
        counts = self.table.counts()
        for name, chip in self.chips.items():
            text = f"{name.capitalize()}  {counts[name]:,}"
            if chip.cget("text") != text:
                chip.configure(text=text)
        self._show_chosen()

    def _show_chosen(self) -> None:
        runs = self.list.chosen_runs
        self.pane.show(runs)
        one, any_run = ("normal" if len(runs) == 1 else "disabled"), ("normal" if runs else "disabled")
        has_changes = len(runs) == 1 and runs[0].before is not None and runs[0].row.settings is not None
        states = {
            "Open folder": one, "Monitor": one, "Load settings": one,
            "Load the difference": "normal" if has_changes else "disabled",
            "Compare…": any_run, "Delete…": any_run,
        }  # fmt: skip
        for name, state in states.items():
            if self.buttons[name].cget("state") != state:
                self.buttons[name].configure(state=state)

    def _filter_by(self, name: str) -> None:
        self.table.filter_name = name
        for other in self.chips:
            self._colour(other)
        self._show_runs()

    def _search(self) -> None:
        self._typing = None
        self.table.text = self.search.get()
        self._show_runs()

    def _on_typed(self) -> None:
        if self._typing is not None:
            self.after_cancel(self._typing)
        self._typing = self.after(TYPING_MS, self._search)

    def _tell(self, text: str, colour: Any = Theme.muted) -> None:
        self.note.configure(text=text, text_color=colour)

    def _tell_error(self, error: Exception) -> None:
        if not isinstance(error, UserError | OSError):
            raise error
        if not self._is_closed:
            self._tell(str(error), Theme.error)

    # --- widgets -----------------------------------------------------------------------------------------------------

    def _build_bar(self) -> None:
        font = self.app.theme.font()
        bar = ctk.CTkFrame(self, fg_color="transparent")
        bar.grid(row=0, column=0, columnspan=2, sticky="ew", padx=12, pady=(12, 8))
        bar.grid_columnconfigure(0, weight=1)
        self.search = ctk.CTkEntry(
            bar, height=30, font=font, placeholder_text="Search names, tags, notes, presets, base"
        )
        self.search.grid(row=0, column=0, sticky="ew")
        self.search.bind("<KeyRelease>", lambda event: self._on_typed())
        chips = ctk.CTkFrame(bar, fg_color="transparent")
        chips.grid(row=1, column=0, sticky="ew", pady=(8, 0))
        self.chips = {name: self._make_chip(chips, name) for name in FILTERS}
        lay_in_rows(chips, list(self.chips.values()), self.app.theme)

    def _make_chip(self, parent: ctk.CTkFrame, name: str) -> ctk.CTkButton:
        chip = ctk.CTkButton(
            parent, text=name.capitalize(), width=20, height=26, corner_radius=13, font=self.app.theme.font(12),
            command=lambda: self._filter_by(name),
        )  # fmt: skip
        if name == self.table.filter_name:
            chip.configure(fg_color=Theme.selected, hover_color=Theme.selected_hover, text_color=Theme.on_accent)
        return chip

    def _colour(self, name: str) -> None:
        is_chosen = name == self.table.filter_name
        self.chips[name].configure(
            fg_color=Theme.selected if is_chosen else Theme.control,
            hover_color=Theme.selected_hover if is_chosen else Theme.control_hover,
            text_color=Theme.on_accent if is_chosen else Theme.text,
        )

    def _build_buttons(self) -> None:
        font = self.app.theme.font()
        self.note = ctk.CTkLabel(self, text="", font=font, text_color=Theme.muted, anchor="w", height=18)
        self.note.grid(row=2, column=0, columnspan=2, sticky="ew", padx=14)
        bar = ctk.CTkFrame(self, fg_color="transparent")
        bar.grid(row=3, column=0, columnspan=2, sticky="ew", padx=12, pady=(6, 12))
        actions: dict[str, Callable[[], object]] = {
            "Compare…": self.compare,
            "Monitor": lambda: self._with_one(self.monitor),
            "Load settings": lambda: self._with_one(self.load_settings),
            "Load the difference": lambda: self._with_one(self.load_changes),
            "Open folder": self.open_chosen_folder,
            "Delete…": self.delete,
            "Close": self.destroy,
        }
        self.buttons = {
            name: ctk.CTkButton(bar, text=name, width=60, height=30, font=font, command=command)
            for name, command in actions.items()
        }
        lay_in_rows(bar, list(self.buttons.values()), self.app.theme, gap=8)

    def _with_one(self, action: Callable[[TableRun], object]) -> None:
        for run in self.list.chosen_runs[:1]:
            action(run)

    def _bind_keys(self) -> None:
        self.bind("<Escape>", lambda event: self.destroy())
        self.bind("<Control-f>", lambda event: self.search.focus_set())
        self.list.canvas.bind("<Delete>", lambda event: self.delete())
        self.list.canvas.bind("<s>", lambda event: self._with_one(self._toggle_star))
