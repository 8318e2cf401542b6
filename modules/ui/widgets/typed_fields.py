"""Fields of settings that are typed: a line, a path, or several lines."""

from __future__ import annotations

import tkinter
from typing import TYPE_CHECKING, Any, Literal

import customtkinter as ctk

from modules.ui.models.path_picker import PathQuestion
from modules.ui.theme import Theme
from modules.ui.widgets.dialogs import ask_path
from modules.ui.widgets.Field import EDITOR_HEIGHT, EDITOR_WIDTH, Field, value_text
from modules.ui.widgets.Textbox import Textbox

if TYPE_CHECKING:
    pass


class TypedField(Field):
    """A text field. Keys may arrive faster than the window updates: text typed meanwhile is not overwritten, and a
    change by undo is not mistaken for typing when its key is released."""

    _text = ""  # of the editor, when it was last set or typed
    _is_typed = False  # the user has typed and not yet left the field
    _typed_value: Any = None  # its value, so that 1e-4 is not rewritten as 0.0001 while the user types

    def read(self) -> str:
        raise NotImplementedError

    def write(self, text: str) -> None:
        raise NotImplementedError

    def show_value(self, value: Any) -> None:
        if self._is_typed and value == self._typed_value:
            return
        self._is_typed = False
        self._text = value_text(value)
        if self.read() != self._text:
            self.write(self._text)

    def _typed(self, event: tkinter.Event | None = None) -> None:
        text = self.read()
        if text == self._text:
            return
        self._text = text
        if text != value_text(self.app.settings.shown(self.path)):
            self.commit(text)
        self._is_typed, self._typed_value = True, self.app.settings.shown(self.path)


class EntryField(TypedField):
    _border: Any = Theme.border  # its colour without the focus

    def make_editor(self) -> ctk.CTkBaseClass:
        self.entry = ctk.CTkEntry(
            self.parent,
            width=EDITOR_WIDTH,
            height=EDITOR_HEIGHT,
            font=self.app.theme.font(),
            placeholder_text=self._placeholder(),
        )
        self._bind_entry()
        return self.entry

    def read(self) -> str:
        return self.entry.get()

    def write(self, text: str) -> None:
        self.entry.delete(0, "end")
        if text:  # inserting even an empty text would hide the placeholder
            self.entry.insert(0, text)

    def show_border(self, colour: Any) -> None:
        self._border = colour
        self.entry.configure(border_color=Theme.focus if self._has_focus() and colour == Theme.border else colour)

    def focus_widget(self) -> tkinter.Misc:
        return self.entry._entry

    def focus(self) -> None:
        super().focus()
        self.entry.select_range(0, "end")

    def help_text(self) -> str:
        text, help_text = self.read(), super().help_text()
        is_cut = text and self.entry._entry.xview() != (0.0, 1.0)
        return f"{text}\n\n{help_text}" if is_cut else help_text

    def _placeholder(self) -> str:
        unit, meaning = self.info.unit, self.info.empty_means
        return f"{meaning} ({unit})" if unit and meaning else unit or meaning

    def _bind_entry(self) -> None:
        self.entry.bind("<KeyRelease>", self._typed, add="+")
        for change in ("<<Paste>>", "<<PasteSelection>>", "<<Cut>>"):
            self.entry.bind(change, lambda event: self.app.after_idle(self._typed), add="+")
        self.entry.bind("<FocusIn>", lambda event: self.show_border(self._border), add="+")
        self.entry.bind("<FocusOut>", lambda event: self._leave(), add="+")

    def _leave(self) -> None:
        """On leaving the field, show the typed text as the resulting value: 1e-4 as 0.0001."""
        self._typed()
        self._is_typed = False
        self.refresh()
        self.show_border(self._border)

    def _has_focus(self) -> bool:
        return self.app.root.tk.call("focus") == str(self.entry._entry)


class PathField(EntryField):
    """An entry with a button that opens the system's dialog; two buttons if it may be a file or a folder. To a list of
    files the dialog adds one."""

    is_wide = True

    def make_editor(self) -> ctk.CTkBaseClass:
        frame = ctk.CTkFrame(self.parent, fg_color="transparent")
        frame.grid_columnconfigure(0, weight=1)
        self.entry = ctk.CTkEntry(frame, width=EDITOR_WIDTH - 36, height=EDITOR_HEIGHT, font=self.app.theme.font())
        if self.info.format == "file_or_folder":
            self.entry.grid(row=0, column=0, columnspan=2, sticky="ew")
            for column, (text, is_file) in enumerate((("Folder…", False), ("File…", True))):
                button = ctk.CTkButton(frame, text=text, width=64, height=EDITOR_HEIGHT)
                button.configure(command=lambda is_file=is_file: self._browse(is_file))
                button.grid(row=1, column=column, sticky="e", padx=(0, 0 if is_file else 6), pady=(6, 0))
        else:
            self.entry.grid(row=0, column=0, sticky="ew")
            button = ctk.CTkButton(frame, text="…", width=30, height=EDITOR_HEIGHT, command=self._browse)
            button.grid(row=0, column=1, padx=(6, 0))
        self._bind_entry()
        return frame

    def pointed_at(self) -> tuple[tkinter.Misc, ...]:
        return (self.editor, self.entry)  # the frame does not get the entry's events

    def _browse(self, file: bool = False) -> None:
        kind: Literal["file", "folder"] = "file" if file or self.info.format == "file" else "folder"
        is_list, text = self.info.type == "list[str]", self.entry.get().strip("; ")
        question = PathQuestion(kind, self.info.label, text.rpartition(";")[2].strip() if is_list else text)
        chosen = ask_path(self.app, question, parent=self.parent.winfo_toplevel())
        if chosen and self.editor.winfo_exists():
            self.commit("; ".join(filter(None, (text, chosen))) if is_list else chosen)
            self.refresh()


class TextField(TypedField):
    """A text of several lines. Tab leaves the field, as in all others."""

    def make_editor(self) -> ctk.CTkBaseClass:
        box = Textbox(self.parent, width=EDITOR_WIDTH, height=72, font=self.app.theme.font(), wrap="word")
        box.set_hint(self.info.empty_means)
        box.bind("<KeyRelease>", self._typed, add="+")
        for change in ("<<Paste>>", "<<PasteSelection>>", "<<Cut>>"):
            box.bind(change, lambda event: self.app.after_idle(self._typed), add="+")
        box.bind("<FocusOut>", self._typed, add="+")
        box.bind("<Tab>", lambda event: self._move_on(box._textbox.tk_focusNext()))
        box.bind("<Shift-Tab>", lambda event: self._move_on(box._textbox.tk_focusPrev()))
        return box

    def set_hint(self, text: str) -> None:
        """Say what an empty text means here, in place of what it means everywhere."""
        self.editor.set_hint(text or self.info.empty_means)

    def read(self) -> str:
        return self.editor.get("1.0", "end-1c")

    def write(self, text: str) -> None:
        self.editor.delete("1.0", "end")
        self.editor.insert("1.0", text)

    def show_border(self, colour: Any) -> None:
        self.editor.configure(border_color=colour)

    def focus_widget(self) -> tkinter.Misc:
        return self.editor._textbox

    def _move_on(self, widget: tkinter.Misc | None) -> str:
        if widget is not None:
            widget.focus_set()
        return "break"
