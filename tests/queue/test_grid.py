"""A grid of settings: which runs it makes, and what they are called."""

from __future__ import annotations

from dataclasses import replace

import pytest

from modules.config.errors import UserError
from modules.config.files import config_from_values
from modules.config.presets import load_preset
from modules.queue.grid import Axis, count_text, grid_entries, make_axis, make_grid, read_axis, short_names
from modules.queue.queue_text import read_hours, read_time

DEMO = replace(config_from_values(load_preset("demo")), workspace_dir="runs/cat")
AXES = [Axis("lora.rank", ("4", "8")), Axis("optimizer.learning_rate", ("1e-4", "2e-4")), Axis("seed", ("1", "2"))]


def test_a_grid_has_a_run_for_every_combination():
    runs = make_grid(DEMO, AXES)
    assert len(runs) == 8
    found = [(run.config.lora.rank, run.config.optimizer.learning_rate, run.config.seed) for run in runs]
    assert found[:3] == [(4, 1e-4, 1), (4, 1e-4, 2), (4, 2e-4, 1)]
    assert len(set(found)) == len({run.config.workspace_dir for run in runs}) == 8
    assert count_text(AXES) == "2 x 2 x 2 = 8 runs"


def test_names_folders_and_models_say_what_differs():
    run = make_grid(DEMO, AXES)[-1]
    assert run.name == "rank=8 learning_rate=2e-4 seed=2"
    assert run.config.workspace_dir == "runs/cat-rank=8-learning_rate=2e-4-seed=2"
    assert run.config.output.name == f"{DEMO.output.name}-rank=8-learning_rate=2e-4-seed=2"
    assert grid_entries([run], "cat")[0][1].name == "cat rank=8 learning_rate=2e-4 seed=2"


def test_settings_with_the_same_last_name_are_told_apart():
    assert short_names(["lora.rank", "seed", "denoiser.rank"]) == ["lora.rank", "seed", "denoiser.rank"]


def test_values_that_no_folder_can_be_called_get_another_name():
    run = make_grid(DEMO, [Axis("sampling.samples.0.prompt", ("a/b: c",))])[0]
    assert "/" not in run.config.workspace_dir.removeprefix("runs/")


@pytest.mark.parametrize(
    ("text", "axis"),
    [
        ("lora.rank=4, 8,16", Axis("lora.rank", ("4", "8", "16"))),
        ('prompt=["a, b", c]', Axis("prompt", ("a, b", "c"))),
        ("model.compile=[true, false]", Axis("model.compile", ("true", "false"))),
    ],
)
def test_values_are_written_with_commas_or_as_a_list(text, axis):
    assert read_axis(text) == axis


@pytest.mark.parametrize(
    ("axes", "reason"),
    [
        ([], "has no setting"),
        ([Axis("lora.rnk", ("4",))], "did you mean lora.rank"),
        ([Axis("lora.rank", ("0",))], "lora.rank is 0"),
        ([Axis("seed", ("1",)), Axis("seed", ("2",))], "seed is in the grid twice"),
        ([Axis("seed", tuple(map(str, range(501))))], "has 501 runs: at most 500"),
        ([Axis("model.weight_dtype", ("no_such",))], "model.weight_dtype"),
    ],
)
def test_grids_that_make_no_sense_are_refused(axes, reason):
    with pytest.raises(UserError, match=reason):
        make_grid(DEMO, axes)


@pytest.mark.parametrize(("values", "reason"), [("", "empty value"), ("4,,8", "empty value"), ("4, 4", "4 twice")])
def test_values_are_neither_empty_nor_twice(values, reason):
    with pytest.raises(UserError, match=reason):
        make_axis("seed", values)


NOON = 1_781_524_800.0  # 2026-06-15 12:00 UTC


def test_a_start_is_the_next_such_time(monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    import time

    time.tzset()
    assert read_time("22:30", NOON) == NOON + 10.5 * 3600
    assert read_time("11:00", NOON) == NOON + 23 * 3600
    assert read_time("2026-06-16 12:00", NOON) == NOON + 24 * 3600
    assert read_time("", NOON) is read_time("now", NOON) is None
    for text in ("25:00", "tomorrow", "2026-13-01"):
        with pytest.raises(UserError, match="write a time"):
            read_time(text, NOON)


def test_a_limit_is_a_number_of_hours():
    assert [read_hours(text) for text in ("2", "0.5 h", "", "none")] == [2.0, 0.5, None, None]
    for text in ("0", "-1", "nan", "two"):
        with pytest.raises(UserError, match="write hours"):
            read_hours(text)
