"""The window in which a model writes captions: which one, what it writes, for which images; preview, start, undo."""

from __future__ import annotations

import tkinter as tk
from dataclasses import replace
from typing import TYPE_CHECKING

import customtkinter as ctk

from modules.annotators.chat_client import KEY_VARIABLE, is_on_this_machine, server_address
from modules.config.errors import UserError
from modules.config.labels import with_labels
from modules.ui.models.CaptionerChoices import (
    EXAMPLES,
    OWN_PROMPT,
    SERVER_EXAMPLE,
    STYLES,
    CaptionerChoices,
    has_key_in_environment,
    known_kind,
    limits_of,
    styles_of,
)
from modules.ui.models.path_picker import PathQuestion
from modules.ui.theme import Theme
from modules.ui.widgets.dialogs import ask, focus_soon
from modules.ui.widgets.fitting import wrap_to
from modules.ui.widgets.Textbox import Textbox
from modules.ui.windows.AnnotatorWindow import AnnotatorWindow

if TYPE_CHECKING:
    from modules.annotators.captioner_kinds import CaptionerKind
    from modules.ui.App import App
    from modules.ui.models.AnnotatorRun import AnnotatorRun
    from modules.ui.windows.DatasetAnnotator import DatasetAnnotator

HERE, SERVER = "Model on this machine", "Server"
ONLY_CLIPS = "Only clips are chosen: tick Also clips to caption them."
SEND, DONT_SEND = "Send images", "Don't send"


