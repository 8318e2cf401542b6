"""One setting in a form: its label, a widget to edit it, and its problem.

A field knows its setting's declaration and the settings model, but not the form around it.
"""

from __future__ import annotations

import tkinter
from typing import TYPE_CHECKING, Any

import customtkinter as ctk

from modules.config.describe import range_text
from modules.ui import keyboard
from modules.ui.theme import Theme
from modules.ui.widgets.scrolling import bring_into_sight
from modules.ui.widgets.Tooltip import Tooltip
from modules.ui.window_system import bind_menu

if TYPE_CHECKING:
    from modules.config.problems import Problem, Remedy
    from modules.ui.App import App

LABEL_WIDTH = 165  # longer labels take two lines
EDITOR_WIDTH = 150
EDITOR_HEIGHT = 28
WRAP = 250
ROWS = 4  # of a grid, for each field: the label, mostly with the editor; a wide editor; its problem; what solves that
FLASHES, FLASH_MS = 6, 220
WHOLE_UP_TO = 1e15  # whole numbers below it are shown without ".0"
MENU_NAME = "field_menu"


class Field:
    """Base class of all fields. Subclasses create `editor` and show values in it."""

    def __init__(self, parent: tkinter.Misc, app: App, path: str, row: int, label: str = ""):
        self.app, self.path, self.row = app, path, row
        self.parent = parent
        self.info = app.settings.info(path)
        self.is_shown = True
        self._is_setting = False
        self._num_flashes = 0  # that are not over
        self._problem: ctk.CTkLabel | None = None
        self._dot: ctk.CTkLabel | None = None
        self._remedy: ctk.CTkButton | None = None
        self._state: tuple[list[Problem], str] = ([], "")  # the problems and mark that are shown
        title = label or self.info.label
        self.label = ctk.CTkLabel(
            parent, text=title, font=app.theme.font(), anchor="w", justify="left", height=20, wraplength=LABEL_WIDTH
        )
        self.label.grid(row=row, column=1, columnspan=1 + self.is_wide, sticky="w", padx=(0, 8), pady=3)
        self.editor: Any = self.make_editor()  # a widget of CustomTkinter, which declares no types
        self.editor.grid(row=row + self.is_wide, pady=3, sticky=self.sticky, **self._columns())
        for widget in (self.label, *self.pointed_at()):
            Tooltip(widget, app.theme, self.help_text)
            bind_menu(widget, self._open_menu)
        self.focus_widget().bind("<Shift-F10>", self._open_menu, add="+")
        self.refresh()

    sticky = "ew"
    is_wide = False  # whether the editor is below the label and takes the width of both

    def make_editor(self) -> Any:
        raise NotImplementedError

    def pointed_at(self) -> tuple[tkinter.Misc, ...]:
        """The widgets, other than the label, that have the tooltip and the menu."""
        return (self.editor,)

    def show_value(self, value: Any) -> None:
        raise NotImplementedError

    def show_border(self, colour: Any) -> None:
        """Set the colour of the editor's border, if it has one."""

    def focus_widget(self) -> tkinter.Misc:
        """The widget that gets the keyboard focus."""
        return self.editor._canvas

    def focus(self) -> None:
        self.focus_widget().focus_set()

    def commit(self, value: Any) -> None:
        """Set the setting to what the user has chosen or typed."""
        self._is_setting = True
        try:
            self.app.settings.set(self.path, value)
        finally:
            self._is_setting = False
        self.refresh(with_value=False)

    def refresh(self, with_value: bool = True) -> None:
        """Show the setting's value and problem, and whether it differs from the preset and the default."""
        settings = self.app.settings
        if with_value and not self._is_setting:
            self.show_value(settings.shown(self.path))
        problems = self.app.problems.at(self.path)
        mark = "preset" if settings.differs_from_preset(self.path) else ""
        mark = mark or ("default" if settings.differs_from_default(self.path) else "")
        if (problems, mark) != self._state:
            self._state = (problems, mark)
            colour = Theme.error if problems and problems[0].blocking else Theme.warning
            self._show_problem("\n".join(problem.message for problem in problems), colour)
            self.show_border(colour if problems else Theme.border)
            self._show_mark(mark)
            self._show_remedy(next((problem.remedy for problem in problems if problem.remedy is not None), None))

    def set_shown(self, is_shown: bool) -> None:
        if is_shown == self.is_shown:
            return
        self.is_shown = is_shown
        for widget in (self.label, self.editor, self._dot, self._problem, self._remedy):
            if widget is not None and is_shown:
                widget.grid()
            elif widget is not None:
                widget.grid_remove()
        if is_shown and self._problem is not None and not self._problem.cget("text"):
            self._problem.grid_remove()
        problems, mark = self._state
        if is_shown and self._dot is not None and not mark:
            self._dot.grid_remove()
        if is_shown and self._remedy is not None and all(problem.remedy is None for problem in problems):
            self._remedy.grid_remove()

    def flash(self) -> None:
        """Scroll to the field, focus it and flash its label; meanwhile Space and Return don't press it."""
        bring_into_sight(self.app, self.label)
        self.focus()
        self._num_flashes += 1
        keyboard.hold_keys(self.focus_widget(), True)
        self._blink(FLASHES)

    @property
    def is_flashing(self) -> bool:
        return self._num_flashes > 0

    def help_text(self) -> str:
        """The tooltip: what the setting does, its unit, range, default, preset value and name."""
        info, settings = self.info, self.app.settings
        facts = []
        if info.unit:
            facts.append(f"Unit: {info.unit}")
        if limits := range_text(info):
            facts.append(f"Range: {limits}")
        facts.append(f"Default: {self.in_words(info.default)}")
        if settings.differs_from_preset(self.path) and settings.preset_value(self.path) is not None:
            facts.append(f"In {settings.preset_name}: {self.in_words(settings.preset_value(self.path))}")
        return f"{info.help}\n\n" + "\n".join([*facts, f"Name: {self.path}"])

    def in_words(self, value: Any) -> str:
        if isinstance(value, bool):
            return "on" if value else "off"
        label = self.info.choice_labels.get(value, "") if isinstance(value, str) else ""
        return label or value_text(value) or "empty"

    def _columns(self) -> dict[str, Any]:
        """The columns of the editor and what is below it, as options of `grid`."""
        column, span = (1, 2) if self.is_wide else (2, 1)
        return {"column": column, "columnspan": span, "padx": (0, 10)}

    def _show_problem(self, text: str, colour: Any) -> None:
        if self._problem is None:
            if not text:
                return
            font = self.app.theme.font(12)
            self._problem = ctk.CTkLabel(self.parent, text="", font=font, anchor="w", justify="left", wraplength=WRAP)
            self._problem._canvas.bind("<Configure>", self._wrap_problem, add="+")
            self._problem.grid(row=self.row + 2, sticky="ew", pady=(0, 4), **self._columns())
        self._problem.configure(text=text, text_color=colour)
        if text and self.is_shown:
            self._problem.grid()
        else:
            self._problem.grid_remove()

    def _wrap_problem(self, event: tkinter.Event) -> None:
        """Wrap the problem's text to the width of the editor, which depends on the window."""
        assert self._problem is not None  # whose event it is
        width = event.width * 100 // self.app.theme.scaled(100) - 2
        if width > 50 and abs(width - self._problem.cget("wraplength")) > 2:
            self._problem.configure(wraplength=width)

    def _show_remedy(self, remedy: Remedy | None) -> None:
        """Show a button below the problem that solves it."""
        if self._remedy is None:
            if remedy is None:
                return
            self._remedy = ctk.CTkButton(self.parent, width=44, height=24, font=self.app.theme.font(12))
            self._remedy.grid(row=self.row + 3, sticky="w", pady=(0, 6), **self._columns())
        if remedy is not None:
            self._remedy.configure(text=remedy.text, command=lambda: self.app.problems.apply(remedy))
        if remedy is not None and self.is_shown:
            self._remedy.grid()
        else:
            self._remedy.grid_remove()

    def _show_mark(self, mark: str) -> None:
        """Show a dot if the value differs from the preset, a ring if the preset's differs from the default."""
        if self._dot is None:
            if not mark:
                return
            font = self.app.theme.font(11)
            self._dot = ctk.CTkLabel(self.parent, text="", width=12, height=20, font=font)
            self._dot.grid(row=self.row, column=0, padx=(6, 2))
            Tooltip(self._dot, self.app.theme, self._mark_text)
        full = mark == "preset"
        self._dot.configure(text="●" if full else "○", text_color=Theme.accent if full else Theme.muted)
        if mark and self.is_shown:
            self._dot.grid()
        else:
            self._dot.grid_remove()

    def _mark_text(self) -> str:
        return f"Differs from {'the preset' if self._state[1] == 'preset' else 'the default'}. Right click to reset."

    def _open_menu(self, event: tkinter.Event) -> str:
        settings, path = self.app.settings, self.path
        # The name replaces the last menu: only X11 reports when a menu is closed.
        menu = tkinter.Menu(self.app.root, name=MENU_NAME)
        self.app.theme.style_menu(menu)
        menu.add_command(
            label=f"Reset to the default ({self.in_words(self.info.default)[:40]})",
            command=lambda: settings.reset(path),
            state="normal" if settings.differs_from_default(path) else "disabled",
        )
        if settings.is_in_preset(path):
            menu.add_command(
                label=f"Back to {settings.preset_name} ({self.in_words(settings.preset_value(path))[:40]})",
                command=lambda: settings.reset_to_preset([path]),
                state="normal" if settings.differs_from_preset(path) else "disabled",
            )
        menu.add_command(label=f"Copy the name {path}", command=self._copy_name)
        place = self.label
        menu.tk_popup(event.x_root or place.winfo_rootx(), event.y_root or place.winfo_rooty())
        return "break"

    def _copy_name(self) -> None:
        self.app.root.clipboard_clear()
        self.app.root.clipboard_append(self.path)

    def _blink(self, left: int) -> None:
        if not self.label.winfo_exists():
            return
        lit = left % 2 == 0 and left > 0
        self.label.configure(
            fg_color=Theme.selected if lit else "transparent", text_color=Theme.on_accent if lit else Theme.text
        )
        if left > 0:
            self.app.after(FLASH_MS, lambda: self._blink(left - 1))
            return
        self._num_flashes -= 1
        keyboard.hold_keys(self.focus_widget(), self.is_flashing)


def value_text(value: Any) -> str:
    """A value as shown in an entry."""
    if value is None:
        return ""
    if isinstance(value, list):
        separator = "; " if any(isinstance(entry, str) for entry in value) else ", "  # a path may have a comma
        return separator.join(value_text(entry) for entry in value)
    if isinstance(value, float) and value.is_integer() and abs(value) < WHOLE_UP_TO:
        return str(int(value))
    return str(value)
