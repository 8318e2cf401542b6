"""The sampling tab: when samples are made, the prompts, and the gallery of the run."""

from __future__ import annotations

import threading
import tkinter as tk
from collections.abc import Callable, Generator
from textwrap import shorten
from typing import TYPE_CHECKING

import customtkinter as ctk

from modules.config.describe import part_paths, settings_by_path
from modules.config.errors import UserError
from modules.config.files import config_from_values
from modules.config.visible_text import visible_line
from modules.ui.cards.SampleNowCard import SampleNowCard
from modules.ui.keyboard import pressed_once
from modules.ui.models.coming_prompts import coming_prompt, coming_prompts
from modules.ui.tabs.SlicedTab import SlicedTab
from modules.ui.widgets.fitting import fit_side_column
from modules.ui.widgets.form import CardSpec, SettingsCard
from modules.ui.widgets.Gallery import Gallery
from modules.ui.widgets.Page import Page
from modules.ui.widgets.PromptList import PATH, PromptList
from modules.ui.widgets.Tooltip import Tooltip
from modules.ui.widgets.typed_fields import TextField

if TYPE_CHECKING:
    from modules.ui.App import App
    from modules.ui.models.RunState import RunState

SIDE_WIDTH = 440
MAX_HINT = 70  # letters: what the box of a prompt has room for


class SamplingTab(SlicedTab):
    """Settings on the left, the run's samples on the right."""

    def __init__(self, parent: tk.Misc, app: App):
        super().__init__(parent, app)
        self._edited: SettingsCard | None = None
        self._edited_number: int | None = None
        self.sample_now: ctk.CTkButton | None = None
        self.grid_columnconfigure(1, weight=1)
        self.grid_rowconfigure(0, weight=1)
        self._asked: object = None  # what the coming prompts were last read for
        self._stop_looking: Callable[[], object] = lambda: None  # which no longer has to go on
        self._coming: tuple[str, ...] = ()
        self._view = app.views.add(self, lambda paths: self._find_prompts())
        self._ends = [app.run.subscribe(self._on_run), self._view.end]
        app.in_slices(self._steps)

    @property
    def chosen_part(self) -> int | None:
        return self._edited_number

    def show_setting(self, path: str) -> None:
        """Select the prompt of the setting at `path`, such as "sampling.samples.2.seed", so that its field exists. For
        "sampling.samples" itself, focus the button that adds one."""
        for _ in self._steps:  # finish building the tab
            pass
        if path == PATH:
            self.prompts.focus_add()
        if path.startswith(f"{PATH}."):
            number = int(path.split(".")[2])
            self.prompts.choose(number)
            self._edit(number)

    def _edit(self, number: int | None) -> None:
        """Show the settings of a prompt below the list."""
        if number == self._edited_number:
            return
        if self._edited is not None:
            self._edited.destroy()
        self._edited, self._edited_number = None, number
        if number is not None:
            spec = CardSpec(f"Prompt {number + 1}", part_paths(PATH, number))
            self._edited = SettingsCard(self._side, self.app, spec, self._show_hint)
            self._edited.pack(fill="x", padx=4, pady=4, after=self.prompts)
            self._edited.lift(self.prompts)  # for the Tab key

    def _find_prompts(self) -> None:
        """Look in a thread for what samples without a prompt get, if it may have changed."""
        values = self.app.settings.values
        samples = self.app.settings.get(PATH)
        number = sum(sample.enabled and not sample.prompt for sample in samples)
        wanted = (values["concepts"], number)
        if not number or wanted == self._asked:
            self._show_hint()
            return
        self._asked, config = wanted, config_from_values(values)
        self._stop_looking()
        is_stopped = threading.Event()
        self._stop_looking = is_stopped.set

        def take(found: tuple[str, ...]) -> None:
            if wanted == self._asked and self.winfo_exists():
                self._coming = found
                self._show_hint()

        self.app.in_background(lambda: coming_prompts(config, number, lambda: not is_stopped.is_set()), take)

    def _show_hint(self) -> None:
        """Say in the box of an empty prompt what the sample gets."""
        samples, number = self.app.settings.get(PATH), self._edited_number
        if self._edited is None or number is None or number >= len(samples):
            return
        field = self._edited.form.fields.get(f"{PATH}.{number}.prompt")
        if isinstance(field, TextField):  # it is there by now
            text = visible_line(shorten(coming_prompt(samples, number, self._coming), MAX_HINT, placeholder="…"))
            field.set_hint(f"From the dataset: {text}" if text else "")

    def _sample_now(self) -> None:
        if self.finished.is_generating:
            self.finished.cancel()
            return
        if self.finished.can_sample(self.app.run.state):
            self.finished.grid()
            self.finished.generate(self.app.run.state)
            return
        try:
            self.app.run.command("sample")
        except UserError as error:
            self.app.show_message(str(error), "error")
        else:
            text = "Samples will be made within two steps, from the prompts that the run was started with."
            self.app.show_message(text, "info")

    def _describe_sample_now(self) -> str:
        if self.app.run.state.is_running:
            return "Of the prompts that the run was started with; those above count for the next run."
        return "Of the prompts above, with the model that the run has saved."

    def _on_run(self, state: RunState) -> None:
        if self.sample_now is None:
            return
        can_sample = state.is_running and not state.is_stopping
        can_sample |= self.finished.is_generating or self.finished.can_sample(state)
        text = "Cancel" if self.finished.is_generating else "Sample now"
        self.sample_now.configure(state="normal" if can_sample else "disabled", text=text)

    def _build(self) -> Generator[None, None, None]:
        """Build the tab in slices, so that opening it never stalls the window."""
        self._side = Page(self, width=SIDE_WIDTH)
        self._side.grid(row=0, column=0, rowspan=2, sticky="nsew", padx=(4, 0), pady=(0, 4))
        fit_side_column(self, SIDE_WIDTH, self.app.theme, lambda width: self._side.configure(width=width))
        yield
        self.prompts = PromptList(self._side, self.app, self._edit)
        self.prompts.pack(fill="x", padx=4, pady=4)
        yield
        paths = [path for path in settings_by_path() if path.startswith("sampling.") and not path.startswith(PATH)]
        when = SettingsCard(self._side, self.app, CardSpec("Schedule", paths), lambda: None)
        when.pack(fill="x", padx=4, pady=4)
        yield
        self.finished = SampleNowCard(self, self.app, lambda: self._on_run(self.app.run.state))
        self.finished.grid(row=1, column=1, sticky="ew", padx=(4, 8), pady=(0, 8))
        self.finished.grid_remove()  # until it is used
        self.sample_now = ctk.CTkButton(when.footer, text="Sample now", command=pressed_once(self._sample_now))
        self.sample_now.pack(anchor="w")
        Tooltip(self.sample_now, self.app.theme, self._describe_sample_now)
        when.footer.grid()
        self._on_run(self.app.run.state)
        yield
        self.gallery = Gallery(self, self.app)
        self.gallery.grid(row=0, column=1, sticky="nsew", padx=(4, 8), pady=(4, 8))
