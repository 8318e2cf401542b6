"""The tools tab: the log, TensorBoard, the dataset check, the doctor, the crash report and tools for LoRAs."""

from __future__ import annotations

import tkinter
import webbrowser
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

from modules.config.errors import UserError
from modules.session.RunFolder import RunFolder
from modules.ui.cards.Card import Card
from modules.ui.models.TensorBoard import TensorBoard
from modules.ui.tabs.SlicedTab import SlicedTab
from modules.ui.widgets.dialogs import open_window
from modules.ui.widgets.LogPane import LogPane
from modules.ui.windows.CrashReportWindow import CrashReportWindow

if TYPE_CHECKING:
    from modules.ui.App import App
    from modules.ui.models.RunState import RunState


NUM_CARDS = 5
OPEN_TEXTS = ("Open TensorBoard", "All runs")  # of this run, and with those beside it


class ToolsTab(SlicedTab):
    """The log and buttons for the tools. TensorBoard ends with the window."""

    def __init__(self, parent: tkinter.Misc, app: App):
        super().__init__(parent, app)
        self.tensorboard = TensorBoard()
        self.grid_columnconfigure(tuple(range(NUM_CARDS)), weight=1, uniform="cards")
        self.grid_rowconfigure(1, weight=1)
        self.log = LogPane(self, app)
        self.log.grid(row=1, column=0, columnspan=NUM_CARDS, sticky="nsew", padx=8, pady=(4, 8))
        app.in_slices(self._steps)

    def destroy(self) -> None:
        self.tensorboard.stop()
        super().destroy()

    def open_tensorboard(self, with_others: bool = False) -> None:
        """Open TensorBoard in the browser for the current run, or for the run folder of the settings. with_others: for
        all runs beside it, too."""
        try:
            folder = RunFolder(self.app.run.state.folder or self.app.settings.get("workspace_dir"))
        except UserError as error:
            self.app.show_message(str(error), "error")
            return
        for button in self._open:
            button.configure(state="disabled")
        self._open[with_others].configure(text="Starting…")
        tensorboard, shown = self.tensorboard, folder.path.parent if with_others else folder.tensorboard_dir
        self.app.in_background(lambda: open_in_browser(tensorboard, shown), self._opened, self._not_opened)

    def check_data(self) -> None:
        """Check the dataset of the settings."""
        from modules.ui.windows.HealthWindow import HealthWindow

        open_window(self.app, HealthWindow).check()

    def open_doctor(self) -> None:
        """Check whether this machine can train the settings."""
        from modules.ui.windows.DoctorWindow import DoctorWindow

        open_window(self.app, DoctorWindow).check()

    def open_model_tools(self) -> None:
        """Merge, combine, resize, extract or convert LoRAs and models."""
        from modules.ui.windows.ModelToolsWindow import ModelToolsWindow

        open_window(self.app, ModelToolsWindow)

    def show_report(self) -> CrashReportWindow | None:
        """Open the report of the current run; None if there is no run."""
        folder = self.app.run.state.folder
        return None if folder is None else open_window(self.app, CrashReportWindow, folder)

    def _opened(self, url: str) -> None:
        if self.winfo_exists():
            self._offer_again()
            self.app.show_message(f"TensorBoard is at {url} as long as this window is open.", "info")

    def _not_opened(self, error: Exception) -> None:
        if self.winfo_exists():
            self._offer_again()
        if not isinstance(error, UserError):
            raise error
        if self.winfo_exists():
            self.app.show_message(str(error), "error")

    def _offer_again(self) -> None:
        for button, text in zip(self._open, OPEN_TEXTS, strict=True):
            button.configure(state="normal", text=text)

    def _on_run(self, state: RunState) -> None:
        wanted = "normal" if state.exit is not None else "disabled"
        if self._report.cget("state") != wanted:
            self._report.configure(state=wanted)

    def _build(self) -> Generator[None, None, None]:
        """Build the tab in slices, so that opening it never stalls the window."""
        curves = self._add_card(0, "Curves", "Loss, learning rate and speed of this run, or of all, in the browser.")
        opens = (self.open_tensorboard, lambda: self.open_tensorboard(with_others=True))
        self._open = curves.add_buttons(2, *zip(OPEN_TEXTS, opens, strict=True))
        yield
        data = self._add_card(1, "Data", "Missing captions, damaged, tiny and duplicate images, empty buckets.")
        data.add_buttons(2, ("Check data", self.check_data))
        yield
        machine = self._add_card(2, "Machine", "Whether PyTorch, GPUs, links, disks and network are fit to train.")
        machine.add_buttons(2, ("Doctor", self.open_doctor))
        yield
        models = self._add_card(3, "Models", "Merge, combine, resize, extract and convert LoRAs and models.")
        models.add_buttons(2, ("LoRA and model tools", self.open_model_tools))
        yield
        report = self._add_card(4, "Report", "Why a run ended, with names and secrets removed, ready to share.")
        (self._report,) = report.add_buttons(2, ("Crash report", self.show_report))
        self._ends.append(self.app.run.subscribe(self._on_run))
        self._on_run(self.app.run.state)

    def _add_card(self, column: int, title: str, text: str) -> Card:
        card = Card(self, self.app, title)
        card.grid(
            row=0,
            column=column,
            sticky="nsew",
            padx=(8 if column == 0 else 4, 8 if column == NUM_CARDS - 1 else 4),
            pady=4,
        )
        card.add_note(1).configure(text=text)
        return card


def open_in_browser(tensorboard: TensorBoard, folder: Path) -> str:
    url = tensorboard.start(folder)
    webbrowser.open(url)
    return url
