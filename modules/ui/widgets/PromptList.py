"""The list of prompts to sample."""

from __future__ import annotations

import dataclasses
import itertools
import tkinter as tk
from collections.abc import Callable, Iterator
from tkinter import ttk
from typing import TYPE_CHECKING

import customtkinter as ctk

from modules.config.clips import sample_frames
from modules.config.image_sizes import sample_size
from modules.ui.widgets.fitting import fit_columns, lay_in_rows
from modules.ui.widgets.ProblemNote import ProblemNote
from modules.ui.widgets.scrolling import bring_into_sight, make_scrollbar

if TYPE_CHECKING:
    from modules.config.SampleConfig import SampleConfig
    from modules.config.TrainConfig import TrainConfig
    from modules.ui.App import App

PATH = "sampling.samples"
SIZES = {  # what sizes that samples don't have follow
    "data.resolution", "data.bucketing", "data.width", "data.height", "data.frames", "family",
}  # fmt: skip
COLUMNS = {
    "on": ("", 32),
    "prompt": ("Prompt", 120),
    "seed": ("Seed", 56),
    "size": ("Size", 100),
    "count": ("Images", 66),
}
NUM_ROWS = 6  # so that the settings of the selected one are in sight below


class PromptList(ctk.CTkFrame):
    """Space or a click on the first column enables or disables a prompt, Delete removes it.

    on_choose: called with the number of the selected prompt, or None.
    """

    def __init__(self, parent: tk.Misc, app: App, on_choose: Callable[[int | None], None]):
        super().__init__(parent)
        self.app, self._on_choose = app, on_choose
        self.grid_columnconfigure(0, weight=1)
        title = ctk.CTkLabel(self, text="Prompts", font=app.theme.font(15, "bold"), anchor="w")
        title.grid(row=0, column=0, sticky="ew", padx=12, pady=(8, 2))
        self._build_list()
        self._build_buttons()
        self.problem = ProblemNote(self, app, PATH)
        self.problem.grid(row=3, column=0, sticky="ew", padx=12, pady=(0, 10))
        self._unsubscribe = app.settings.subscribe(self._on_settings)
        self._stop_listening = app.theme.on_change(self._restyle)
        self._restyle()
        self.refresh()

    @property
    def chosen(self) -> int | None:
        selection = self.tree.selection()
        return int(selection[0]) if selection else None

    def choose(self, number: int) -> None:
        """Select a prompt, if it exists, and call on_choose."""
        if self.tree.exists(str(number)):
            self.tree.selection_set(str(number))
            self.tree.focus(str(number))
            self.tree.see(str(number))

    def focus_add(self) -> None:
        """Scroll to the button that adds a prompt and focus it."""
        bring_into_sight(self.app, self._add)
        self._add._canvas.focus_set()

    def refresh(self) -> None:
        """Update the list from the settings."""
        samples = self.app.settings.get(PATH)
        if self.chosen is not None and self.chosen >= len(samples):
            self._on_choose(None)  # at once, because an editor of the prompt would look for its settings
        captions = itertools.count(1)
        for number, sample in enumerate(samples):
            tags = () if sample.enabled else ("off",)
            values = _row_of(sample, self.app.settings.in_effect, captions)
            if self.tree.exists(str(number)):
                self.tree.item(str(number), values=values, tags=tags)
            else:
                self.tree.insert("", "end", iid=str(number), values=values, tags=tags)
        for item in self.tree.get_children()[len(samples) :]:
            self.tree.delete(item)
        self._enable_buttons()

    # --- actions -----------------------------------------------------------------------------------------------------

    def add(self) -> None:
        """Add a prompt with the size, steps and guidance of the selected or last one, which suit the model."""
        samples = self.app.settings.get(PATH)
        values = dataclasses.asdict(samples[-1 if self.chosen is None else self.chosen]) if samples else {}
        self.choose(self.app.settings.add(PATH, {**values, "prompt": "", "enabled": True}))

    def duplicate(self) -> None:
        number = self._chosen_one()
        self.app.settings.duplicate(PATH, number)
        self.choose(number + 1)

    def remove(self) -> None:
        number = self._chosen_one()
        self.app.settings.remove(PATH, number)
        self.choose(min(number, len(self.app.settings.get(PATH)) - 1))

    def move(self, by: int) -> None:
        number = self._chosen_one()
        target = number + by
        if 0 <= target < len(self.app.settings.get(PATH)):
            self.app.settings.move(PATH, number, target)
            self.choose(target)

    def toggle(self, number: int) -> None:
        path = f"{PATH}.{number}.enabled"
        self.app.settings.set(path, not self.app.settings.get(path))

    def _chosen_one(self) -> int:
        assert self.chosen is not None  # else buttons are disabled, and keys without effect
        return self.chosen

    # --- widgets -----------------------------------------------------------------------------------------------------

    def _build_list(self) -> None:
        frame = ctk.CTkFrame(self, fg_color="transparent")
        frame.grid(row=1, column=0, sticky="nsew", padx=10)
        frame.grid_columnconfigure(0, weight=1)
        self.tree = ttk.Treeview(frame, columns=list(COLUMNS), show="headings", selectmode="browse", height=NUM_ROWS)
        for name, (text, _) in COLUMNS.items():
            self.tree.heading(name, text=text, anchor="w")
        self.tree.grid(row=0, column=0, sticky="nsew")
        make_scrollbar(frame, self.tree, row=0, column=1)
        widths = {name: width for name, (_, width) in COLUMNS.items()}
        self._fit_columns = fit_columns(self.tree, widths, self.app.theme, stretched="prompt")
        self.tree.bind("<<TreeviewSelect>>", self._on_select)
        self.tree.bind("<Button-1>", self._on_click, add=True)
        self.tree.bind("<space>", lambda event: self._act(lambda: self.toggle(self._chosen_one())))
        self.tree.bind("<Delete>", lambda event: self._act(self.remove))

    def _build_buttons(self) -> None:
        bar = ctk.CTkFrame(self, fg_color="transparent")
        bar.grid(row=2, column=0, sticky="ew", padx=10, pady=10)
        actions = (
            ("Add", self.add),
            ("Duplicate", self.duplicate),
            ("Remove", self.remove),
            ("Up", lambda: self.move(-1)),
            ("Down", lambda: self.move(1)),
        )
        font = self.app.theme.font()
        buttons = [ctk.CTkButton(bar, text=text, width=52, font=font, command=command) for text, command in actions]
        lay_in_rows(bar, buttons, self.app.theme)
        self._add, *self._on_chosen = buttons

    def _enable_buttons(self) -> None:
        for button in self._on_chosen:
            button.configure(state="disabled" if self.chosen is None else "normal")

    def _restyle(self) -> None:
        theme = self.app.theme
        self._fit_columns()
        self.tree.tag_configure("off", foreground=theme.now(theme.muted))

    def _on_settings(self, paths: set[str]) -> None:
        if not paths or SIZES & paths or any(path.startswith(PATH) for path in paths):
            self.refresh()

    def _on_select(self, event: tk.Event) -> None:
        self._enable_buttons()
        self._on_choose(self.chosen)

    def _on_click(self, event: tk.Event) -> None:
        row = self.tree.identify_row(event.y)
        if row and self.tree.identify_column(event.x) == "#1":
            self.toggle(int(row))

    def _act(self, action: Callable[[], None]) -> str:
        if self.chosen is not None:
            action()
        return "break"

    def destroy(self) -> None:
        self._unsubscribe()
        self._stop_listening()
        super().destroy()


def _row_of(sample: SampleConfig, config: TrainConfig, captions: Iterator[int]) -> tuple[str, ...]:
    """captions: numbers of the captions that enabled samples without a prompt take, as sampling/generation.py does."""
    enabled, prompt = "✓" if sample.enabled else "", " ".join(sample.prompt.split())
    if not prompt:
        prompt = f"(dataset caption {next(captions)})" if sample.enabled else "(a dataset caption)"
    frames = sample_frames(sample, config)
    size = *sample_size(sample, config.data), *([frames] if frames > 1 else [])
    return enabled, prompt, str(sample.seed), " x ".join(map(str, size)), str(sample.count)
