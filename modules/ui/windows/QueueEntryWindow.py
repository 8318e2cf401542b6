"""A window for what an entry of the queue is to do beside its settings: its name, GPUs, start and limit."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import customtkinter as ctk

from modules.config.errors import UserError
from modules.queue.gpus import gpus_of, gpus_text, read_gpus
from modules.queue.processes import continue_queue
from modules.queue.queue_text import read_hours, read_time, time_text
from modules.queue.TrainingQueue import EntryOptions
from modules.ui.models.QueueModel import QueueRow
from modules.ui.theme import Theme
from modules.ui.widgets.dialogs import focus_soon, show_over

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig
    from modules.queue.QueueEntry import QueueEntry
    from modules.queue.TrainingQueue import TrainingQueue
    from modules.ui.App import App

FIELDS = {
    "Name": "Empty: that of the output folder",
    "GPUs": "all, a number of them, or indexes such as 0,2",
    "Not before": "22:30, or 2026-12-01 22:30; empty: at once",
    "Limit (hours)": "After that, it stops with a backup; empty: none",
}
WITHOUT_GPU = {"GPUs": "This machine has none: a number of CPU processes, or all cores"}


class QueueEntryWindow(ctk.CTkToplevel):
    """subject: the settings of a run to be added, or the entry to be changed."""

    def __init__(self, app: App, subject: TrainConfig | QueueRow):
        super().__init__(app.root)
        self.app, self._subject = app, subject
        row = subject if isinstance(subject, QueueRow) else None
        self.title("Add to queue" if row is None else f"Options of {row.name}")
        self.transient(app.root)
        self.resizable(False, False)
        self.grid_columnconfigure(1, weight=1)
        theme = app.theme
        self.entries: dict[str, ctk.CTkEntry] = {}
        has_none = app.devices.machine is not None and not app.devices.gpus
        for number, (label, hint) in enumerate({**FIELDS, **(WITHOUT_GPU if has_none else {})}.items()):
            text = ctk.CTkLabel(self, text=label, font=theme.font(), anchor="w")
            text.grid(row=2 * number, column=0, sticky="w", padx=(16, 10), pady=(16 if number == 0 else 6, 0))
            entry = ctk.CTkEntry(self, width=330, font=theme.font())
            entry.grid(row=2 * number, column=1, sticky="ew", padx=(0, 16), pady=(16 if number == 0 else 6, 0))
            below = ctk.CTkLabel(self, text=hint, font=theme.font(12), text_color=Theme.muted, anchor="w", height=18)
            below.grid(row=2 * number + 1, column=1, sticky="w", padx=(2, 16))
            self.entries[label] = entry
        for label, value in self._values(subject).items():
            if value:
                self.entries[label].insert(0, value)
        self.problem = ctk.CTkLabel(self, text="", font=theme.font(12), text_color=Theme.error, anchor="w")
        self.problem.configure(justify="left", wraplength=440)
        self.problem.grid(row=2 * len(FIELDS), column=0, columnspan=2, sticky="w", padx=16)
        bar = ctk.CTkFrame(self, fg_color="transparent")
        bar.grid(row=2 * len(FIELDS) + 1, column=0, columnspan=2, sticky="e", padx=16, pady=(4, 16))
        ctk.CTkButton(bar, text="Cancel", width=90, font=theme.font(), command=self.destroy).grid(row=0, column=0)
        self.button = ctk.CTkButton(bar, text="Add" if row is None else "Save", width=90, font=theme.font())
        self.button.configure(command=self.save, fg_color=Theme.selected, hover_color=Theme.selected_hover)
        self.button.configure(text_color=Theme.on_accent)
        self.button.grid(row=0, column=1, padx=(8, 0))
        self.bind("<Return>", lambda event: self.save())
        self.bind("<Escape>", lambda event: self.destroy())
        show_over(app, self)
        focus_soon(app, self.entries["Name"])

    def save(self) -> None:
        """Add the run, or change the entry; what is wrong is said below the fields."""
        try:
            options = self._entered()
        except UserError as error:
            self.problem.configure(text=str(error))
            return
        if isinstance(self._subject, QueueRow):
            changes: dict[str, object] = {
                "gpus": options.gpus,
                "not_before": options.not_before,
                "limit_hours": options.limit_hours,
            }
            changes |= {"name": options.name} if options.name else {}
            self.app.queue.do(partial(_change, self._subject.id, changes))
        else:
            self.app.queue.do(partial(_add, self._subject, options), self._tell)
        self.destroy()

    def _entered(self) -> EntryOptions:
        values = {label: entry.get().strip() for label, entry in self.entries.items()}
        return EntryOptions(
            name=values["Name"],
            gpus=read_gpus(values["GPUs"]),
            not_before=read_time(values["Not before"]),
            limit_hours=read_hours(values["Limit (hours)"]),
        )

    def _tell(self, entry: QueueEntry) -> None:
        queue, folder = self.app.queue, Path(entry.run_folder).name
        is_on = queue.view.is_on
        then = "it starts when its turn comes" if is_on else "start the queue on the Queue tab"
        text = f"Added {entry.name} to the queue, output folder {folder}: {then}."
        self.app.show_message(text, "info", lambda: queue.view.is_on == is_on)

    def _values(self, subject: TrainConfig | QueueRow) -> dict[str, str]:
        if not isinstance(subject, QueueRow):
            return {"GPUs": gpus_text(gpus_of(subject))}
        return {
            "Name": subject.name,
            "GPUs": gpus_text(subject.gpus),
            "Not before": "" if subject.not_before is None else time_text(subject.not_before, time.time()),
            "Limit (hours)": "" if subject.limit_hours is None else f"{subject.limit_hours:g}",
        }


def _add(config: TrainConfig, options: EntryOptions, queue: TrainingQueue) -> QueueEntry:
    entry = queue.add(config, options)
    continue_queue(queue)
    return entry


def _change(id: str, changes: dict[str, object], queue: TrainingQueue) -> None:
    queue.change(id, **changes)
