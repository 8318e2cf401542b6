"""The caption of the current image, to be edited in place, and the edits of the selected images."""

from __future__ import annotations

import os
import sys
import tkinter as tk
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal

import customtkinter as ctk

from modules.config.counted import counted
from modules.config.errors import UserError
from modules.config.labels import with_labels
from modules.config.visible_text import visible_text
from modules.curation.FileChanges import ChangedOutside
from modules.session.printing import print_text
from modules.ui.models.CaptionWork import CaptionWork, cut_ranges, length_text, take_caption
from modules.ui.models.DatasetView import DatasetItem, Trait
from modules.ui.models.TagSuggestions import TagSuggestions
from modules.ui.models.WriteQueue import WriteQueue
from modules.ui.widgets.dialogs import ask
from modules.ui.widgets.fitting import lay_in_rows, wrap_to
from modules.ui.widgets.Textbox import Textbox
from modules.ui.widgets.Tooltip import Tooltip
from modules.ui.windows.DatasetAnnotator import DatasetAnnotator, make_captioner, make_masker
from modules.ui.windows.TagCompletion import TagCompletion
from modules.ui.windows.unsaved_edits import settle

if TYPE_CHECKING:
    from modules.curation.CaptionFiles import Caption
    from modules.curation.Journal import Applied, Outside
    from modules.curation.TokenCounts import TokenCount, TokenCounts
    from modules.ui.App import App

MIN_BOX = 42  # unscaled pixels: two lines
TYPING_MS = 200  # after the last key, until tokens are counted
KEEP, RELOAD, OVERWRITE = "Keep typing", "Load the file", "Overwrite the file"
SKIP, CANCEL = "Leave those files", "Cancel"

Direction = Literal["undo", "redo"]


