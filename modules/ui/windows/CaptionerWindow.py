"""The window in which a model writes captions: which one, what it writes, for which images; preview, start, undo."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

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
    parts_of,
)
from modules.ui.models.path_picker import PathQuestion
from modules.ui.theme import Theme
from modules.ui.widgets.AnnotatorPanel import AnnotatorPanel
from modules.ui.widgets.CaptionPreviews import CaptionPreviews
from modules.ui.widgets.dialogs import ask, ask_path, focus_soon, set_size, show_over
from modules.ui.widgets.fitting import wrap_to
from modules.ui.widgets.Page import Page
from modules.ui.widgets.scrolling import scroll_to
from modules.ui.widgets.Textbox import Textbox

if TYPE_CHECKING:
    from modules.ui.App import App
    from modules.ui.models.AnnotatorRun import AnnotatorRun, Result
    from modules.ui.windows.DatasetCaptioner import DatasetCaptioner

LABEL_WIDTH = 150
COUNT_SECONDS = 0.5  # after which the number of selected images is shown again
HERE, SERVER = "Model on this machine", "Server"
SEND, DONT_SEND = "Send images", "Don't send"


class CaptionerWindow(ctk.CTkToplevel):
    """Closing only hides the window: a run goes on, and what is typed stays. The key is kept in its field alone.

    What is chosen is remembered by the preferences, but not that captions are replaced.
    """

    def __init__(self, app: App, parent: tk.Misc, dataset: DatasetCaptioner):
        super().__init__(parent, fg_color=app.theme.page)
        self.app, self._dataset = app, dataset
        self._agreed: set[str] = set()  # addresses of other machines to which images may be sent
        self._texts = ["Selected", "All"]  # of the choice of images
        self._undone_by: tuple[str, list[int]] = ("", [])  # label and concepts of the last run
        self.title("Caption with a model")
        self.transient(parent)
        set_size(self, "760x780", (520, 380))
        self.grid_columnconfigure(0, weight=1)
        self.grid_rowconfigure(0, weight=1)
        self._page = Page(self)
        self._page.grid(row=0, column=0, sticky="nsew", padx=(8, 2), pady=(8, 0))
        self._page.grid_columnconfigure(0, weight=1)
        self._rows: dict[str, list[tk.Misc]] = {}  # widgets that are shown for a source or a style alone
        choices = CaptionerChoices.of_values(app.preferences.captioner)
        self._build_source(choices)
        self._build_text(choices)
        self._build_images(choices)
        self.previews = CaptionPreviews(self._page, app)
        self.previews.grid(row=3, column=0, sticky="ew", padx=6)
        self.panel = AnnotatorPanel(
            self,
            app,
            self._make_run,
            self._undo,
            self.hide,
            self._show_preview,
            dataset.show_written,
            dataset.show_progress,
        )
        self.panel.grid(row=1, column=0, sticky="ew", padx=14, pady=(8, 14))
        self._show_rows()
        self._end = app.every(COUNT_SECONDS, self._count)
        self.bind("<Escape>", lambda event: self.hide())
        self.protocol("WM_DELETE_WINDOW", self.hide)
        show_over(app, self)
        focus_soon(app, self.address if choices.on_server else self.model)

    def hide(self) -> None:
        self.withdraw()

    def reopen(self) -> None:
        self.deiconify()
        self.lift()
        self.focus_set()

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

    def _make_run(self, preview: bool) -> AnnotatorRun | None:
        """Raises UserError."""
        choices = self.choices
        choices.check()
        selected = self.which.get() == self._texts[0]
        items = self._dataset.selected() if selected else self._dataset.items()
        parts = parts_of(items, self._dataset.concept, selected, choices.videos)
        if choices.on_server and not self._may_send(choices):
            return None
        self.app.preferences.captioner = choices.to_values()
        if not preview:
            self._undone_by = choices.label, sorted({item.concept for item in items})
        return choices.start(parts, self.key.get(), bool(self.replaces.get()), bool(self.restarts.get()), preview)

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

    def _undo(self) -> None:
        self._dataset.take_back(*self._undone_by)

    def _show_preview(self, results: Sequence[Result]) -> None:
        if not results:
            self.previews.clear()
        self.previews.add(results)
        if results:
            scroll_to(self.previews)

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
        text = with_labels(choices.note(self._has_key()))
        self.note.configure(text=text, text_color=Theme.error if has_wrong_address else Theme.text)

    def _show_rows(self, choice: object = None) -> None:
        """Show the fields that belong to what is chosen."""
        choices = self.choices
        shown = {
            "here": not choices.on_server,
            "server": choices.on_server,
            "subject": choices.style == "subject",
            OWN_PROMPT: choices.style == OWN_PROMPT,
            "replaces": bool(self.replaces.get()),
        }
        for name, widgets in self._rows.items():
            for widget in widgets:
                (widget.grid if shown[name] else widget.grid_remove)()  # type: ignore[attr-defined] # all are in grids
        self._show_note()

    def _count(self) -> None:
        """Let the choice of images follow the selection."""
        num_selected, num_all = len(self._dataset.selected()), len(self._dataset.items())
        texts = [f"Selected ({num_selected:,})", f"All ({num_all:,})"]
        if texts == self._texts:
            return
        is_selected = self.which.get() == self._texts[0] if self.which.get() else num_selected > 1
        self._texts = texts
        self.which.configure(values=texts)
        self.which.set(texts[0 if is_selected else 1])

    # --- widgets -----------------------------------------------------------------------------------------------------

    def _make_card(self, row: int, title: str) -> ctk.CTkFrame:
        card = ctk.CTkFrame(self._page)
        card.grid(row=row, column=0, sticky="ew", padx=6, pady=(0, 8))
        card.grid_columnconfigure(1, weight=1)
        label = ctk.CTkLabel(card, text=title, font=self.app.theme.font(13, "bold"), anchor="w")
        label.grid(row=0, column=0, columnspan=3, sticky="w", padx=12, pady=(8, 4))
        return card

    def _lay(self, card: ctk.CTkFrame, row: int, text: str, widget: ctk.CTkBaseClass, only: str = "") -> None:
        """Put a widget with its label into a row. only: for which choice it is shown; "": always."""
        label = ctk.CTkLabel(card, text=text, font=self.app.theme.font(), anchor="w", width=LABEL_WIDTH)
        label.grid(row=row, column=0, sticky="nw", padx=(12, 8), pady=(0, 8))
        widget.grid(row=row, column=1, sticky="ew", padx=(0, 12), pady=(0, 8))
        if only:
            self._rows.setdefault(only, []).extend((label, widget))

    def _entry(self, card: ctk.CTkFrame, text: str, hint: str = "", **options: Any) -> ctk.CTkEntry:
        entry = ctk.CTkEntry(card, font=self.app.theme.font(), placeholder_text=hint, **options)
        if text:
            entry.insert(0, text)
        entry.bind("<KeyRelease>", lambda event: self._show_note())
        return entry

    def _build_source(self, choices: CaptionerChoices) -> None:
        font = self.app.theme.font()
        card = self._make_card(0, "Who writes")
        self.source = ctk.CTkSegmentedButton(card, values=[HERE, SERVER], font=font, command=self._show_rows)
        self.source.set(SERVER if choices.on_server else HERE)
        self.source.grid(row=1, column=0, columnspan=3, sticky="w", padx=12, pady=(0, 8))
        self.model = ctk.CTkComboBox(card, values=list(EXAMPLES), font=font)
        self.model.set(choices.model or EXAMPLES[0])
        self._lay(card, 2, "Model", self.model, "here")
        folder = ctk.CTkButton(card, text="Folder…", width=80, font=font, command=self._choose_folder)
        folder.grid(row=2, column=2, padx=(0, 12), pady=(0, 8), sticky="n")
        self._rows["here"].append(folder)
        self.general = self._entry(card, choices.general, width=70)
        self.character = self._entry(card, choices.character, width=70)
        self._lay(card, 3, "Tags from", self._with_text(card, self.general, "probability, of taggers"), "here")
        self._lay(card, 4, "Characters from", self._with_text(card, self.character, "probability, of taggers"), "here")
        self.address = self._entry(card, choices.address, f"such as {SERVER_EXAMPLE}")
        self._lay(card, 5, "Address", self.address, "server")
        self.server_model = self._entry(card, choices.server_model, "as the server calls it; empty: its first one")
        self._lay(card, 6, "Model", self.server_model, "server")
        known = f"that of {KEY_VARIABLE}" if has_key_in_environment() else "if the server needs one; never stored"
        self.key = self._entry(card, "", known, show="•")
        self._lay(card, 7, "Key", self.key, "server")
        self.note = ctk.CTkLabel(card, text="", font=font, anchor="w", justify="left")
        self.note.grid(row=8, column=0, columnspan=3, sticky="ew", padx=12, pady=(0, 10))
        wrap_to(card, self.note, self.app.theme)
        self._rows["server"].append(self.note)

    def _with_text(self, card: ctk.CTkFrame, entry: ctk.CTkEntry, text: str) -> ctk.CTkFrame:
        """An entry with a text after it."""
        frame = ctk.CTkFrame(card, fg_color="transparent")
        entry.grid(in_=frame, row=0, column=0)
        entry.lift()  # above the frame, which was made later
        label = ctk.CTkLabel(frame, text=text, font=self.app.theme.font(12), text_color=Theme.muted)
        label.grid(row=0, column=1, padx=8)
        return frame

    def _build_text(self, choices: CaptionerChoices) -> None:
        font = self.app.theme.font()
        card = self._make_card(1, "What is written")
        self.style = ctk.CTkOptionMenu(card, values=list(STYLES.values()), font=font, command=self._show_rows)
        self.style.set(STYLES[choices.style])
        self._lay(card, 1, "Style", self.style)
        self.name = self._entry(card, choices.name, "what the captions call the subject, such as ohwx")
        self._lay(card, 2, "Name", self.name, "subject")
        self.prompt = Textbox(card, height=70, wrap="word", font=font)
        self.prompt.insert("1.0", choices.prompt)
        self._lay(card, 3, "Prompt", self.prompt, OWN_PROMPT)

    def _build_images(self, choices: CaptionerChoices) -> None:
        font = self.app.theme.font()
        card = self._make_card(2, "Which images")
        self.which: ctk.CTkSegmentedButton = ctk.CTkSegmentedButton(card, values=self._texts, font=font)
        self.which.grid(row=1, column=0, columnspan=3, sticky="w", padx=12, pady=(0, 8))
        self._count()
        self.replaces = self._tick(card, 2, "Replace captions that are there", self._show_rows)
        self.restarts = self._tick(card, 3, "Also those that a canceled run has replaced already")
        self._rows["replaces"] = [self.restarts]
        self.videos = self._tick(card, 4, "Also clips")
        if choices.videos:
            self.videos.select()
        self.batch_size = self._entry(card, choices.batch_size, width=70)
        text = "more are faster and take more memory; of a server, questions at the same time"
        self._lay(card, 5, "Images at a time", self._with_text(card, self.batch_size, text))

    def _tick(self, card: ctk.CTkFrame, row: int, text: str, command: Any = None) -> ctk.CTkCheckBox:
        box = ctk.CTkCheckBox(card, text=text, font=self.app.theme.font(), command=command)
        box.grid(row=row, column=0, columnspan=3, sticky="w", padx=12, pady=(0, 8))
        return box

    def _choose_folder(self) -> None:
        question = PathQuestion("folder", "Folder of a captioner", self.model.get())
        if folder := ask_path(self.app, question, self):
            self.model.set(folder)

    def destroy(self) -> None:
        self._end()
        super().destroy()
