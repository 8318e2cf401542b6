"""The samples of runs side by side; a person says which of two is better, for preference training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import customtkinter as ctk

from modules.data.image_formats import EXTENSIONS
from modules.data.preference_pairs import FILE_NAME, add_preference
from modules.ui.models.path_picker import PathQuestion
from modules.ui.theme import Theme
from modules.ui.widgets.dialogs import ask_path
from modules.ui.widgets.PictureTable import PictureTable, PictureTableView

if TYPE_CHECKING:
    from modules.ui.App import App

HINT = "Choose two images of a row, then say which is better: pairs for the method Preference (DPO)."


class PreferencePane(ctk.CTkFrame):
    """table: the samples. prompts: of its rows. folder: where preferences are listed until another one is chosen."""

    def __init__(self, parent: ctk.CTkToplevel, app: App, table: PictureTable, prompts: tuple[str, ...], folder: Path):
        super().__init__(parent, fg_color="transparent")
        self.app, self.prompts, self.folder = app, prompts, folder
        self.num_added = 0
        self.grid_columnconfigure(0, weight=1)
        self.grid_rowconfigure(0, weight=1)
        self.view = PictureTableView(self, app, "These runs have made no samples that are still there.")
        self.view.show(table)
        self.view.grid(row=0, column=0, sticky="nsew")
        bar, font = ctk.CTkFrame(self, fg_color="transparent"), app.theme.font()
        bar.grid(row=1, column=0, sticky="ew", pady=(8, 0))
        bar.grid_columnconfigure(0, weight=1)
        self.note = ctk.CTkLabel(bar, text=HINT, font=font, text_color=Theme.muted, anchor="w")
        self.note.grid(row=0, column=0, sticky="ew")
        buttons = (
            ("Left is better", lambda: self.prefer(0)),
            ("Right is better", lambda: self.prefer(1)),
            ("Folder…", self.choose_folder),
        )
        for column, (text, command) in enumerate(buttons, 1):
            button = ctk.CTkButton(bar, text=text, width=120, font=font, command=command)
            button.grid(row=0, column=column, padx=(8, 0))

    def prefer(self, better: int) -> None:
        """List the two compared images. better: 0 for the left one, 1 for the right one."""
        cells = self.view.compared
        if len(cells) < 2 or cells[0] == cells[1] or cells[0][0] != cells[1][0]:
            self._tell("Choose two images of the same row first: they need the same prompt.", is_error=True)
            return
        paths = [Path(self.view.table.paths[cell]) for cell in cells]
        if any(path.suffix.lower() not in EXTENSIONS for path in paths):
            self._tell("Videos can't be listed: choose two images.", is_error=True)
            return
        chosen, rejected, prompt, folder = paths[better], paths[1 - better], self.prompts[cells[0][0]], self.folder

        def added(_: None) -> None:
            self.num_added += 1
            if self.winfo_exists():
                self._tell(f"{self.num_added} listed in {folder / FILE_NAME}")

        def fail(error: Exception) -> None:
            if not isinstance(error, OSError):
                raise error
            if self.winfo_exists():
                text = f"{folder} can't be written ({error.strerror}): choose another folder."
                self._tell(text, is_error=True)

        self.app.in_background(lambda: add_preference(folder, chosen, rejected, prompt), added, fail)

    def choose_folder(self) -> None:
        """Ask where preferences are listed from now on."""
        question = PathQuestion("folder", "Folder of preferences", str(self.folder))
        if answer := ask_path(self.app, question, self):
            self.folder = Path(answer)
            self._tell(f"Preferences go to {self.folder / FILE_NAME}")

    def _tell(self, text: str, is_error: bool = False) -> None:
        self.note.configure(text=text, text_color=Theme.error if is_error else Theme.muted)
