"""A grid of images by checkpoint, strength and prompt, one of which can be chosen as the result of its run."""

from __future__ import annotations

import tkinter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import customtkinter as ctk

from modules.config.errors import UserError
from modules.config.files import load_config
from modules.config.methods import facts_of
from modules.runs.marks import change_marks, read_marks
from modules.session.RunFolder import RunFolder
from modules.ui.models.SampleGrid import MAX_STRENGTH, SampleGrid, checkpoints_of, find_grids, make_grid, read_strengths
from modules.ui.models.trained_images import first_wish, read_number
from modules.ui.theme import Theme
from modules.ui.widgets.fitting import lay_in_rows, wrap_to
from modules.ui.widgets.Page import Page
from modules.ui.widgets.PictureTable import PictureTable, PictureTableView
from modules.ui.widgets.Textbox import Textbox

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig
    from modules.runs.comparison import ComparedRun
    from modules.ui.App import App
    from modules.ui.models.ScriptRun import ScriptRun
    from modules.ui.models.trained_images import ImageWish

LOOK_SECONDS = 0.5  # between two looks at which images are there
WIDTH, PROMPTS_HEIGHT = 250, 90
FIELDS = {"seed": "Seed", "steps": "Steps", "guidance": "CFG"}
STRENGTHS = {False: "0.6, 0.8, 1", True: "-2, -1, 1, 2"}  # at first, by whether the LoRA goes both ways
MAX_CHECKPOINTS = 8  # that are ticked at first: the last ones