class CaptionerWindow(AnnotatorWindow):
    """The key is kept in its field alone.

    What is chosen is remembered by the preferences, but not that captions are replaced.
    """

    def __init__(self, app: App, parent: tk.Misc, dataset: DatasetAnnotator):
        self._agreed: set[str] = set()  # addresses of other machines to which images may be sent
        self._kind: CaptionerKind | None = None  # of the model on this machine, as far as it is known
        self._looked_at: str | None = None  # the model that it is known of
        self._has_thresholds = False  # whether the model is a tagger, or nobody knows what it is
        self._wanted_style = self._given_style = ""  # that the person has chosen, and what became of it
        super().__init__(app, parent, dataset, "Caption with a model", "760x780")
        focus_soon(app, self.address if self.choices.on_server else self.model)

    @property
    def choices(self) -> CaptionerChoices:
        """What is chosen and typed now."""
        return CaptionerChoices(
            on_server=self.source.get() == SERVER,
            model=self.model.get(),
            address=self.address.get(),
            server_model=self.server_model.get(),
            style=next(style for style, label in STYLES.items() if label == self.style.get()),
            name=self.name.get(),
            prompt=self.prompt.get("1.0", "end-1c"),
            general=self.general.get(),
            character=self.character.get(),
            batch_size=self.batch_size.get(),
            videos=bool(self.videos.get()),
        )

    # --- a run -------------------------------------------------------------------------------------------------------

    def start_run(self, preview: bool) -> tuple[AnnotatorRun | None, str]:
        choices = self.choices
        if not self._has_thresholds:  # what is not shown can't be wrong
            choices = replace(choices, general=CaptionerChoices.general, character=CaptionerChoices.character)
        choices.check()
        parts = self.parts(choices.videos, ONLY_CLIPS, preview)
        if choices.on_server and not self._may_send(choices):
            return None, ""
        self.app.preferences.captioner = self.choices.to_values()
        restarts = bool(self.restarts.get()) or self.begins_anew
        run = choices.start(parts, self.key.get(), bool(self.replaces.get()), restarts, preview)
        return run, choices.label

    def _may_send(self, choices: CaptionerChoices) -> bool:
        """Whether images may be sent to another machine, which is asked once for each address."""
        address = server_address(choices.address)
        if is_on_this_machine(address) or address in self._agreed:
            return True
        text = choices.note(self._has_key())
        if ask(self.app, "Send the images?", text, (DONT_SEND, SEND)) != SEND:
            return False
        self._agreed.add(address)
        return True

    # --- display -----------------------------------------------------------------------------------------------------

    def _has_key(self) -> bool:
        return bool(self.key.get().strip()) or has_key_in_environment()

    def _show_note(self) -> None:
        choices = self.choices
        has_wrong_address = False
        try:
            server_address(choices.address)
        except UserError:
            has_wrong_address = bool(choices.address.strip())
        text = with_labels(choices.note(self._has_key()) if choices.on_server else limits_of(self._kind))
        (self.note.grid if text else self.note.grid_remove)()
        self.note.configure(text=text, text_color=Theme.error if has_wrong_address else Theme.text)

    def show_rows(self, choice: object = None) -> None:
        """Show the fields that belong to what is chosen."""
        self._look_at_model()
        self._offer_styles()
        choices = self.choices
        shown = {
            "here": not choices.on_server,
            "thresholds": not choices.on_server and self._has_thresholds,
            "server": choices.on_server,
            "subject": choices.style == "subject",
            OWN_PROMPT: choices.style == OWN_PROMPT,
            "replaces": bool(self.replaces.get()),
        }
        self.show_only(shown)
        self._show_note()

    def _look_at_model(self) -> None:
        """Find out what the model can write, if another one is chosen."""
        model = self.model.get()
        if model == self._looked_at:
            return
        self._looked_at = model

        def take(kind: CaptionerKind | None) -> None:
            found = kind, kind is None or kind.has_thresholds
            if self.winfo_exists() and model == self._looked_at and found != (self._kind, self._has_thresholds):
                self._kind, self._has_thresholds = found
                self.show_rows()

        self.app.in_background(lambda: known_kind(model), take)

    def _offer_styles(self) -> None:
        """Offer what the model can write. A style that it can't becomes its usual one until another model is chosen."""
        current = self.style.get()
        if current != self._given_style:
            self._wanted_style = current
        offered = [STYLES[style] for style in styles_of(None if self.source.get() == SERVER else self._kind)]
        self.style.configure(values=offered)
        self._given_style = self._wanted_style if self._wanted_style in offered else offered[0]
        self.style.set(self._given_style)

    # --- widgets -----------------------------------------------------------------------------------------------------

    def build(self) -> None:
        choices = CaptionerChoices.of_values(self.app.preferences.captioner)
        self._build_source(choices)
        self._build_text(choices)
        self._build_images(choices)

    def _build_source(self, choices: CaptionerChoices) -> None:
        font = self.app.theme.font()
        card = self.make_card("Who writes")
        self.source = ctk.CTkSegmentedButton(card, values=[HERE, SERVER], font=font, command=self.show_rows)
        self.source.set(SERVER if choices.on_server else HERE)
        self.source.grid(row=1, column=0, columnspan=3, sticky="w", padx=12, pady=(0, 8))
        self.model = ctk.CTkComboBox(card, values=list(EXAMPLES), font=font, command=self.show_rows)
        self.model.bind("<KeyRelease>", lambda event: self.show_rows() if self.model.get() != self._looked_at else None)
        self.model.set(choices.model or EXAMPLES[0])
        self.lay(card, 2, "Model", self.model, "here")
        folder = PathQuestion("folder", "Folder of a captioner")
        self._rows["here"].append(self.file_button(card, 2, self.model, folder))
        self.general = self.entry(card, choices.general, width=70)
        self.character = self.entry(card, choices.character, width=70)
        self.lay(card, 3, "Tags from", self.with_text(card, self.general, "probability, of taggers"), "thresholds")
        characters = self.with_text(card, self.character, "probability, of taggers")
        self.lay(card, 4, "Characters from", characters, "thresholds")
        self.address = self.entry(card, choices.address, f"such as {SERVER_EXAMPLE}")
        self.lay(card, 5, "Address", self.address, "server")
        self.server_model = self.entry(card, choices.server_model, "as the server calls it; empty: its first one")
        self.lay(card, 6, "Model", self.server_model, "server")
        known = f"that of {KEY_VARIABLE}" if has_key_in_environment() else "if the server needs one; never stored"
        self.key = self.entry(card, "", known, show="•")
        for entry in (self.address, self.key):
            entry.bind("<KeyRelease>", lambda event: self._show_note())
        self.lay(card, 7, "Key", self.key, "server")
        self.note = ctk.CTkLabel(card, text="", font=font, anchor="w", justify="left")
        self.note.grid(row=8, column=0, columnspan=3, sticky="ew", padx=12, pady=(0, 10))
        wrap_to(card, self.note, self.app.theme)

    def _build_text(self, choices: CaptionerChoices) -> None:
        font = self.app.theme.font()
        card = self.make_card("What is written")
        self.style = ctk.CTkOptionMenu(card, values=list(STYLES.values()), font=font, command=self.show_rows)
        self.style.set(STYLES[choices.style])
        self._wanted_style = self._given_style = self.style.get()
        self.lay(card, 1, "Style", self.style)
        self.name = self.entry(card, choices.name, "what the captions call the subject, such as ohwx")
        self.lay(card, 2, "Name", self.name, "subject")
        self.prompt = Textbox(card, height=70, wrap="word", font=font)
        self.prompt.insert("1.0", choices.prompt)
        self.lay(card, 3, "Prompt", self.prompt, OWN_PROMPT)

    def _build_images(self, choices: CaptionerChoices) -> None:
        card = self.make_card("Which images")
        self.add_which(card, 1)
        self.replaces = self.tick(card, 2, "Replace captions that are there", self.show_rows)
        self.restarts = self.tick(card, 3, "Also those that a canceled run has replaced already")
        self._rows["replaces"] = [self.restarts]
        self.videos = self.tick(card, 4, "Also clips")
        if choices.videos:
            self.videos.select()
        self.batch_size = self.entry(card, choices.batch_size, width=70)
        text = "more are faster and take more memory; of a server, questions at the same time"
        self.lay(card, 5, "Images at a time", self.with_text(card, self.batch_size, text))
