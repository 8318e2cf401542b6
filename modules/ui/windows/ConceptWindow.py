"""The window of one concept: its settings, its images, and a live preview of an image as trained."""

from __future__ import annotations

import os
import threading
import tkinter as tk
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import customtkinter as ctk
from PIL import ImageTk

from modules.config.clips import clip_rule
from modules.config.describe import part_paths
from modules.config.errors import UserError
from modules.config.files import config_from_values
from modules.config.visible_text import visible_line
from modules.data.folder_walk import Outputs
from modules.ui.models.concept_preview import (
    ConceptPictures,
    PreviewLook,
    find_pictures,
    preview_captions,
    preview_looks,
)
from modules.ui.models.picture_count import scan_key
from modules.ui.widgets.dialogs import bring_up, set_size, show_over
from modules.ui.widgets.fitting import wrap_to
from modules.ui.widgets.form import CardSpec, SettingsCard
from modules.ui.widgets.Page import Page
from modules.ui.widgets.scrolling import make_scrollbar
from modules.ui.widgets.Textbox import Textbox
from modules.ui.widgets.Thumbnails import Thumbnails

if TYPE_CHECKING:
    from modules.config.clips import ClipRule
    from modules.config.ConceptConfig import ConceptConfig
    from modules.ui.App import App

CARDS = {
    "Folder": (
        "name", "path", "enabled", "include_subfolders", "include", "exclude", "frame_folders_fps", "reference_folder",
        "source_folder", "layer_folder", "pair_folder", "mask_folder", "alpha_mask",
    ),
    "Captions": (
        "captions", "caption_extension", "caption_per_line", "caption_table", "caption_column", "prompt",
        "caption_fallback", "caption_prefix", "caption_suffix", "trigger_word", "class_word", "wildcards",
        "removed_tags", "shuffle_tags", "tag_separator", "secondary_separator", "keep_tags", "kept_separator",
        "tag_dropout", "tag_dropout_mode", "dropped_tags", "undropped_tags", "lower_case", "capitalization",
        "capitalization_share",
    ),
    "Augmentation": (),  # and all else that is named augmentation.*
    "Usage": (),  # and what has no other card
}  # fmt: skip
WIDTH, HEIGHT = 1160, 760
LOOK_SIDE = 132
TYPING_MS = 600  # after the last keystroke in a path, so that no half-typed folder is scanned
PREVIEW_DELAY_MS = 150  # after the last change, so that typing a number creates only one preview


