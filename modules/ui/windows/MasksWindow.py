"""The window in which a model makes masks: which one, their edges, for which images; preview, start, undo."""

from __future__ import annotations

import itertools
import os
import tempfile
import tkinter as tk
from dataclasses import replace
from typing import TYPE_CHECKING

import customtkinter as ctk

from modules.ui.models.MaskerChoices import FOR_MANY, HINTS, WAYS, MaskerChoices
from modules.ui.models.path_picker import PathQuestion
from modules.ui.theme import Theme
from modules.ui.widgets.dialogs import focus_soon
from modules.ui.widgets.fitting import wrap_to
from modules.ui.windows.AnnotatorWindow import AnnotatorWindow

if TYPE_CHECKING:
    from modules.ui.App import App
    from modules.ui.models.AnnotatorRun import AnnotatorRun
    from modules.ui.windows.DatasetAnnotator import DatasetAnnotator

REPLACE = "Replace masks that are there, also painted ones"
RESTART = "Also those that a canceled run has replaced already"
TITLE = "Make masks"
ONLY_CLIPS = "Only clips are chosen: their masks can be painted (M)."


class MasksWindow(AnnotatorWindow):
    """What is chosen is remembered by the preferences, but not that masks are replaced."""

    def __init__(self, app: App, parent: tk.Misc, dataset: DatasetAnnotator):
        self._folder = tempfile.TemporaryDirectory()  # of masks that are only shown
        self._numbers = itertools.count()
        super().__init__(app, parent, dataset, TITLE, "760x780")
        focus_soon(app, self.words if self.choices.way == "words" else self.threshold)

    @property
    def choices(self) -> MaskerChoices:
        """What is chosen and typed now."""
        return replace(
            MaskerChoices.of_values(self.app.preferences.masker),  # what the painter has chosen meanwhile stays
            way=next(way for way in FOR_MANY if WAYS[way].label == self.way.get()),
            words_model=self.words_model.get(),
            subject_model=self.subject_model.get(),
            words=self.words.get(),
            threshold=self.threshold.get(),
            soft=bool(self.soft.get()),
            invert=bool(self.invert.get()),
            grow=self.grow.get(),
            feather=self.feather.get(),
        )

    def start_run(self, preview: bool) -> tuple[AnnotatorRun, str]:
        choices = self.choices
        choices.check()
        parts = self.parts(False, ONLY_CLIPS, preview)
        self.app.preferences.masker = choices.to_values()
        folder = ""
        if preview:
            folder = os.path.join(self._folder.name, str(next(self._numbers)))
            os.makedirs(folder)
        restarts = bool(self.restarts.get()) or self.begins_anew
        return choices.start(parts, bool(self.replaces.get()), restarts, folder), choices.label

    def show_rows(self, choice: object = None) -> None:
        way = self.choices.way
        self.show_only(
            {one: one == way for one in ("words", "subject")}
            | {"threshold": not self.soft.get(), "replaces": bool(self.replaces.get())}
        )
        self.hint.configure(text=HINTS[way])

    # --- widgets -----------------------------------------------------------------------------------------------------

    def build(self) -> None:
        choices = MaskerChoices.of_values(self.app.preferences.masker)
        self._build_source(choices)
        self._build_edges(choices)
        card = self.make_card("Which images")
        self.add_which(card, 1)
        self.replaces = self.tick(card, 2, REPLACE, self.show_rows)
        self.restarts = self.tick(card, 3, RESTART)
        self._rows["replaces"] = [self.restarts]

    def _build_source(self, choices: MaskerChoices) -> None:
        font = self.app.theme.font()
        card = self.make_card("What is masked")
        labels = [WAYS[way].label for way in FOR_MANY]
        self.way = ctk.CTkSegmentedButton(card, values=labels, font=font, command=self.show_rows)
        self.way.set(next((WAYS[way].label for way in FOR_MANY if way == choices.way), labels[0]))
        self.way.grid(row=1, column=0, columnspan=3, sticky="w", padx=12, pady=(0, 4))
        self.hint = ctk.CTkLabel(card, text="", font=font, anchor="w", justify="left", text_color=Theme.muted)
        self.hint.grid(row=2, column=0, columnspan=3, sticky="ew", padx=12, pady=(0, 8))
        wrap_to(card, self.hint, self.app.theme)
        self.words_model = ctk.CTkComboBox(card, values=list(WAYS["words"].examples), font=font)
        self.words_model.set(choices.words_model)
        self.lay(card, 3, "Model", self.words_model, "words")
        folder = PathQuestion("folder", "Folder of a model for masks")
        self._rows["words"].append(self.file_button(card, 3, self.words_model, folder))
        self.subject_model = self.entry(card, choices.subject_model, "an .onnx file, such as BiRefNet_lite.onnx")
        self.lay(card, 4, "Model", self.subject_model, "subject")
        file = PathQuestion("file", "Model for masks", types=[("ONNX file", "*.onnx")])
        self._rows["subject"].append(self.file_button(card, 4, self.subject_model, file))
        self.words = self.entry(card, choices.words, "such as face, hair")
        self.lay(card, 5, "Words", self.words, "words")

    def _build_edges(self, choices: MaskerChoices) -> None:
        card = self.make_card("Edges")
        self.soft = self.tick(card, 1, "Keep what the model is unsure of as weights", self.show_rows)
        self.threshold = self.entry(card, choices.threshold, width=70)
        text = "from 0 to 1: how sure the model has to be of a pixel"
        self.lay(card, 2, "Threshold", self.with_text(card, self.threshold, text), "threshold")
        self.invert = self.tick(card, 3, "Swap inside and outside")
        self.grow, self.feather = (self.entry(card, text, width=70) for text in (choices.grow, choices.feather))
        self.lay(card, 4, "Grow by", self.with_text(card, self.grow, "pixels; less than 0 shrinks"))
        self.lay(card, 5, "Feather by", self.with_text(card, self.feather, "pixels, to either side of an edge"))
        for box, is_on in ((self.soft, choices.soft), (self.invert, choices.invert)):
            if is_on:
                box.select()

    def destroy(self) -> None:
        super().destroy()
        self._folder.cleanup()
