"""Merge, combine, resize, extract and convert LoRAs and models."""

from __future__ import annotations

import os
import tkinter
from collections.abc import Callable
from typing import TYPE_CHECKING

import customtkinter as ctk

from modules.config.errors import UserError
from modules.ui.models.model_tools import TOOLS, ToolField, Value, tool_options, tool_run, with_labels_of
from modules.ui.models.path_picker import SAVE_FOLDER, PathQuestion
from modules.ui.models.trained_images import newest_model, read_paths
from modules.ui.theme import Theme
from modules.ui.widgets.ActivityBar import ActivityBar
from modules.ui.widgets.dialogs import ask_path, set_size, show_over
from modules.ui.widgets.fitting import FittedMenu, wrap_to
from modules.ui.widgets.Page import Page

if TYPE_CHECKING:
    from modules.ui.App import App
    from modules.ui.models.ScriptRun import ScriptRun

HEIGHT = 30
FILE_TYPES = [("Weights", "*.safetensors"), ("All files", "*")]


class ModelToolsWindow(ctk.CTkToplevel):
    """One tool at a time, in a process that closing the window cancels. tool: the shown one."""

    def __init__(self, app: App):
        super().__init__(app.root)
        self.app, self.tool = app, TOOLS[0]
        self._script: ScriptRun | None = None
        self._read: dict[str, Callable[[], Value]] = {}  # the fields' values
        self._kept: dict[str, Value] = {}  # of the tools shown before
        self.title("LoRA and model tools")
        self.transient(app.root)
        set_size(self, "720x540", (520, 380))
        self.grid_columnconfigure(0, weight=1)
        self.grid_rowconfigure(2, weight=1)
        self._build()
        self.bind("<Escape>", lambda event: self.destroy())
        show_over(app, self)

    def destroy(self) -> None:
        if self._script is not None:
            self._script.cancel()
        super().destroy()

    @property
    def is_running(self) -> bool:
        return self._script is not None

    def show_tool(self, label: str) -> None:
        """Show what a tool asks for; what was filled in stays where the tools ask for the same."""
        self._keep()
        self.tool = next(tool for tool in TOOLS if tool.label == label)
        self.menu.set(label)
        self._help.configure(text=self.tool.help)
        self._tell("")
        for child in self._form.winfo_children():
            child.destroy()
        self._read = {}
        for row, field in enumerate(self.tool.fields):
            text = ctk.CTkLabel(self._form, text=field.label, font=self.app.theme.font(), anchor="nw")
            text.grid(row=row, column=0, sticky="nw", padx=(12, 10), pady=5)
            self._add_field(row, field)

    def start(self) -> None:
        """Run the tool, or cancel it."""
        if self._script is not None:
            self._script.cancel()
            self._end("Canceled.", Theme.text)
            return
        try:
            options = tool_options(self.tool, {name: read() for name, read in self._read.items()})
        except ValueError as error:
            self._tell(str(error), Theme.error)
            return
        tool = self.tool
        script = self._script = tool_run(tool, options)
        self.button.configure(text="Cancel")
        self.menu.configure(state="disabled")
        self.bar.show(None)
        self.bar.grid()
        self._tell(f"{tool.doing}…")

        def take(output: bytes | None) -> None:
            if script is self._script and self.winfo_exists():
                paths = ", ".join(map(str, read_paths(output)))
                warnings = with_labels_of(tool, script.warnings)
                self._end("\n".join(filter(None, (f"Saved {paths}.", warnings))), Theme.success)

        def fail(error: Exception) -> None:
            is_wanted = script is self._script and self.winfo_exists()
            if is_wanted:
                self._end(with_labels_of(tool, str(error)), Theme.error)
            if not isinstance(error, UserError):
                raise error

        self.app.in_background(script.run, take, fail)

    def _end(self, text: str, colour: tuple[str, str]) -> None:
        self._script = None
        self.button.configure(text="Start")
        self.menu.configure(state="normal")
        self.bar.show(0)
        self.bar.grid_remove()
        self._tell(text, colour)

    def _tell(self, text: str, colour: tuple[str, str] = Theme.muted) -> None:
        self.note.configure(text=text, text_color=colour)

    def _keep(self) -> None:
        self._kept |= {name: value for name, read in self._read.items() if (value := read())}

    # --- widgets ------------------------------------------------------------------------------------------------------

    def _build(self) -> None:
        theme = self.app.theme
        self.menu = FittedMenu(
            self, values=[tool.label for tool in TOOLS], width=240, height=HEIGHT, font=theme.font(),
            dropdown_font=theme.font(), command=self.show_tool,
        )  # fmt: skip
        self.menu.grid(row=0, column=0, sticky="w", padx=16, pady=(14, 4))
        self._help = ctk.CTkLabel(
            self, text="", font=theme.font(12), text_color=Theme.muted, anchor="w", justify="left"
        )
        self._help.grid(row=1, column=0, sticky="ew", padx=16)
        wrap_to(self, self._help, theme, taken=32)
        self._form = Page(self)
        self._form.grid(row=2, column=0, sticky="nsew", padx=8, pady=6)
        self._form.grid_columnconfigure(1, weight=1)
        self.bar = ActivityBar(self, self.app, height=9)
        self.bar.grid(row=3, column=0, sticky="ew", padx=16)
        self.bar.grid_remove()
        self.note = ctk.CTkLabel(self, text="", font=theme.font(12), anchor="w", justify="left")
        self.note.grid(row=4, column=0, sticky="ew", padx=16)
        wrap_to(self, self.note, theme, taken=32)
        buttons = ctk.CTkFrame(self, fg_color="transparent")
        buttons.grid(row=5, column=0, sticky="e", padx=16, pady=(6, 14))
        self.button = ctk.CTkButton(
            buttons, text="Start", width=100, font=theme.font(), fg_color=Theme.selected,
            hover_color=Theme.selected_hover, text_color=Theme.on_accent, command=self.start,
        )  # fmt: skip
        self.button.pack(side="left")
        close = ctk.CTkButton(buttons, text="Close", width=100, font=theme.font(), command=self.destroy)
        close.pack(side="left", padx=(8, 0))
        self._kept = {"base": str(self.app.settings.get("model.base")), **self._newest()}
        self.show_tool(self.tool.label)

    def _newest(self) -> dict[str, Value]:
        """The model that the run has saved, to begin with."""
        files = [str(path) for path in newest_model(self.app.run.state.saved) if path.suffix == ".safetensors"]
        return {"source": files[0], "loras": [(path, "1.0") for path in files]} if files else {}

    def _add_field(self, row: int, field: ToolField) -> None:
        place = ctk.CTkFrame(self._form, fg_color="transparent")
        place.grid(row=row, column=1, sticky="ew", padx=(0, 12), pady=3)
        place.grid_columnconfigure(0, weight=1)
        kept = self._kept.get(field.name, "")
        font = self.app.theme.font()
        if field.kind == "loras":
            self._add_loras(place, field, [] if isinstance(kept, str | bool) else list(kept))
        elif field.kind == "choice":
            menu = FittedMenu(
                place, values=list(field.choices or {}), width=240, height=HEIGHT, font=font, dropdown_font=font
            )
            menu.set(str(kept) if kept in (field.choices or {}) else next(iter(field.choices or {})))
            menu.grid(row=0, column=0, sticky="w")
            self._read[field.name] = menu.get
        elif field.kind == "switch":
            switch = ctk.CTkSwitch(place, text="")
            if kept is True:
                switch.select()
            switch.grid(row=0, column=0, sticky="w")
            self._read[field.name] = lambda: bool(switch.get())
        else:
            entry = self._add_entry(place, 0, 0, str(kept), field.empty)
            if field.kind != "number":
                self._add_pickers(place, 0, 1, field, entry)
            self._read[field.name] = entry.get

    def _add_entry(self, place: tkinter.Misc, row: int, column: int, text: str, empty: str = "") -> ctk.CTkEntry:
        entry = ctk.CTkEntry(place, height=HEIGHT, font=self.app.theme.font(), placeholder_text=empty or None)
        if text:
            entry.insert(0, text)
        entry.grid(row=row, column=column, sticky="ew", pady=1)
        return entry

    def _add_pickers(self, place: tkinter.Misc, row: int, column: int, field: ToolField, entry: ctk.CTkEntry) -> None:
        """Buttons that choose a file or a folder, or both where it may be either."""
        kinds = {"folder": ("folder",), "model": ("file", "folder"), "target": ("new_file",)}.get(field.kind, ("file",))
        for number, kind in enumerate(kinds):
            text = {"file": "File…", "folder": "Folder…", "new_file": "Choose…"}[kind]
            button = ctk.CTkButton(place, text=text, width=74, height=HEIGHT, font=self.app.theme.font(12))
            button.configure(command=lambda kind=kind: self._pick(kind, field.label, entry))
            button.grid(row=row, column=column + number, padx=(4, 0))

    def _pick(self, kind: str, title: str, entry: ctk.CTkEntry) -> None:
        name = "model.safetensors" if kind == "new_file" else ""
        start = entry.get().strip() or (SAVE_FOLDER if kind == "new_file" else os.curdir)
        types = () if kind == "folder" else FILE_TYPES
        if path := ask_path(self.app, PathQuestion(kind, title, start, name, types), self):  # type: ignore[arg-type]
            entry.delete(0, "end")
            entry.insert(0, path)

    def _add_loras(self, place: ctk.CTkFrame, field: ToolField, kept: list[tuple[str, str]]) -> None:
        """A row for each LoRA with its strength, and a button that adds one."""
        rows: list[tuple[ctk.CTkEntry, ctk.CTkEntry]] = []
        font = self.app.theme.font(12)
        place.grid_columnconfigure(2, minsize=self.app.theme.scaled(60))
        heading = ctk.CTkLabel(place, text="Strength", font=font, text_color=Theme.muted, height=18)
        heading.grid(row=0, column=2, padx=(4, 0))
        more = ctk.CTkButton(place, text="Add a LoRA", width=90, height=26, font=font)

        def add(path: str = "", strength: str = "1.0") -> None:
            row = len(rows) + 1
            file = self._add_entry(place, row, 0, path)
            self._add_pickers(place, row, 1, field, file)
            number = ctk.CTkEntry(place, width=60, height=HEIGHT, font=self.app.theme.font())
            number.insert(0, strength)
            number.grid(row=row, column=2, padx=(4, 0))
            rows.append((file, number))
            more.grid(row=row + 1, column=0, sticky="w", pady=(4, 0))

        more.configure(command=add)
        for path, strength in kept or [("", "1.0")]:
            add(path, strength)
        self._read[field.name] = lambda: [(file.get(), number.get()) for file, number in rows if file.get().strip()]
