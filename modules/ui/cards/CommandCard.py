"""The card with the commands that start the same run from terminals."""

from __future__ import annotations

import os
import tkinter
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import customtkinter as ctk

from modules.config.errors import UserError
from modules.config.TrainConfig import TrainConfig
from modules.launch.command_text import Command, Places, bash_line, commands_text, powershell_line
from modules.ui.cards.Card import Card
from modules.ui.models.launch_files import write_script, write_settings
from modules.ui.models.path_picker import SAVE_FOLDER, PathQuestion
from modules.ui.theme import Theme
from modules.ui.widgets.dialogs import ask_path
from modules.ui.widgets.Textbox import Textbox

if TYPE_CHECKING:
    from modules.ui.App import App, MessageKind

SHELLS = ("bash", "PowerShell")


class CommandCard(Card):
    """shows_all: show the commands of all machines, or only that of this machine.

    extra: a further button, as (text, command). Copy and Save also write the settings file that the commands use.
    """

    def __init__(
        self,
        parent: tkinter.Misc,
        app: App,
        title: str,
        shows_all: bool = False,
        height: int = 96,
        extra: tuple[str, Callable[[], None]] | None = None,
    ):
        super().__init__(parent, app, title)
        self._shows_all = shows_all
        self._config: TrainConfig | None = None  # and its places, while there are commands
        self._commands: Sequence[Command] = ()
        self._places: Places | None = None
        self._noted: tuple[list[Command], str] | None = None  # the commands that the note is about, and the note
        self._shell = ctk.CTkSegmentedButton(self, values=list(SHELLS), height=24, command=lambda name: self._show())
        self._shell.set(SHELLS[os.name == "nt"])
        self._shell.grid(row=0, column=0, sticky="e", padx=12, pady=(8, 2))
        buttons = [("Copy all" if shows_all else "Copy", self.copy)]
        buttons += [("Save .sh", lambda: self.ask_and_save(".sh")), ("Save .ps1", lambda: self.ask_and_save(".ps1"))]
        self.add_buttons(1, *buttons, *([extra] if extra else []))  # above the box, which may reach below the window
        font = app.theme.font(12, mono=True)
        self.box = Textbox(self, height=height, wrap="char", font=font, fg_color=Theme.code, border_width=0)
        self.box.grid(row=3, column=0, sticky="ew", padx=12, pady=(4, 2))
        _make_read_only(self.box)
        self._note = self.add_note(4)
        self.node_buttons: list[ctk.CTkButton] = []
        self._node_bar: tkinter.Misc | None = None

    def show(self, config: TrainConfig, commands: Sequence[Command], places: Places, note: str) -> None:
        """Show the commands for `config`. note: a remark about them."""
        shown = list(commands), note
        self._config, self._commands, self._places = config, commands, places
        if shown != self._noted:  # what was said about the same commands stays
            self._noted = shown
            self._note.configure(text=note, text_color=Theme.muted)
        self._show()

    def refuse(self, reason: str) -> None:
        """Show a reason instead of commands."""
        self._commands, self._noted = (), None
        _show_text(self.box, "")
        self._note.configure(text=reason, text_color=Theme.error)

    def copy(self) -> None:
        """Copy the commands shown to the clipboard, and write their settings file."""
        self._copy(self.box.get("1.0", "end-1c"), "Copied.")

    def copy_node(self, number: int) -> None:
        """Copy the command of one machine: pasted into a shell, those of all would run one after the other."""
        try:
            text = self._line()(self._commands[number])
        except UserError as error:
            self._tell(str(error), "error")
        else:
            self._copy(text, f"Copied the command of node {number}.")

    def _copy(self, text: str, said: str) -> None:
        def take(settings: str) -> None:
            self.app.root.clipboard_clear()
            self.app.root.clipboard_append(text)
            self._tell(f"{said} {settings}")

        self._in_background(lambda config, places: write_settings(config, places), take)

    def ask_and_save(self, ending: str) -> None:
        """Ask for a file name and save the script. ending: ".sh" or ".ps1"."""
        title = "Save the commands" if self._shows_all else "Save the command"
        if path := ask_path(self.app, PathQuestion("new_file", title, SAVE_FOLDER, name=f"train{ending}"), parent=self):
            self.save_script(path)

    def save_script(self, path: str) -> None:
        """Write a script with the commands of all machines, for PowerShell if its name ends in .ps1."""
        commands = list(self._commands)

        def work(config: TrainConfig, places: Places) -> str:
            settings = write_settings(config, places)
            write_script(path, commands)
            return settings

        self._in_background(work, lambda settings: self._tell(f"Saved as {path}. {settings}"))

    def _in_background(self, work: Callable[[TrainConfig, Places], str], then: Callable[[str], None]) -> None:
        config, places = self._config, self._places
        if not self._commands or config is None or places is None:
            if not self._is_apart:
                self.app.show_message(self._note.cget("text"), "error", lambda: not self._commands)
            return
        self.app.in_background(lambda: work(config, places), then, self._fail)

    def _fail(self, error: Exception) -> None:
        if not isinstance(error, UserError):
            raise error
        self._tell(str(error), "error")

    @property
    def _is_apart(self) -> bool:
        """Whether the card is in a window of its own, which the messages of the main one would appear behind."""
        return self.winfo_toplevel() is not self.app.root

    def _tell(self, text: str, kind: MessageKind = "info") -> None:
        if self._is_apart:
            self._note.configure(text=text, text_color=Theme.error if kind == "error" else Theme.text)
        else:
            self.app.show_message(text, kind)

    def _line(self) -> Callable[[Command], str]:
        return powershell_line if self._shell.get() == "PowerShell" else bash_line

    def _show_nodes(self) -> None:
        """A button for each machine, if there are several."""
        count = len(self._commands) if self._shows_all and len(self._commands) > 1 else 0
        if count == len(self.node_buttons):
            return
        if self._node_bar is not None:
            self._node_bar.destroy()
            self._node_bar = None
        actions = [(f"Copy node {number}", partial(self.copy_node, number)) for number in range(count)]
        self.node_buttons = self.add_buttons(2, *actions) if actions else []
        if self.node_buttons:
            self._node_bar = self.node_buttons[0].master
            self._node_bar.lower(self.box)  # for the Tab key, which goes from the back to the front

    def _show(self) -> None:
        config = self._config
        if not self._commands or config is None:
            return
        line = self._line()
        self._show_nodes()
        try:
            if self._shows_all:
                text = commands_text(self._commands, config.master_addr, line)
            else:
                text = line(self._commands[min(config.node_rank, len(self._commands) - 1)])
        except UserError as error:
            self.refuse(str(error))
            return
        _show_text(self.box, text)


def _make_read_only(box: ctk.CTkTextbox) -> None:
    """Make a text selectable but not editable; Tab leaves it."""
    box.configure(state="disabled")
    box.bind("<Tab>", lambda event: _go_to(box._textbox.tk_focusNext()))
    box.bind("<Shift-Tab>", lambda event: _go_to(box._textbox.tk_focusPrev()))


def _show_text(box: ctk.CTkTextbox, text: str) -> None:
    """Show a text; if it is already shown, keep it with its selection."""
    if box.get("1.0", "end-1c") == text:
        return
    box.configure(state="normal")
    box.delete("1.0", "end")
    box.insert("1.0", text)
    box.configure(state="disabled")


def _go_to(widget: tkinter.Misc | None) -> str:
    if widget is not None:
        widget.focus_set()
    return "break"
