"""The queue tab: the runs that are queued, what has become of them, and what may be done with each."""

from __future__ import annotations

import tkinter
from collections.abc import Callable, Generator
from functools import partial
from tkinter import ttk
from typing import TYPE_CHECKING

import customtkinter as ctk

from modules.config.errors import UserError
from modules.config.visible_text import visible_line, visible_text
from modules.queue.processes import turn_on
from modules.session.working_folder import shown_path
from modules.ui.cards.Card import Card
from modules.ui.models.QueueModel import LOOK_SECONDS, QueueRow, QueueView
from modules.ui.tabs.SlicedTab import SlicedTab
from modules.ui.theme import Theme
from modules.ui.widgets.dialogs import ask, open_window
from modules.ui.widgets.fitting import FittedLabel, fit_columns
from modules.ui.widgets.scrolling import make_scrollbar
from modules.ui.widgets.Tooltip import Tooltip
from modules.ui.windows.GridWindow import GridWindow
from modules.ui.windows.QueueEntryWindow import QueueEntryWindow

if TYPE_CHECKING:
    from modules.queue.TrainingQueue import TrainingQueue
    from modules.ui.App import App

COLUMNS = {"Name": 230, "State": 90, "Devices": 110, "Not before": 90, "Limit": 60, "Progress": 235}

START_HINT = "Train the waiting runs, one after the other, also while the window is closed."
PAUSE_HINT = "Start no other run. Those that train go on; Pause in the row below stops one."
HINT = "Choose settings and click Add to queue, or make a grid of settings."