class ConceptWindow(ctk.CTkToplevel):
    """The settings and images of one concept. Hidden when it is closed, and when concepts are added, removed or moved.

    It is created once and reused, because CustomTkinter never completely frees a window or a scrollable frame.
    """

    def __init__(self, parent: tk.Misc, app: App):
        super().__init__(parent, fg_color=app.theme.page)
        self.app = app
        self.number: int | None = None  # of the concept shown
        self._was_shown = False
        self._cards: list[SettingsCard] = []
        self._scan_key: tuple | None = None
        self._scan_job: str | None = None
        self._given_up = threading.Event()  # cancels the current search for images
        self._preview_job: str | None = None
        self._version = 0  # of the preview, so that an outdated one that finishes late is not shown
        self._ends = [app.settings.subscribe(self._on_settings), app.checks.places.subscribe(self._on_places)]
        set_size(self, f"{WIDTH}x{HEIGHT}", (640, 480))
        self.grid_rowconfigure(0, weight=1)
        self.grid_columnconfigure(0, weight=2, uniform="concept")
        self.grid_columnconfigure(1, weight=3, uniform="concept")
        self._settings = Page(self)
        self._settings.grid(row=0, column=0, sticky="nsew", padx=(8, 2), pady=8)
        self._build_pictures()
        self.bind("<Escape>", lambda event: self.hide())
        app.bind_settings_keys(self)
        self.protocol("WM_DELETE_WINDOW", self.hide)
        self.withdraw()

    def show(self, number: int) -> None:
        """Show `concepts.<number>`."""
        self.hide()
        self.number = number
        names = [path.removeprefix(f"concepts.{number}.") for path in part_paths("concepts", number)]
        for title, wanted in card_names(names).items():
            paths = [f"concepts.{number}.{name}" for name in wanted]
            card = SettingsCard(self._settings, self.app, CardSpec(title, paths, all_importances=True), lambda: None)
            card.pack(fill="x", padx=4, pady=4)
            self._cards.append(card)
        self._show_concept()
        if self._was_shown:
            bring_up(self)
        else:
            show_over(self.app, self)
            self._was_shown = True
            self.lift()
        self.thumbnails.canvas.focus_set()

    def hide(self) -> None:
        self.withdraw()
        self.number = self._scan_key = None
        self._cancel_scan()
        self._cancel_preview()
        for card in self._cards:
            card.destroy()
        self._cards.clear()
        self.thumbnails.show(())
        self.looks.show(())

    # --- live --------------------------------------------------------------------------------------------------------

    def _on_settings(self, paths: set[str]) -> None:
        if self.number is None:
            return
        if "concepts" in paths:
            self.hide()
        else:
            self._show_concept()

    def _on_places(self, settings: set[str]) -> None:
        """Read the folder again when it has gone or come back outside the window."""
        if self.number is not None and any(name.startswith(f"concepts.{self.number}.") for name in settings):
            self._scan_key = None
            self._show_concept()

    def _show_concept(self) -> None:
        """Update everything from the settings."""
        number = self.number
        assert number is not None  # it is shown
        config = config_from_values(self.app.settings.values)
        concept, outputs = config.concepts[number], Outputs.of(config)
        name = concept.name or os.path.basename(os.path.normpath(concept.path)) or "new"
        self.title(visible_line(f"Concept: {name}"))
        rule = clip_rule(config)
        if scan_key(concept, outputs, rule) != self._scan_key:
            delay = 0 if self._scan_key is None else TYPING_MS
            self._cancel_scan()
            self._scan_key = scan_key(concept, outputs, rule)
            self._state.configure(text="Reading the images…")
            self._scan_job = self.after(delay, lambda: self._scan(concept, number, outputs, rule))
        self._cancel_preview()
        self._preview_job = self.after(PREVIEW_DELAY_MS, self._make_preview)

    def _scan(self, concept: ConceptConfig, number: int, outputs: Outputs, rule: ClipRule | None) -> None:
        """Search for images in a thread."""
        self._scan_job = None
        given_up = self._given_up = threading.Event()
        self.app.in_background(
            lambda: find_pictures(concept, number, lambda: not given_up.is_set(), outputs, rule),
            lambda found: None if given_up.is_set() else self._take_pictures(found),
        )

    def _cancel_scan(self) -> None:
        self._given_up.set()
        if self._scan_job is not None:
            self.after_cancel(self._scan_job)
            self._scan_job = None

    def _take_pictures(self, found: ConceptPictures) -> None:
        text = found.error or found.counts
        self._state.configure(text=text, text_color=self.app.theme.error if found.error else self.app.theme.muted)
        self.thumbnails.show(found.paths)
        if found.paths and self.thumbnails.chosen is None:
            self.thumbnails.choose(0)

    def _cancel_preview(self) -> None:
        self._version += 1
        if self._preview_job is not None:
            self.after_cancel(self._preview_job)
            self._preview_job = None

    def _make_preview(self) -> None:
        """Create the preview of the selected image in a thread."""
        self._cancel_preview()
        path, number = self.thumbnails.chosen_path, self.number
        if path is None or number is None:
            self.looks.show(())
            self._show_captions(())
            return
        config = config_from_values(self.app.settings.values)
        side = self.app.theme.scaled(LOOK_SIDE)
        version = self._version

        def make() -> tuple[list[PreviewLook], list[str]]:
            return preview_looks(config, number, path, side), preview_captions(config, number, path)

        def show(made: tuple[list[PreviewLook], list[str]]) -> None:
            if version == self._version and self.winfo_exists():
                self.looks.show(made[0])
                self._show_captions([text or "(no caption)" for text in made[1]])

        def tell(error: Exception) -> None:
            if not isinstance(error, UserError):
                raise error
            if version == self._version and self.winfo_exists():
                self.looks.show(())
                self._show_captions([str(error)])

        self.app.in_background(make, show, tell)

    def _show_captions(self, captions: Sequence[str]) -> None:
        self.captions.configure(state="normal")
        self.captions.delete("1.0", "end")
        self.captions.insert("1.0", "\n".join(map(visible_line, captions)))
        self.captions.configure(state="disabled")

    # --- widgets -----------------------------------------------------------------------------------------------------

    def _build_pictures(self) -> None:
        theme = self.app.theme
        side = ctk.CTkFrame(self)
        side.grid(row=0, column=1, sticky="nsew", padx=(4, 10), pady=10)
        side.grid_columnconfigure(0, weight=1)
        side.grid_rowconfigure((1, 3), weight=3)
        side.grid_rowconfigure(5, weight=1)
        self._state = ctk.CTkLabel(side, text="", anchor="w", justify="left", text_color=theme.muted)
        self._state.grid(row=0, column=0, sticky="ew", padx=12, pady=(8, 2))
        wrap_to(side, self._state, theme)
        self.thumbnails = Thumbnails(side, self.app, side=88, on_choose=lambda number: self._make_preview())
        self.looks = LooksView(side, self.app)
        self.captions = Textbox(side, height=60, wrap="word", state="disabled")
        below: tuple[tuple[str, ctk.CTkBaseClass], ...] = (
            ("Augmentation preview", self.looks),
            ("Caption", self.captions),
        )
        self.thumbnails.grid(row=1, column=0, sticky="nsew", padx=8)
        for row, (text, widget) in enumerate(below):
            label = ctk.CTkLabel(side, text=text, anchor="w", font=theme.font(13, "bold"))
            label.grid(row=2 * row + 2, column=0, sticky="ew", padx=12, pady=(8, 2))
            widget.grid(row=2 * row + 3, column=0, sticky="nsew", padx=8, pady=(0, 8))

    def destroy(self) -> None:
        for end in self._ends:
            end()
        self._cancel_scan()
        self._cancel_preview()
        super().destroy()


