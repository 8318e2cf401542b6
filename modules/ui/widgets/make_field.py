"""The field that fits a setting, and the fields of settings that are chosen."""

from __future__ import annotations

import tkinter
from typing import TYPE_CHECKING, Any

import customtkinter as ctk

from modules.ui.widgets.Field import EDITOR_HEIGHT, EDITOR_WIDTH, Field, value_text
from modules.ui.widgets.fitting import FittedMenu
from modules.ui.widgets.typed_fields import EntryField, PathField, TextField

if TYPE_CHECKING:
    from modules.ui.App import App


def make_field(parent: tkinter.Misc, app: App, path: str, row: int, label: str = "") -> Field:
    """Create the field for the setting at `path` in the parent's grid, in ROWS rows from `row` on. label: replaces the
    setting's own. Raises KeyError if the path is not a setting, ValueError for a list of parts."""
    info = app.settings.info(path)
    if info.type == "list":
        raise ValueError(f"{path} is a list of parts, which has no field of its own")
    kinds: dict[str, type[Field]] = {"bool": SwitchField, "choice": ChoiceField}
    kind = kinds.get(info.type, EntryField)
    if info.format:
        kind = TextField if info.format == "long" else PathField
    return kind(parent, app, path, row, label)


class SwitchField(Field):
    sticky = "w"

    def make_editor(self) -> ctk.CTkBaseClass:
        return ctk.CTkSwitch(
            self.parent, text="", width=44, height=EDITOR_HEIGHT, command=lambda: self.commit(bool(self.editor.get()))
        )

    def show_value(self, value: Any) -> None:
        if bool(self.editor.get()) != bool(value):
            (self.editor.select if value else self.editor.deselect)()


class ChoiceField(Field):
    def make_editor(self) -> ctk.CTkBaseClass:
        self._choices = {label: choice for choice, label in self.info.choice_labels.items()}
        return FittedMenu(
            self.parent,
            values=list(self._choices),
            width=EDITOR_WIDTH,
            height=EDITOR_HEIGHT,
            font=self.app.theme.font(),
            dropdown_font=self.app.theme.font(),
            command=lambda label: self.commit(self._choices[label]),
        )

    def show_value(self, value: Any) -> None:
        self.editor.set(self.info.choice_labels.get(value, value_text(value)))

    def help_text(self) -> str:
        return f"{self.editor.get()}\n\n{super().help_text()}" if self.editor.is_cut else super().help_text()