class QueueTab(SlicedTab):
    def __init__(self, parent: tkinter.Misc, app: App):
        super().__init__(parent, app)
        self.grid_columnconfigure(0, weight=1)
        self.grid_rowconfigure(0, weight=1)
        self._card = Card(self, app, "Queue")
        self._card.grid(row=0, column=0, sticky="nsew", padx=8, pady=(4, 8))
        self._card.grid_rowconfigure(3, weight=1)
        app.in_slices(self._steps)

    def chosen(self) -> list[QueueRow]:
        """The selected entries, in their order."""
        selected = set(self.table.selection())
        return [row for row in self.app.queue.view.rows if row.id in selected]

    # --- the queue ----------------------------------------------------------------------------------------------------

    def start_or_pause(self) -> None:
        """Turn the queue on, or off; runs that were started go on."""
        model = self.app.queue
        if model.view.is_on:
            model.do(lambda queue: queue.set_on(False))
        elif model.view.num_to_do or model.view.running:
            model.do(turn_on)
        else:
            text = "Nothing is waiting in the queue: add a run, or retry one."
            self.app.show_message(text, "info", lambda: not model.view.num_to_do)

    def set_side_by_side(self) -> None:
        wanted = bool(self._side_by_side.get())
        self.app.queue.do(lambda queue: queue.set_side_by_side(wanted))

    def make_grid(self) -> None:
        """Open the grid maker with the present settings."""
        settings = self.app.settings
        config = settings.config()
        if config is None:
            text = "A field has a value that is refused: fix it first."
            self.app.show_message(text, "warning", lambda: bool(settings.refused_input()))
        else:
            open_window(self.app, GridWindow, config)

    # --- entries ------------------------------------------------------------------------------------------------------

    def move(self, steps: int) -> None:
        rows = self.chosen()
        ids = [row.id for row in (rows if steps < 0 else reversed(rows))]

        def move_all(queue: TrainingQueue) -> None:
            for id in ids:
                queue.move(id, steps)

        self._do(move_all, ids)

    def pause(self) -> None:
        """Let waiting entries wait, and stop running ones with a backup."""
        ids = [row.id for row in self.chosen() if row.can_pause]

        def pause_all(queue: TrainingQueue) -> None:
            for id in ids:
                queue.change(id, held=True)

        self._do(pause_all, ids)

    def retry(self) -> None:
        """Let entries that were paused or stopped, or have failed, go on."""
        ids = [row.id for row in self.chosen() if row.can_retry]

        def retry_all(queue: TrainingQueue) -> None:
            for id in ids:
                queue.retry(id)

        self._do(retry_all, ids)

    def pause_or_retry(self) -> None:
        rows = self.chosen()
        if rows and rows[0].can_pause:
            self.pause()
        else:
            self.retry()

    def copy(self) -> None:
        ids = [row.id for row in self.chosen()]
        self._do(lambda queue: [queue.copy(id) for id in ids], ids)

    def change_options(self) -> None:
        """Change name, GPUs, start and limit of an entry."""
        if rows := self.chosen():
            open_window(self.app, QueueEntryWindow, rows[0])

    def edit(self) -> None:
        """Show the settings of an entry on the other tabs, to be saved back to it."""
        rows = self.chosen()
        if not rows or not rows[0].can_edit:
            return
        row, queue = rows[0], self.app.queue.queue

        def show(config) -> None:
            self.app.queue.edit(row, config)
            text = f"These are the settings of {row.name}: change them, then Save to queue. Yours come back afterwards."
            self.app.show_message(text, "info", lambda: self.app.queue.editing == row)
            self.app.open_tab("training")

        def refuse(error: Exception) -> None:
            if not isinstance(error, UserError):
                raise error
            self.app.show_message(str(error), "error")

        self.app.in_background(lambda: queue.entry(row.id).config(), show, refuse)

    def monitor(self) -> None:
        """Show the run of an entry on the Monitor tab; of one that was never started, its options."""
        rows = self.chosen()
        if not rows:
            return
        row = rows[0]
        if not row.was_started and row.state != "running":
            self.change_options()
            return
        if self.app.run.state.folder != row.run_folder:
            try:
                self.app.run.attach(row.run_folder, row.state == "running")
            except UserError as error:
                self.app.show_message(str(error), "error")
                return
        self.app.open_tab("monitor")

    def remove(self) -> None:
        """Remove entries that do not run; their run folders stay."""
        rows = self.chosen()
        if not rows:
            return
        names = rows[0].name if len(rows) == 1 else f"{len(rows)} entries"
        text = f"Remove {names} from the queue? Run folders stay."
        if ask(self.app, "Remove from the queue", text, ("Remove", "Cancel"), danger="Remove") != "Remove":
            return
        ids = [row.id for row in rows]

        def remove_all(queue: TrainingQueue) -> None:
            for id in ids:
                queue.remove(id)

        self._do(remove_all, ids)

    def _do(self, action: Callable[[TrainingQueue], object], ids: list[str]) -> None:
        if ids:
            self.app.queue.do(action)

    # --- what is shown ------------------------------------------------------------------------------------------------

    def _show(self, view: QueueView) -> None:
        self._card.show_title(view.state_text())
        is_on = view.is_on
        self._start.configure(
            text="Pause queue" if is_on else "Start queue",
            fg_color=Theme.stop if is_on else Theme.start,
            hover_color=Theme.stop_hover if is_on else Theme.start_hover,
            text_color=Theme.on_accent,
        )
        if bool(self._side_by_side.get()) != view.side_by_side:
            (self._side_by_side.select if view.side_by_side else self._side_by_side.deselect)()
        self._fill(view)
        self._show_chosen()

    def _fill(self, view: QueueView) -> None:
        table = self.table
        ids = [row.id for row in view.rows]
        gone = [id for id in table.get_children() if id not in ids]
        if gone:
            table.delete(*gone)
        for place, row in enumerate(view.rows):
            cells = tuple(map(visible_line, row.cells))
            if not table.exists(row.id):
                table.insert("", place, iid=row.id, values=cells, tags=(row.state,))
                continue
            if table.index(row.id) != place:
                table.move(row.id, "", place)
            if tuple(map(str, table.item(row.id, "values"))) != cells or table.item(row.id, "tags") != (row.state,):
                table.item(row.id, values=cells, tags=(row.state,))
        if ids and not table.selection():
            table.selection_set(ids[0])
            table.focus(ids[0])

    def _show_chosen(self) -> None:
        rows, editing = self.chosen(), self.app.queue.editing
        if editing is not None:
            text = f"The other tabs show the settings of {editing.name}: change them, then click Save to queue."
        elif len(rows) == 1:
            row = rows[0]
            text = ": ".join(filter(None, (shown_path(row.run_folder), row.text.replace("\n", " "))))
        else:
            text = f"{len(rows)} entries are selected." if rows else HINT
        self._detail.configure(text=visible_line(self.app.queue.view.problem or text))
        shown, hidden = (self._cancel, self._grid) if editing is not None else (self._grid, self._cancel)
        shown.grid()
        hidden.grid_remove()
        one = len(rows) == 1
        allowed = {
            "Up": bool(rows),
            "Down": bool(rows),
            "Pause": any(row.can_pause for row in rows),
            "Retry": any(row.can_retry for row in rows),
            "Copy": bool(rows),
            "Edit settings": one and rows[0].can_edit,
            "Options…": one,
            "Monitor": one and (rows[0].was_started or rows[0].state == "running"),
            "Remove": bool(rows) and not any(row.state == "running" for row in rows),
        }
        for name, button in self.buttons.items():
            wanted = "normal" if allowed[name] else "disabled"
            if button.cget("state") != wanted:
                button.configure(state=wanted)
        retried = {row.state for row in rows if row.can_retry}
        text = "Continue" if retried == {"paused"} else "Retry"
        if self.buttons["Retry"].cget("text") != text:
            self.buttons["Retry"].configure(text=text)

    def _whole_text(self) -> str:
        rows = self.chosen()
        return visible_text(rows[0].text) if rows and self._detail.is_cut else ""

    # --- widgets ------------------------------------------------------------------------------------------------------

    def _build(self) -> Generator[None, None, None]:
        card, theme = self._card, self.app.theme
        bar = ctk.CTkFrame(card, fg_color="transparent")
        bar.grid(row=0, column=0, sticky="e", padx=8, pady=(8, 2))
        self._start = ctk.CTkButton(bar, text="Start queue", width=110, height=30, font=theme.font())
        self._start.configure(command=self.start_or_pause)
        self._start.grid(row=0, column=0)
        Tooltip(self._start, theme, lambda: PAUSE_HINT if self.app.queue.view.is_on else START_HINT)
        self._grid = ctk.CTkButton(bar, text="Grid…", width=70, height=30, font=theme.font(), command=self.make_grid)
        self._grid.grid(row=0, column=1, padx=8)
        Tooltip(self._grid, theme, lambda: "Add a run for every combination of some settings' values.")
        self._side_by_side = ctk.CTkSwitch(
            bar, text="Several at once", font=theme.font(), command=self.set_side_by_side, onvalue=True, offvalue=False
        )
        self._side_by_side.grid(row=0, column=2, padx=8)
        Tooltip(self._side_by_side, theme, lambda: "Train several runs side by side, each on GPUs of its own.")
        yield
        self._build_table()
        yield
        self._detail = FittedLabel(card, text="", font=theme.font(12), text_color=Theme.muted, anchor="w", height=20)
        self._detail.grid(row=4, column=0, sticky="ew", padx=12)
        Tooltip(self._detail, theme, self._whole_text)
        model = self.app.queue
        self._cancel = ctk.CTkButton(
            bar, text="Stop editing", width=90, height=30, font=theme.font(), command=model.end_editing
        )
        self._cancel.grid(row=0, column=1, padx=8)  # in place of the button for a grid
        actions: dict[str, Callable[[], object]] = {
            "Up": partial(self.move, -1),
            "Down": partial(self.move, 1),
            "Pause": self.pause,
            "Retry": self.retry,
            "Copy": self.copy,
            "Edit settings": self.edit,
            "Options…": self.change_options,
            "Monitor": self.monitor,
            "Remove": self.remove,
        }
        self.buttons = dict(zip(actions, card.add_buttons(2, *actions.items()), strict=True))
        yield
        self._ends = [
            model.subscribe(self._show),
            self.app.every(LOOK_SECONDS, model.look),
            theme.on_change(self._restyle),
        ]
        self._restyle()
        self._show(model.view)

    def _build_table(self) -> None:
        frame = ctk.CTkFrame(self._card, fg_color="transparent")
        frame.grid(row=3, column=0, sticky="nsew", padx=12, pady=4)
        frame.grid_columnconfigure(0, weight=1)
        frame.grid_rowconfigure(0, weight=1)
        self.table = ttk.Treeview(frame, columns=list(COLUMNS), show="headings", selectmode="extended", height=4)
        for title in COLUMNS:
            self.table.heading(title, text=title, anchor="w")
        self.table.grid(row=0, column=0, sticky="nsew")
        make_scrollbar(frame, self.table, row=0, column=1)
        self._fit_columns = fit_columns(self.table, COLUMNS, self.app.theme, stretched="Progress")
        self.table.bind("<<TreeviewSelect>>", lambda event: self._show_chosen())
        keys: dict[str, Callable[[], object]] = {
            "<Return>": self.monitor,
            "<Double-1>": self.monitor,
            "<space>": self.pause_or_retry,
            "<Delete>": self.remove,
            "<Alt-Up>": partial(self.move, -1),
            "<Alt-Down>": partial(self.move, 1),
            "<c>": self.copy,
            "<e>": self.edit,
            "<o>": self.change_options,
            "<r>": self.retry,
        }
        for key, action in keys.items():
            self.table.bind(key, partial(self._on_key, action))

    def _on_key(self, action: Callable[[], object], event: tkinter.Event) -> str:
        action()
        return "break"

    def _restyle(self) -> None:
        theme = self.app.theme
        self._fit_columns()
        colours = {"failed": Theme.error, "limit": Theme.warning, "finished": Theme.muted, "paused": Theme.muted}
        for state, colour in colours.items():
            self.table.tag_configure(state, foreground=theme.now(colour))