class CaptionPane(ctk.CTkFrame):
    """A caption is saved when the focus leaves it, with Ctrl+S, and when another image is shown.

    on_renewed: called with the items whose files have changed. selected: the items that edits of several are for.
    on_edit_many: opens the edits of the captions of all of these. on_unsaved: called with an item whose caption could
    not be saved though another image is shown by now. on_note: called with a sentence on what was done or failed.

    Files are written one change after the other, in a thread, in the order in which they were made.
    """

    def __init__(
        self,
        parent: tk.Misc,
        app: App,
        selected: Callable[[], Sequence[DatasetItem]],
        on_renewed: Callable[[Iterable[DatasetItem]], None],
        on_unsaved: Callable[[DatasetItem], None],
        on_edit_many: Callable[[], None],
        on_note: Callable[[str], None],
    ):
        super().__init__(parent, fg_color="transparent")
        self.app = app
        self.item: DatasetItem | None = None
        self.work: CaptionWork | None = None
        self.items: Callable[[], Sequence[DatasetItem]] = list
        self.shown: Callable[[], Sequence[DatasetItem]] = list
        self.selected, self._on_renewed = selected, on_renewed
        self._on_unsaved, self._on_note = on_unsaved, on_note
        self._caption: Caption | None = None  # that the text was made from
        self._is_own = False  # whether that is a text that was saved here, and its file was not read since
        self.writing = WriteQueue(app, self.winfo_exists, self._show_buttons, partial(print_text, file=sys.stderr))
        self._is_asking = False
        self._counts: TokenCounts | None = None
        self._length = ""  # of the caption, in words
        self._count_job: str | None = None
        self._is_counting = False
        self.grid_columnconfigure(0, weight=1)
        self.grid_rowconfigure(1, weight=1)
        self.captioner = DatasetAnnotator(self, "captioner", make_captioner, self.renew, self._step)
        renew_masks = partial(self.renew, with_masks=True)
        self.masker = DatasetAnnotator(self, "masker", make_masker, renew_masks, self._step)
        self._build(on_edit_many)
        self.show(None)

    # --- public methods ----------------------------------------------------------------------------------------------

    def use(
        self,
        work: CaptionWork | None,
        items: Callable[[], Sequence[DatasetItem]],
        counts: TokenCounts | None = None,
        shown: Callable[[], Sequence[DatasetItem]] = list,
    ) -> None:
        """Edit the captions of these concepts. items: all that are known of them. counts: counts their tokens. shown:
        the items that pass the filter and the search."""
        self.save()
        self.work, self.items, self._counts, self.shown = work, items, counts, shown
        self.completion.use(None if work is None else TagSuggestions(work.concept))
        self.show(None)

    def show(self, item: DatasetItem | None) -> None:
        """Show the caption of an item; None: none."""
        if self.item is not None and item is not None and item.path == self.item.path:
            self.item = item
            if self.is_edited:
                return
        self.save()
        self.item = item
        self._caption, self._is_own = None, False
        if self.work is not None and item is not None:
            self._caption = self.work.read(item)
        if item is not None and self.work is not None and self._caption is not None:
            take_caption(item, self._caption, self.work.concept(item.concept))
        self._fill(self._caption.text if self._caption else "")
        self._show_buttons()

    @property
    def text(self) -> str:
        return self.box.get("1.0", "end-1c")

    @property
    def can_edit(self) -> bool:
        return self._caption is not None and self._caption.can_edit

    @property
    def is_edited(self) -> bool:
        return self._caption is not None and self._caption.can_edit and self.text != self._caption.text

    def save(self, overwrites: bool = False) -> None:
        """Write the caption if it was edited."""
        item, work, caption, text = self.item, self.work, self._caption, self.text
        if item is None or work is None or caption is None or not self.is_edited:
            return
        made_from = None if self._is_own else {item.path: caption}
        self._caption, self._is_own = replace(caption, text=text, is_missing=False), True
        label = f"Caption of {os.path.basename(item.path)}"

        keep = partial(work.keep_caption, item.path, text)

        def save(overwrites: bool) -> None:
            write = partial(work.write, label, item.concept, {item.path: text}, made_from, overwrites)
            self.do(write, lambda applied: self.renew([item]) if work is self.work else None, fail, keep)

        def fail(error: Exception) -> None:
            if work is not self.work:  # the window is closed, or shows other folders
                settle(self.app, error, keep, lambda: save(True))
                return
            self._restore(item, caption, text)
            if isinstance(error, ChangedOutside):
                self._ask_about(item, error)
            else:
                self.tell_failed(error)

        save(overwrites)

    def step(self, direction: Direction) -> None:
        """Undo or redo: what is being typed, else the last change to the files of this image's concept."""
        if (self.is_edited or direction == "redo") and self._step_text(direction):
            return
        if self.is_edited and direction == "undo":
            self._fill(self._caption.text if self._caption else "")
        elif self.item is not None:
            self._step(self.item.concept, direction)

    def _step_text(self, direction: Direction) -> bool:
        """Undo or redo a step of what was typed. Returns whether there was one."""
        box = self.box._textbox
        if not self.can_edit or not self.tk.getboolean(box.tk.call(box, "edit", f"can{direction}")):
            return False
        box.tk.call(box, "edit", direction)
        self._on_typed()
        self.completion.end()
        return True

    def _step(self, number: int, direction: Direction, outside: Outside = "ask") -> None:
        work = self.work
        if work is None:
            return
        journal = work.journal(number)
        can_step = journal is not None and (journal.can_undo if direction == "undo" else journal.can_redo)
        if not can_step and not self.writing.is_busy:
            return

        def take(applied: Applied) -> None:
            self.renew(work.touched(number, self.items(), applied.paths), with_masks=True)
            done = "Undone" if direction == "undo" else "Redone"
            self._on_note(f"{done}: {applied.label}.")

        def fail(error: Exception) -> None:
            if not isinstance(error, ChangedOutside):
                self.tell_failed(error)
                return
            answers = (CANCEL, SKIP, OVERWRITE.replace("file", "files"))
            answer = ask(self.app, "Changed by another program", _question(error), answers, danger=answers[2])
            if answer in answers[1:]:
                self._step(number, direction, "keep" if answer == SKIP else "overwrite")

        self.do(lambda: work.step_back(number, direction, outside), take, fail)

    def toggle_left_out(self) -> None:
        """Leave the selected images out of the training; train them again if all of them are left out."""
        self.save()
        work, chosen = self.work, list(self.selected())
        if work is None or not chosen:
            return
        left_out = not all(item.traits & Trait.LEFT_OUT for item in chosen)
        for number in sorted({item.concept for item in chosen}):
            of_concept = [item for item in chosen if item.concept == number]
            paths = [item.path_below for item in of_concept]
            write = partial(work.set_left_out, number, paths, left_out)
            self.do(write, partial(self._take_written, of_concept, False), self.tell_failed)

    def save_as_utf8(self) -> None:
        """Rewrite the caption files of the selected images that are not UTF-8, which the training does not read."""
        self.save()
        work = self.work
        if work is None:
            return
        chosen = [item for item in self.selected() if item.caption_problem]
        for number in sorted({item.concept for item in chosen}):
            items = [item for item in chosen if item.concept == number]
            write = partial(work.save_as_utf8, number, [item.path for item in items])
            self.do(write, partial(self._take_written, items, True), self.tell_failed)

    def write_many(self, label: str, texts: dict[int, dict[str, str]], made_from: dict[str, Caption]) -> None:
        """Write the captions of several images. texts: by concept and path."""
        work = self.work
        if work is None:
            return
        for number, of_concept in texts.items():
            items = [item for item in self.items() if item.path in of_concept]
            write = partial(work.write, label, number, of_concept, made_from)
            self.do(write, partial(self._take_written, items, True), partial(self._take_failed, items))

    def tell_done(self, text: str) -> None:
        """Say what was done."""
        self._on_note(text)

    # --- writing -----------------------------------------------------------------------------------------------------

    def do(
        self,
        write: Callable[[], Applied],
        then: Callable[[Applied], None],
        failed: Callable[[Exception], None],
        keep: Callable[[], str] = str,
    ) -> None:
        """Change files by `write`, in a thread, once earlier changes are made; the others as of WriteQueue."""
        self.writing.add(write, then, failed, keep)

    def renew(self, items: Sequence[DatasetItem], with_masks: bool = False) -> None:
        """Read the captions and settings of items again, in a thread, and show them. with_masks: also where their masks
        are, for which their folders are listed."""
        work = self.work
        if work is None or not items:
            return

        def read() -> None:
            settings = {number: work.image_settings(number) for number in {item.concept for item in items}}
            for item in items:
                work.renew(item, settings[item.concept])
            if with_masks:
                work.renew_masks(items)

        def take(nothing: None) -> None:
            if not self.winfo_exists() or work is not self.work:
                return
            self._on_renewed(items)
            is_shown = self.item is not None and any(one.path == self.item.path for one in items)
            if is_shown and (self._is_own or not self.is_edited):
                self._show_again(keeps=self.is_edited)

        def fail(error: Exception) -> None:
            if not isinstance(error, UserError):
                raise error
            self.tell_failed(error)

        self.app.in_background(read, take, fail)

    def _show_again(self, keeps: bool = False) -> None:
        """Show the caption as it is in its file now, without moving the cursor if it is the same.

        keeps: whether what has been typed since it was saved stays.
        """
        assert self.item is not None  # it is shown
        assert self.work is not None
        self._caption, self._is_own = self.work.read(self.item), False
        if not keeps and self._caption.text != self.text:
            self._fill(self._caption.text)
        self._show_state()
        self._show_buttons()

    def _restore(self, item: DatasetItem, caption: Caption, text: str) -> None:
        """Show a caption again that could not be saved, as it was typed."""
        if self.item is None or self.item.path != item.path:
            self._on_unsaved(item)
        self.item, self._caption, self._is_own = item, caption, False
        self._fill(text)

    def _ask_about(self, item: DatasetItem, error: ChangedOutside) -> None:
        answers = (KEEP, RELOAD, OVERWRITE)
        self._is_asking = True
        try:
            answer = ask(self.app, "Changed by another program", _question(error), answers, danger=OVERWRITE)
        finally:
            self._is_asking = False
        if self.item is None or self.item.path != item.path:
            return
        if answer == RELOAD:
            self._show_again()
        elif answer == OVERWRITE:
            self.save(overwrites=True)

    def tell_failed(self, error: Exception | str) -> None:
        """Say what failed, in the main window if this one is closed."""
        if self.work is None:
            self.app.show_message(str(error), "error")
        self._on_note(str(error))
        self._state.configure(text=visible_text(with_labels(str(error)))[:300], text_color=self.app.theme.error)

    def _take_written(self, items: Sequence[DatasetItem], is_told: bool, applied: Applied) -> None:
        self.renew(items)
        if is_told:
            self._on_note(f"{applied.label}: {counted(len(applied.paths), 'file')} written.")

    def _take_failed(self, items: Sequence[DatasetItem], error: Exception) -> None:
        self.tell_failed(error)
        self.renew(items)

    # --- display -----------------------------------------------------------------------------------------------------

    def _fill(self, text: str) -> None:
        self.box.configure(state="normal")
        self.box.delete("1.0", "end")
        self.box.insert("1.0", text)
        self.box.edit_reset()
        if not self.can_edit:
            self.box.configure(state="disabled")
        self.completion.end()
        self._length = ""
        self._show_state()
        self._count_later()

    def _show_state(self) -> None:
        caption, theme = self._caption, self.app.theme
        if caption is None:
            text = ""
        elif caption.is_misencoded:
            text = "not UTF-8"
        elif caption.problem or not caption.can_edit:
            text = caption.problem or "These captions don't come from files: they can't be edited."
        else:
            text = "; ".join(filter(None, [self._length, "not saved yet" if self.is_edited else ""]))
        colour = theme.error if caption is not None and caption.problem else theme.muted
        self._state.configure(text=visible_text(with_labels(text))[:300], text_color=colour)
        is_misencoded = caption is not None and caption.is_misencoded
        (self.utf8_button.grid if is_misencoded else self.utf8_button.grid_remove)()

    def _on_typed(self) -> None:
        self._show_state()
        self._count_later()

    def _count_later(self) -> None:
        if self._count_job is not None:
            self.after_cancel(self._count_job)
        self._count_job = self.after(TYPING_MS, self._count)

    def _count(self) -> None:
        """Count the tokens of what is typed, in a thread, and mark what is cut off."""
        self._count_job = None
        counts, caption, text = self._counts, self._caption, self.text
        if counts is None or caption is None or self._is_counting:
            return
        captions = [line for line in map(str.strip, text.split("\n")) if line] if caption.per_line else [text]
        self._is_counting = True

        def take(found: Sequence[TokenCount]) -> None:
            self._is_counting = False
            if not self.winfo_exists():
                return
            if text != self.text:
                self._count_later()
                return
            self._length = length_text(found)
            self.box.tag_remove("cut", "1.0", "end")
            for first, end in cut_ranges(text, captions, found):
                self.box.tag_add("cut", f"1.0+{first}c", f"1.0+{end}c")
            self._show_state()

        def fail(error: Exception) -> None:
            self._is_counting = False
            raise error

        self.app.in_background(lambda: counts.count(captions or [""]), take, fail)

    def _restyle(self) -> None:
        theme = self.app.theme
        self.grid_rowconfigure(1, minsize=theme.scaled(MIN_BOX))
        self.box.tag_config("cut", foreground=theme.now(theme.error), underline=True)

    def _show_buttons(self) -> None:
        journal = self.work.journal(self.item.concept) if self.work is not None and self.item is not None else None
        can = {"undo": journal is not None and journal.can_undo, "redo": journal is not None and journal.can_redo}
        self._labels = {
            "undo": journal.next_undo_label if journal is not None else "",
            "redo": journal.next_redo_label if journal is not None else "",
        }
        for direction, is_possible in can.items():
            self.buttons[direction].configure(state="normal" if is_possible else "disabled")
        for name in ("edit", "captioner", "masker", "left_out"):
            self.buttons[name].configure(state="normal" if self.item is not None else "disabled")
        chosen = self.selected()
        all_out = bool(chosen) and all(item.traits & Trait.LEFT_OUT for item in chosen)
        self.buttons["left_out"].configure(text="Train again" if all_out else "Leave out")

    def show_selection(self) -> None:
        """Let the buttons follow the selection."""
        self._show_buttons()

    # --- widgets -----------------------------------------------------------------------------------------------------

    def _build(self, on_edit_many: Callable[[], None]) -> None:
        theme, font = self.app.theme, self.app.theme.font()
        head = ctk.CTkFrame(self, fg_color="transparent")
        head.grid(row=0, column=0, sticky="ew", padx=4, pady=(4, 2))
        head.grid_columnconfigure(1, weight=1)
        ctk.CTkLabel(head, text="Caption", font=theme.font(13, "bold")).grid(row=0, column=0, sticky="nw")
        self._state = ctk.CTkLabel(head, text="", font=theme.font(12), anchor="e", justify="right")
        self._state.grid(row=0, column=1, sticky="ew", padx=(8, 0))
        wrap_to(head, self._state, theme, taken=76)
        self.utf8_button: ctk.CTkButton = ctk.CTkButton(
            head, text="Save as UTF-8", width=50, height=24, font=theme.font(12), command=self.save_as_utf8
        )
        self.utf8_button.grid(row=1, column=1, sticky="e", pady=(2, 0))
        Tooltip(self.utf8_button, theme, lambda: UTF8_HINT)
        self.box = Textbox(self, height=64, wrap="word", font=font, undo=True)
        self.box.grid(row=1, column=0, sticky="nsew")
        self.completion = TagCompletion(self, self._on_typed)  # first: its keys are handled before those of the box
        self._stop_listening = theme.on_change(self._restyle)
        self._restyle()
        Tooltip(self._state, theme, lambda: self._counts.note if self._counts is not None else "")
        self.box._textbox.bind("<KeyRelease>", lambda event: self._on_typed(), add="+")
        self.box._textbox.bind("<FocusOut>", lambda event: None if self._is_asking else self.save(), add="+")
        self.box._textbox.bind("<Tab>", self._on_tab, add="+")
        bar = ctk.CTkFrame(self, fg_color="transparent")
        bar.grid(row=2, column=0, sticky="ew", pady=(6, 0))
        self._labels = {"undo": "", "redo": ""}
        self.buttons: dict[str, ctk.CTkButton] = {}
        for name, text, command, hint in (
            ("undo", "Undo", lambda: self.step("undo"), lambda: f"Undo (Ctrl+Z): {self._labels['undo']}"),
            ("redo", "Redo", lambda: self.step("redo"), lambda: f"Redo (Ctrl+Y): {self._labels['redo']}"),
            ("edit", "Edit captions…", on_edit_many, lambda: "Change the captions of the selected images (Ctrl+E)."),
            ("left_out", "Leave out", self.toggle_left_out, lambda: LEAVE_OUT_HINT),
            ("masker", "Make masks…", self.masker.open_window, lambda: MASKER_HINT),
            # the widest one last, so that in a narrow window two of the others have a row together
            ("captioner", "Caption with a model…", self.captioner.open_window, lambda: CAPTIONER_HINT),
        ):
            self.buttons[name] = ctk.CTkButton(bar, text=text, width=50, height=28, font=font, command=command)
            Tooltip(self.buttons[name], theme, hint)
        lay_in_rows(bar, list(self.buttons.values()), theme)

    def _on_tab(self, event: tk.Event) -> str:
        following = event.widget.tk_focusNext()
        if following is not None:
            following.focus_set()
        return "break"

    def destroy(self) -> None:
        self._stop_listening()
        if self._count_job is not None:
            self.after_cancel(self._count_job)
        super().destroy()


CAPTIONER_HINT = "A model on this machine, or a server, writes captions for the images that have none."
MASKER_HINT = "A model on this machine masks the images that have no mask."
UTF8_HINT = (
    "The training reads UTF-8 alone. This rewrites the caption files of the selected images: letters that look right "
    "here stay right."
)
LEAVE_OUT_HINT = "The selected images stay in the folder but aren't trained, or are trained again (Delete)."


def _question(error: ChangedOutside) -> str:
    return f"{error}\n\nWhat should become of them?"
