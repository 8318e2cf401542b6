"""Compares runs: their loss, the settings that differ, their samples, and a grid of images of their checkpoints."""

from __future__ import annotations

from pathlib import Path
from tkinter import ttk
from typing import TYPE_CHECKING

import customtkinter as ctk

from modules.config.errors import UserError
from modules.config.visible_text import visible_line
from modules.runs.comparison import Comparison, compare_runs
from modules.runs.RunTable import TableRun, loss_text, spoken_duration
from modules.session.following import recorded_path
from modules.session.RunFolder import RunFolder
from modules.ui.models.path_picker import SAVE_FOLDER
from modules.ui.models.RunState import SamplePicture
from modules.ui.models.SampleTable import arrange_samples
from modules.ui.theme import Theme
from modules.ui.widgets.CurvesChart import CurvesChart, NamedCurve
from modules.ui.widgets.dialogs import set_size, show_over
from modules.ui.widgets.fitting import fit_columns
from modules.ui.widgets.PictureTable import PictureTable
from modules.ui.widgets.scrolling import make_scrollbar
from modules.ui.windows.GridPane import GridPane
from modules.ui.windows.PreferencePane import PreferencePane

if TYPE_CHECKING:
    from modules.ui.App import App

PAGES = ("Loss", "Settings", "Samples", "Grid")
MAX_RUNS = 8  # as many as there are colours


class CompareRunsWindow(ctk.CTkToplevel):
    """folders: of the runs, up to MAX_RUNS of them; with one run, its checkpoints can be compared."""

    def __init__(self, app: App, folders: tuple[Path, ...]):
        super().__init__(app.root, fg_color=Theme.page)
        self.app = app
        self.comparison: Comparison | None = None
        self.pages: dict[str, ctk.CTkBaseClass] = {}
        self.title("Compare runs")
        set_size(self, "1240x760", (640, 420))
        self.grid_columnconfigure(0, weight=1)
        self.grid_rowconfigure(1, weight=1)
        font = app.theme.font()
        bar = ctk.CTkFrame(self, fg_color="transparent")
        bar.grid(row=0, column=0, sticky="ew", padx=12, pady=(12, 8))
        bar.grid_columnconfigure(1, weight=1)
        self.choice = ctk.CTkSegmentedButton(bar, values=list(PAGES), font=font, command=self.show_page)
        self.choice.grid(row=0, column=0)
        self.note = ctk.CTkLabel(bar, text="Reading the runs…", font=font, text_color=Theme.muted, anchor="w")
        self.note.grid(row=0, column=1, sticky="ew", padx=12)
        self.bind("<Escape>", lambda event: self.destroy())
        show_over(app, self)
        left_out = len(folders) - MAX_RUNS

        def compare() -> tuple[Comparison, tuple[PictureTable, tuple[str, ...]]]:
            comparison = compare_runs(folders[:MAX_RUNS])
            return comparison, sample_table(comparison)

        def show(found: tuple[Comparison, tuple[PictureTable, tuple[str, ...]]]) -> None:
            if self.winfo_exists():
                self.note.configure(
                    text=f"The first {MAX_RUNS} runs; {left_out} more were left out." if left_out > 0 else ""
                )
                self._show(*found)

        self.app.in_background(compare, show, self._tell_error)

    def show_page(self, name: str) -> None:
        """Bring a page to the front."""
        for page in self.pages.values():
            page.grid_remove()
        if name in self.pages:
            self.choice.set(name)
            self.pages[name].grid(row=1, column=0, sticky="nsew", padx=12, pady=(0, 12))

    def _show(self, comparison: Comparison, samples: tuple[PictureTable, tuple[str, ...]]) -> None:
        self.comparison = comparison
        chart = CurvesChart(self, self.app)
        chart.show([NamedCurve(run.name, run.points()) for run in comparison.runs])
        pictures = PreferencePane(self, self.app, *samples, Path(SAVE_FOLDER, "preferences").absolute())
        grid = GridPane(self, self.app, comparison.runs)
        self.pages = {"Loss": chart, "Settings": self._make_table(comparison), "Samples": pictures, "Grid": grid}
        self.show_page("Loss")

    def _make_table(self, comparison: Comparison) -> ctk.CTkFrame:
        """A column for each run: figures first, then the settings that differ."""
        frame = ctk.CTkFrame(self)
        frame.grid_columnconfigure(0, weight=1)
        frame.grid_rowconfigure(0, weight=1)
        names = [f"run{number}" for number in range(len(comparison.runs))]
        columns = ["setting", *names]
        table = ttk.Treeview(frame, columns=columns, show="headings", selectmode="browse")
        for name, title in zip(columns, ("", *(run.name for run in comparison.runs)), strict=True):
            table.heading(name, text=visible_line(title), anchor="w")
        make_scrollbar(frame, table, row=0, column=1)
        fit_columns(table, {"setting": 260, **dict.fromkeys(names, 200)}, self.app.theme)
        table.grid(row=0, column=0, sticky="nsew", padx=(6, 0), pady=6)
        for row in table_rows(comparison):
            table.insert("", "end", values=[visible_line(cell) for cell in row])
        return frame

    def _tell_error(self, error: Exception) -> None:
        if not isinstance(error, UserError):
            raise error
        if self.winfo_exists():
            self.note.configure(text=str(error), text_color=Theme.error)


def table_rows(comparison: Comparison) -> list[tuple[str, ...]]:
    """Figures of the runs, and the settings that differ: title, then a cell for each run."""
    runs = comparison.runs
    figures: list[tuple[str, ...]] = [
        ("State", *(TableRun(run.folder, run.row).state() for run in runs)),
        ("Steps", *(f"{run.row.step:,}" for run in runs)),
        ("Images trained", *(f"{run.row.images:,}" for run in runs)),
        ("Duration", *(spoken_duration(run.row.seconds) for run in runs)),
        ("Loss", *(loss_text(run.row.loss) for run in runs)),
        ("Validation loss", *(loss_text(run.row.validation) for run in runs)),
    ]
    differing = [(one.label, *one.values) for one in comparison.differences]
    same = [("All settings are the same", *("" for _ in runs))] if len(runs) > 1 and not differing else []
    return [*(row for row in figures if any(row[1:])), *differing, *same]


def sample_table(comparison: Comparison) -> tuple[PictureTable, tuple[str, ...]]:
    """The samples of all runs, and the prompts of the rows: a row for each prompt and seed, and a column for each step
    of each run. Looks at the disk, and leaves out images that are gone."""
    rows: dict[tuple[str, int | None, int], None] = {}
    columns: list[str] = []
    found: dict[tuple[tuple[str, int | None, int], int], str] = {}
    for run in comparison.runs:
        folder = RunFolder(run.folder).samples_dir
        taken = [SamplePicture(one.step, one.prompt, recorded_path(one.path, folder)) for one in run.events.samples]
        table = arrange_samples(picture for picture in taken if picture.path.is_file())
        for step in table.steps:
            for row in table.rows:
                if (path := table.paths.get((row, step))) is not None:
                    key = row.prompt, row.seed, row.repeat
                    rows.setdefault(key)
                    found[key, len(columns)] = path
            columns.append(f"{run.name}\nstep {step:,}")
    order = list(rows)
    titles = tuple(f"{' '.join(prompt.split())}\n{'' if seed is None else f'seed {seed}'}" for prompt, seed, _ in order)
    paths = {(order.index(key), column): path for (key, column), path in found.items()}
    return PictureTable(titles, tuple(columns), paths), tuple(prompt for prompt, _, _ in order)