def card_names(names: Sequence[str]) -> dict[str, list[str]]:
    """Card title -> names of the concept settings on it; every name is on one card."""
    cards: dict[str, list[str]] = {title: [] for title in CARDS}
    for name in names:
        section = "Augmentation" if name.startswith("augmentation.") else "Usage"
        cards[next((title for title, wanted in CARDS.items() if name in wanted), section)].append(name)
    return cards


class LooksView(ctk.CTkFrame):
    """A few images side by side with titles, in as many rows as needed; scrollable."""

    def __init__(self, parent: tk.Misc, app: App):
        super().__init__(parent, fg_color="transparent")
        self.app = app
        self._looks: Sequence[PreviewLook] = ()
        self._photos: list[ImageTk.PhotoImage] = []
        self.grid_rowconfigure(0, weight=1)
        self.grid_columnconfigure(0, weight=1)
        self.canvas = tk.Canvas(self, width=10, height=10, bd=0, highlightthickness=2, takefocus=True)
        self.canvas.grid(row=0, column=0, sticky="nsew")
        make_scrollbar(self, self.canvas, row=0, column=1)
        for event, units in (("<Button-4>", -1), ("<Button-5>", 1), ("<Up>", -1), ("<Down>", 1)):
            self.canvas.bind(event, partial(self._scroll, units))
        self.canvas.bind("<MouseWheel>", lambda event: self.canvas.yview_scroll(-1 if event.delta > 0 else 1, "units"))
        self.canvas.bind("<Configure>", lambda event: self._paint())
        self._stop_listening = app.theme.on_change(self._paint)

    def show(self, looks: Sequence[PreviewLook]) -> None:
        self._looks = looks
        self._photos = [ImageTk.PhotoImage(look.image, master=self.canvas) for look in looks]
        self._paint()

    def _scroll(self, units: int, event: tk.Event) -> None:
        self.canvas.yview_scroll(units, "units")

    def _paint(self) -> None:
        theme, canvas, scaled = self.app.theme, self.canvas, self.app.theme.scaled
        canvas.delete("all")
        canvas.configure(
            bg=theme.now(theme.card), highlightcolor=theme.now(theme.focus), highlightbackground=theme.now(theme.card)
        )
        width, height = scaled(LOOK_SIDE + 12), scaled(LOOK_SIDE + 26)
        columns = max(1, canvas.winfo_width() // width)
        for number, (look, photo) in enumerate(zip(self._looks, self._photos, strict=True)):
            row, column = divmod(number, columns)
            x, y = column * width + scaled(4), row * height + scaled(4)
            canvas.create_image(x, y, image=photo, anchor="nw")
            fill, font = theme.now(theme.muted), theme.plain_font(11)
            canvas.create_text(x, y + scaled(LOOK_SIDE + 2), text=look.title, anchor="nw", fill=fill, font=font)
        rows = -(-len(self._looks) // columns)
        canvas.configure(scrollregion=(0, 0, columns * width, rows * height))

    def destroy(self) -> None:
        self._stop_listening()
        super().destroy()
        self._photos = []  # freed here, on the Tk thread
