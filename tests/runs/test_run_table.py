"""The table of runs, and what differs between their settings."""

from pathlib import Path

import pytest

from modules.config.files import config_from_values
from modules.config.presets import load_preset
from modules.runs.marks import Marks
from modules.runs.RunRow import RunRow
from modules.runs.RunTable import RunTable, TableRun
from modules.runs.settings_of_run import changed_values, closest_preset, differences, settings_of


def settings(**values) -> dict:
    return settings_of(config_from_values(values))


def row(name: str, started: float, **values) -> RunRow:
    return RunRow(name, **{"is_read": True, "status": "finished", "started": started, **values})


@pytest.fixture
def table(tmp_path) -> RunTable:
    fast = settings(optimizer={"learning_rate": 0.5}, model={"base": "/models/my-sdxl/"})
    rows = [
        row("b", 2.0, settings=fast, loss=0.5, seconds=90.0, marks=Marks("Fast one", ("good",), star=True)),
        row("a", 1.0, settings=settings(), status="failed", reason="out of memory"),
        row("c", 3.0, settings=fast, loss=0.1, step=5, total=9, status="stopped"),
        RunRow("new"),
    ]
    made = RunTable()
    made.take([(tmp_path, rows), (tmp_path / "other", [row("d", 2.5, settings=settings())])])
    return made


def names(table: RunTable) -> list[str]:
    return [run.row.name for run in table.shown()]


def test_runs_are_sorted_by_each_column_both_ways(table):
    assert names(table) == ["c", "d", "b", "a", "new"]
    table.sort_by("started")
    assert names(table) == ["new", "a", "b", "d", "c"]
    table.sort_by("loss")
    assert names(table)[:2] == ["c", "b"]
    table.sort_by("name")
    assert names(table) == ["a", "c", "d", "b", "new"]


def test_filter_and_search_leave_what_matches_all_words(table):
    assert table.counts() == {"all": 5, "starred": 1, "running": 0, "finished": 2, "stopped": 2, "failed": 1}
    for text, found in {
        "fast GOOD": "b",
        "tag:good": "b",
        "base:sdxl": "cb",
        "state:fail memory": "a",
        "no": "",
    }.items():
        table.text = text
        assert names(table) == list(found), text
    table.text, table.filter_name = "", "starred"
    assert names(table) == ["b"]


def test_differing_paths_are_said_by_their_last_two_parts_unless_these_are_alike():
    def text(before: str, after: str) -> str:
        first, then = (row("run", 1.0, settings={"model.base": base}) for base in (before, after))
        return TableRun(Path("run"), then, first).changes_text()

    assert text("/me/models/sdxl", r"D:\models\pony\v6.ckpt") == "Base model models/sdxl → pony/v6.ckpt"
    assert text("/one/models/sdxl", "/two/models/sdxl") == "Base model /one/models/sdxl → /two/models/sdxl"
    assert text("org/name", "/a/b/c") == "Base model org/name → b/c"


def test_each_run_says_what_differs_from_the_one_before_in_its_folder(table):
    texts = {run.row.name: run.changes_text() for run in table.runs}
    assert texts["b"].startswith("Base model")
    assert "Optimizer: Learning rate" in texts["b"]
    assert texts["b"].endswith(" → 0.5")
    assert (texts["a"], texts["c"], texts["d"], texts["new"]) == ("first run here", "nothing", "first run here", "")
    assert {run.row.name: run.state() for run in table.runs}["c"] == "stopped 5/9"


def test_settings_that_differ_are_named_by_label_with_values_as_people_read_them():
    first = settings(max_steps=100, concepts=[{"path": "/cats"}], data={"resolution": 512}, workspace_dir="a")
    other = settings(concepts=[{"path": "/cats"}, {"path": "/dogs", "repeats": 3}], method="full", workspace_dir="b")
    found = {one.path: one for one in differences([first, other, None])}
    assert found["method"].values == ("LoRA", "Full fine-tune", "?")
    assert found["max_steps"].label == "Max steps"
    assert (
        found["concepts"].values == ("1 folder of images", "2 folders of images", "?")
        or "1" in found["concepts"].values[0]
    )
    assert found["concepts.1.path"].values == ("—", "/dogs", "?")
    assert "workspace_dir" not in found
    assert "concepts.0.path" not in found
    assert differences([first, first]) == []


def test_the_difference_of_a_run_can_be_applied_to_other_settings():
    run = settings(max_steps=100, optimizer={"learning_rate": 0.5}, concepts=[{"path": "/cats"}])
    before = settings(max_steps=100, seed=3)
    assert changed_values(run, before) == {"seed": settings_default("seed"), "optimizer.learning_rate": 0.5}


def settings_default(path: str):
    from modules.config.describe import settings_by_path

    return settings_by_path()[path].default


def test_the_closest_preset_is_found_by_family_and_method():
    values = load_preset("sdxl-lora")
    values["concepts"] = [{"path": "/cats"}]
    assert closest_preset(settings(**values)) == ("sdxl-lora", 0)
    values["seed"] = 77
    assert closest_preset(settings(**values)) == ("sdxl-lora", 1)