class GridPane(ctk.CTkFrame):
    """runs: those whose checkpoints can be chosen, one run at a time."""

    def __init__(self, parent: tkinter.Misc, app: App, runs: Sequence[ComparedRun]):
        super().__init__(parent, fg_color="transparent")
        self.app, self.runs = app, list(runs)
        self.run: ComparedRun | None = None
        self.grid_shown: SampleGrid | None = None
        self._config: TrainConfig | None = None
        self._models: dict[int, list[Path]] = {}
        self._script: ScriptRun | None = None
        self._chosen: int | None = None  # the number of a cell
        self._paths: list[str | None] = []
        self._is_looking = False
        self.grid_columnconfigure(1, weight=1)
        self.grid_rowconfigure(0, weight=1)
        self._build()
        self.view = PictureTableView(
            self, app, "The images appear here, by checkpoint, strength and prompt.", self._choose_cell
        )
        self.view.grid(row=0, column=1, sticky="nsew", padx=(8, 0))
        self._stop_looking = app.every(LOOK_SECONDS, self._look)
        if self.runs:
            self.use(self.runs[0].name)

    def destroy(self) -> None:
        self._stop_looking()
        self.cancel()
        super().destroy()

    @property
    def is_generating(self) -> bool:
        return self._script is not None

    # --- actions -----------------------------------------------------------------------------------------------------

    def use(self, name: str) -> None:
        """Offer the checkpoints of a run, and show its last grid."""
        self.cancel()
        run = self.run = next(run for run in self.runs if run.name == name)

        def read() -> tuple[TrainConfig, dict[int, list[Path]], list[SampleGrid]]:
            config = load_config(RunFolder(run.folder).config_path)
            return config, checkpoints_of(run.folder, run.row.saved), find_grids(run.folder)

        def show(found: tuple[TrainConfig, dict[int, list[Path]], list[SampleGrid]]) -> None:
            if self.winfo_exists() and self.run is run:
                self._offer(*found)

        self.app.in_background(read, show, self._tell_error)

    def generate(self) -> None:
        """Generate a new grid of what is chosen, or cancel that."""
        if self.is_generating:
            self.cancel()
            self._tell("Canceled. The images that are there are kept.")
            return
        run, config = self.run, self._config
        if run is None or config is None:
            return
        try:
            wish = self._read_wish(config)
            models = {step: self._models[step] for step, box in self.boxes.items() if box.get()}
            lowest = -MAX_STRENGTH if facts_of(config).goes_both_ways else 0.0
            strengths = read_strengths(self.strengths.get(), lowest)
            prompts = [line.strip() for line in self.prompts.get("1.0", "end-1c").splitlines() if line.strip()]
            grid = make_grid(run.folder, config, models, strengths, prompts, wish)
        except UserError as error:
            self._tell(str(error), Theme.error)
            return
        self._show_grid(grid)
        script = self._script = grid.script(self.app.standby.take)
        self.button.configure(text="Cancel")
        self._tell("Loading the model…")

        def end(output: bytes | None) -> None:
            if script is self._script and self.winfo_exists():
                self._end()
                self._look()

        def fail(error: Exception) -> None:
            is_wanted = script is self._script and self.winfo_exists()
            if is_wanted:
                self._end()
            if not isinstance(error, UserError):
                raise error
            if is_wanted:
                self._tell(str(error), Theme.error)

        self.app.in_background(script.run, end, fail)

    def cancel(self) -> None:
        if self._script is not None:
            self._script.cancel()
            self._end()

    def star(self) -> None:
        """Note the chosen image as the result of its run."""
        run, grid, number = self.run, self.grid_shown, self._chosen
        if run is None or grid is None or number is None:
            return

        def show(marks: Any) -> None:
            if self.winfo_exists():
                self._tell(f"{Path(marks.result.image).name} is now the result of {run.name}.")
                self._show_table(marks.result.image)

        result = grid.result(run.folder, number)
        self.app.in_background(partial(change_marks, run.folder, result=result), show, self._tell_error)

    # --- what is shown -----------------------------------------------------------------------------------------------

    def _offer(self, config: TrainConfig, models: dict[int, list[Path]], grids: list[SampleGrid]) -> None:
        self._config, self._models = config, models
        for child in self._boxes.winfo_children():
            child.destroy()
        self.boxes: dict[int, ctk.CTkCheckBox] = {}
        for step in models:
            box = ctk.CTkCheckBox(
                self._boxes, text=f"step {step:,}", font=self.app.theme.font(12), checkbox_width=18, checkbox_height=18
            )
            box.grid(sticky="w", pady=1)
            if step in list(models)[-MAX_CHECKPOINTS:]:
                box.select()
            self.boxes[step] = box
        if not models:
            text = "This run has saved no model that is still there."
            font = self.app.theme.font(12)
            label = ctk.CTkLabel(self._boxes, text=text, font=font, wraplength=WIDTH - 40, justify="left", anchor="w")
            label.grid(sticky="w")
        wish = first_wish(config, ())
        prompts = [sample.prompt for sample in config.sampling.samples if sample.enabled and sample.prompt]
        self.prompts.delete("1.0", "end")
        self.prompts.insert("1.0", "\n".join(dict.fromkeys(" ".join(prompt.split()) for prompt in prompts)))
        for name, entry in self.entries.items():
            entry.delete(0, "end")
            entry.insert(0, f"{getattr(wish, name):g}" if name != "seed" else str(wish.seed))
        facts = facts_of(config)
        for widget in self._strength_row:
            widget.grid() if facts.trains_adapters else widget.grid_remove()
        if self.strengths.get() in STRENGTHS.values():  # nobody has written others
            self.strengths.delete(0, "end")
            self.strengths.insert(0, STRENGTHS[facts.goes_both_ways])
        self._show_grid(grids[0] if grids else None)

    def _show_grid(self, grid: SampleGrid | None) -> None:
        self.grid_shown, self._chosen, self._paths = grid, None, []
        self._star.configure(state="disabled")
        self._show_table()
        self._look()

    def _look(self) -> None:
        """Show the images that have come."""
        grid, run = self.grid_shown, self.run
        if grid is None or run is None or self._is_looking or (self._paths and None not in self._paths):
            return
        self._is_looking = True

        def take(found: tuple[list[str | None], str]) -> None:
            self._is_looking = False
            if self.winfo_exists() and self.grid_shown is grid and found[0] != self._paths:
                self._paths = found[0]
                self._show_table(found[1])
                done = len(self._paths) - self._paths.count(None)
                if self.is_generating:
                    self._tell(f"{done:,} of {len(self._paths):,}")

        def fail(error: Exception) -> None:
            self._is_looking = False
            self._tell_error(error)

        def look() -> tuple[list[str | None], str]:
            result = read_marks(run.folder).result
            return grid.paths(), "" if result is None else result.image

        self.app.in_background(look, take, fail)

    def _show_table(self, starred: str = "") -> None:
        grid, run = self.grid_shown, self.run
        if grid is None or run is None:
            self.view.show(PictureTable())
            return
        rows, columns = (list(dict.fromkeys(getattr(cell, one) for cell in grid.cells)) for one in ("row", "column"))
        paths = {
            (rows.index(cell.row), columns.index(cell.column)): path
            for cell, path in zip(grid.cells, self._paths, strict=False)
            if path is not None
        }
        best = str(run.folder / starred) if starred else ""
        self.view.show(PictureTable(tuple(rows), tuple(columns), paths, best))

    def _choose_cell(self, row: int, column: int) -> None:
        grid = self.grid_shown
        if grid is not None:
            path = self.view.table.paths[row, column]
            self._chosen = next(number for number, one in enumerate(self._paths) if one == path)
            self._star.configure(state="normal")

    def _read_wish(self, config: TrainConfig) -> ImageWish:
        values: dict[str, Any] = {}
        for name, label in FIELDS.items():
            text = self.entries[name].get().strip()
            try:
                values[name] = read_number(name, text)
            except ValueError as error:
                raise UserError(f"{label} {text!r} must be {error}.") from error
        return replace(first_wish(config, ()), **values)

    def _end(self) -> None:
        self._script = None
        if self.winfo_exists():
            self.button.configure(text="Generate")
            self._tell("" if self.grid_shown is None else f"Saved in {self.grid_shown.folder}")

    def _tell(self, text: str, colour: Any = Theme.muted) -> None:
        self._note.configure(text=text, text_color=colour)

    def _tell_error(self, error: Exception) -> None:
        if not isinstance(error, UserError | OSError):
            raise error
        if self.winfo_exists():
            self._tell(str(error), Theme.error)
        else:
            self.app.show_message(str(error), "error")

    # --- widgets -----------------------------------------------------------------------------------------------------

    def _build(self) -> None:
        theme, font, small = self.app.theme, self.app.theme.font(), self.app.theme.font(12)
        side = ctk.CTkFrame(self)
        side.grid(row=0, column=0, sticky="nsew")
        side.grid_rowconfigure(0, weight=1)
        page = Page(side, width=WIDTH)
        page.grid(row=0, column=0, sticky="nsew", padx=4, pady=4)
        page.grid_columnconfigure(0, weight=1)

        def add(title: str, widget: Any) -> tuple[Any, ...]:
            label = ctk.CTkLabel(page, text=title, font=small, text_color=Theme.muted, anchor="w", height=18)
            label.grid(sticky="ew", padx=8, pady=(6, 2))
            widget.grid(sticky="ew", padx=8)
            return label, widget

        if len(self.runs) > 1:
            menu = ctk.CTkOptionMenu(page, values=[run.name for run in self.runs], font=font, command=self.use)
            menu.set(self.runs[0].name)
            add("Run", menu)
        self._boxes = ctk.CTkFrame(page, fg_color="transparent")
        self.boxes = {}
        add("Checkpoints", self._boxes)
        self.strengths = ctk.CTkEntry(page, font=font, height=28)
        self.strengths.insert(0, STRENGTHS[False])
        self._strength_row = add("Strengths of the LoRA", self.strengths)
        self.prompts = Textbox(page, height=PROMPTS_HEIGHT, wrap="word", font=font)
        add("Prompts, one per line", self.prompts)
        row = ctk.CTkFrame(page, fg_color="transparent")
        row.grid(sticky="ew", padx=8, pady=(6, 0))
        self.entries: dict[str, ctk.CTkEntry] = {}
        for column, (name, label) in enumerate(FIELDS.items()):
            row.grid_columnconfigure(column, weight=1)
            ctk.CTkLabel(row, text=label, font=small, text_color=Theme.muted, height=18).grid(row=0, column=column)
            self.entries[name] = ctk.CTkEntry(row, width=60, height=28, font=font)
            self.entries[name].grid(row=1, column=column, sticky="ew", padx=(0 if column == 0 else 6, 0))
        bar = ctk.CTkFrame(side, fg_color="transparent")
        bar.grid(row=1, column=0, sticky="ew", padx=12, pady=(6, 2))
        self.button = ctk.CTkButton(
            bar, text="Generate", width=100, height=30, font=theme.font(13, "bold"), fg_color=Theme.start,
            hover_color=Theme.start_hover, text_color=Theme.on_accent, command=self.generate,
        )  # fmt: skip
        self._star = ctk.CTkButton(
            bar, text="Choose as result", width=100, height=30, font=font, command=self.star, state="disabled"
        )
        lay_in_rows(bar, [self.button, self._star], theme)
        self._note = ctk.CTkLabel(side, text="", font=small, text_color=Theme.muted, anchor="w", justify="left")
        self._note.grid(row=2, column=0, sticky="ew", padx=12, pady=(0, 8))
        wrap_to(side, self._note, theme, 30)
