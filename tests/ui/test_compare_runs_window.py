"""The window that compares runs: curves, settings, samples, and the grid of images."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from modules.config.errors import UserError
from modules.config.files import config_from_values
from modules.data.preference_pairs import read_preferences
from modules.runs.marks import read_marks
from modules.session.event_types import SampleEvent, SavedEvent
from modules.ui.models import SampleGrid as sample_grid
from modules.ui.models.SampleGrid import checkpoints_of, find_grids, make_grid, read_strengths
from modules.ui.models.trained_images import first_wish
from modules.ui.widgets.dialogs import open_window
from modules.ui.windows.CompareRunsWindow import CompareRunsWindow, table_rows
from tests.support.many_runs import START, add_events, make_run

STEPS = (10, 20)


@pytest.fixture
def app(shared_app):
    return shared_app


@pytest.fixture
def runs(tmp_path) -> tuple[Path, ...]:
    """Two runs with samples and models after 10 and 20 steps."""
    made = []
    for number in (1, 2):
        values = {"seed": number, "method": "lora", "sampling": {"samples": [{"prompt": "a cat"}, {"prompt": "a dog"}]}}
        run = make_run(tmp_path / f"cat-{number}", started=START + 100 * number, values=values)
        for step in STEPS:
            sample = run.samples_dir / f"step-{step:09d}" / "000_a cat_seed42.png"
            sample.parent.mkdir(parents=True)
            Image.new("RGB", (8, 8), (number * 90, step * 10, 0)).save(sample)
            model = run.models_dir / f"model-step{step:06d}.safetensors"
            model.parent.mkdir(exist_ok=True)
            model.touch()
            add_events(
                run,
                [(START + 500, SampleEvent(str(sample), "a cat", step)), (START + 500, SavedEvent(str(model), step))],
            )
        made.append(run.path)
    return tuple(made)


@pytest.fixture
def opened(app, runs, wait_for, settle) -> CompareRunsWindow:
    window = open_window(app, CompareRunsWindow, runs)
    wait_for(app, lambda: window.pages and window.pages["Grid"].boxes)
    settle(app)
    return window


def test_settings_that_differ_and_figures_stand_side_by_side(opened):
    rows = {row[0]: row[1:] for row in table_rows(opened.comparison)}
    assert rows["Seed"] == ("1", "2")
    assert rows["Steps"] == ("20", "20")
    assert "Method" not in rows
    assert "Validation loss" not in rows  # no run has any


def test_the_better_of_two_samples_is_listed_for_preference_training(app, opened, tmp_path, wait_for):
    pane = opened.pages["Samples"]
    pane.folder = tmp_path / "preferences"
    pane.prefer(1)
    assert "Choose two images of the same row" in pane.note.cget("text")
    pane.view.compare((0, 0), (0, 2))
    pane.prefer(1)
    wait_for(app, lambda: pane.num_added)
    (pair,) = read_preferences(str(pane.folder), "concepts.0")
    paths = pane.view.table.paths
    assert Path(pair.chosen).read_bytes() == Path(paths[0, 2]).read_bytes()
    assert Path(pair.rejected).read_bytes() == Path(paths[0, 0]).read_bytes()
    assert pair.prompt == "a cat"


def test_losses_are_drawn_over_steps_images_or_seconds(app, opened, settle):
    chart = opened.pages["Loss"]
    for name, last in (("Steps", 20), ("Images", 80), ("Seconds", 40)):
        chart._use_axis(name)
        assert chart._bounds[0] == last
        assert [line[-1][0] for line in chart._lines] == [last, last]
    chart.smooth_over(1)
    assert chart._lines[0][0][1] == 1.0
    chart.is_log.set(True)
    chart.redraw()
    settle(app)
    chart._hover(chart.canvas.winfo_width() // 2, chart.canvas.winfo_height() // 2)
    assert chart.canvas.find_withtag("hover")


def test_samples_are_compared_by_prompt_and_seed_with_a_slider(app, opened, wait_for):
    opened.show_page("Samples")
    view = opened.pages["Samples"].view
    assert view.table.rows == ("a cat\nseed 42",)
    assert [column.split("\n") for column in view.table.columns] == [
        [f"cat-{number}", f"step {step}"] for number in (1, 2) for step in STEPS
    ]
    view.cells.choose(1)
    view.cells.choose(3)
    wait_for(app, lambda: view.comparison._pictures is not None and view.comparison._titles[1] == "cat-2 step 20")
    assert view.comparison._titles[0] == "cat-1 step 20"


def test_a_grid_is_made_by_one_script_and_one_image_becomes_the_result(app, opened, runs, wait_for, monkeypatch):
    class Script:
        def __init__(self, grid):
            self.grid = grid

        def run(self):
            for cell in self.grid.cells:
                Image.new("RGB", (8, 8)).save(self.grid.folder / cell.file)
            return b"done"

        def cancel(self):
            raise AssertionError("it has ended")

    monkeypatch.setattr(sample_grid.SampleGrid, "script", lambda grid, standby: Script(grid))
    pane = opened.pages["Grid"]
    opened.show_page("Grid")
    assert list(pane.boxes) == list(STEPS)
    pane.strengths.delete(0, "end")
    pane.strengths.insert(0, "0.5, x")
    pane.generate()
    assert "Strength 'x'" in pane._note.cget("text")
    pane.strengths.delete(0, "end")
    pane.strengths.insert(0, "0.5 1")
    pane.generate()
    wait_for(app, lambda: len(pane.view.table.paths) == 8 and not pane.is_generating)
    assert len(pane.view.table.rows) == 2
    assert pane.view.table.columns[0] == "step 10\nstrength 0.50"
    pane.view.cells.choose(5)
    pane._star.invoke()
    wait_for(app, lambda: read_marks(runs[0]).result is not None)
    result = read_marks(runs[0]).result
    assert (result.step, result.strength, result.prompt, result.seed) == (10, 1.0, "a dog", 42)
    assert result.model == ("models/model-step000010.safetensors",)
    assert (runs[0] / result.image).is_file()
    wait_for(app, lambda: pane.view.table.starred == str(runs[0] / result.image))


def test_a_grid_of_full_models_has_no_strengths_and_is_found_again(runs, tmp_path):
    config = config_from_values({"method": "full", "model": {"base": "base"}})
    models = checkpoints_of(runs[0], [(10, "models/model-step000010.safetensors"), (30, "models/gone")])
    assert list(models) == [10]
    grid = make_grid(runs[0], config, models, [0.5, 1.0], ["a", "b"], first_wish(config, ()))
    assert [(cell.step, cell.strength, cell.prompt) for cell in grid.cells] == [(10, None, "a"), (10, None, "b")]
    assert grid.cells[0].options[:2] == ("--base", str(models[10][0]))
    assert find_grids(runs[0]) == [grid]
    assert grid.paths() == [None, None]
    for chosen, prompts in (({}, ["a"]), (models, [])):
        with pytest.raises(UserError, match="at least one"):
            make_grid(runs[0], config, chosen, [1.0], prompts, first_wish(config, ()))
    assert read_strengths("0.5, 0.5;1") == [0.5, 1.0]
    assert read_strengths("-1, 1", -4.0) == [-1.0, 1.0]
