"""The window for choosing settings to start from: recent files, and presets for the available GPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import customtkinter as ctk

from modules.config.presets import GPU_COUNTS, MEMORY_SIZES
from modules.ui.models.preset_rows import COLUMNS, file_rows, preset_rows, same_preset, suggested
from modules.ui.widgets.fitting import wrap_to
from modules.ui.widgets.Tooltip import Tooltip
from modules.ui.windows.TableWindow import GRID_COLUMNS, Row, TableWindow

if TYPE_CHECKING:
    from modules.ui.App import App

MEMORY_CHOICES = {"Any memory": None, **{f"{size} GB": size for size in MEMORY_SIZES}}
GPU_CHOICES = {"1 GPU": 1, **{f"{count} GPUs": count for count in GPU_COUNTS}}


class PresetWindow(TableWindow):
    """use, compare: called with the selected row, "preset:NAME" or "file:PATH"; compare also with this window, which
    stays open. recent: paths of files.

    The memory and number of GPUs are initially those of this machine.
    """

    def __init__(
        self,
        app: App,
        use: Callable[[list[str]], None],
        compare: Callable[[list[str], PresetWindow], None],
        open_file: Callable[[], None],
        recent: Sequence[str],
    ):
        self._presets: list[Row] = []
        self._files: list[Row] = []
        self._memory, self._num_gpus = suggested(app.devices.gpus)
        self._family = ""
        label = app.settings.info("family").choice_labels[app.settings.get("family")]
        self._families = {"All families": "", label: app.settings.get("family")}

        def show_changes(names: list[str]) -> None:
            compare(names, self)

        actions = [("Apply", use), ("Show changes…", show_changes), ("Open a file…", lambda names: open_file())]
        settings = app.settings
        current = f"preset:{settings.preset_name}" if settings.is_preset else f"file:{settings.source_file}"
        size, min_size, lasting = "960x480", (640, 320), (show_changes,)
        super().__init__(app, "Start from", COLUMNS, (), actions, False, size, min_size, current, lasting)
        memory_help = "Memory of each GPU. A preset's need is its estimated peak over training, caching and sampling."
        self.memory = self._add_menu(1, MEMORY_CHOICES, self._memory, memory_help)
        gpus_help = "Number of GPUs that train together. The list shows the resulting batch size and learning rate."
        self.num_gpus = self._add_menu(2, GPU_CHOICES, self._num_gpus, gpus_help)
        self.detail = ctk.CTkLabel(self, text="", font=app.theme.font(), height=38, justify="left", anchor="nw")
        self.detail.grid(row=2, column=0, columnspan=GRID_COLUMNS, sticky="ew", padx=18, pady=(8, 0))
        wrap_to(self, self.detail, app.theme, 36)
        self.table.bind("<<TreeviewSelect>>", lambda event: self._show_detail())
        families = "Of the model family in the settings, or of all."
        self.family = self._add_menu(3, self._families, self._family, families)
        self._find_rows()
        app.in_background(lambda: file_rows(recent), self._take_files)

    def _add_menu(self, column: int, choices: dict, value: int | str | None, text: str) -> ctk.CTkOptionMenu:
        font = self.app.theme.font()
        menu = ctk.CTkOptionMenu(
            self, values=list(choices), width=120, font=font, dropdown_font=font, command=lambda label: self._choose()
        )
        menu.set(next(label for label, choice in choices.items() if choice == value))
        menu.grid(row=0, column=column, padx=(0, 14), pady=(14, 8))
        Tooltip(menu, self.app.theme, lambda: text)
        return menu

    def _choose(self) -> None:
        """Show the presets for the selected memory, number of GPUs and family."""
        self._family = self._families[self.family.get()]
        self._memory, self._num_gpus = MEMORY_CHOICES[self.memory.get()], GPU_CHOICES[self.num_gpus.get()]
        self._find_rows()

    def _show_detail(self) -> None:
        """Show the description, which may be cut off in the table, in full below it."""
        chosen = set(self.table.selection())
        self.detail.configure(text=next((cells[1] for name, cells in self._rows if name in chosen), ""))

    def _find_rows(self) -> None:
        """Compute the rows in a thread, as estimating every preset would stall the window."""
        wanted = self._memory, self._num_gpus, self._family
        self.app.in_background(lambda: preset_rows(*wanted), lambda rows: self._take_rows(wanted, rows))

    def _take_rows(self, wanted: tuple[int | None, int, str], rows: list[Row]) -> None:
        if self.winfo_exists() and wanted == (self._memory, self._num_gpus, self._family):
            self._presets = rows
            self._current = same_preset(rows, self._current)
            self._rows = [*self._files, *rows]
            self.show_rows()

    def _take_files(self, rows: list[Row]) -> None:
        if self.winfo_exists():
            self._files = rows
            self.take_rows([*rows, *self._presets])  # keeps what the user may have selected while a slow disk was read
