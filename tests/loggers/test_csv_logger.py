"""The table of a training's figures, also after a kill and a resume."""

import csv

import pytest

from modules.loggers.CsvLogger import CsvLogger
from modules.loggers.Logger import LoggedRun


@pytest.fixture
def write(tmp_path, step_info):
    def write(steps, loss=1.0, run=None, **options):
        logger = CsvLogger(**options)
        logger.start(run or LoggedRun(tmp_path))
        for step in steps:
            logger.on_step(step_info(step, loss=loss))
        return logger

    return write


def table(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_each_step_has_a_row_that_validation_and_epoch_complete(write, tmp_path):
    logger = write([1, 2])
    logger.on_validation(2, 9, 0.5, None)
    logger.on_epoch(1, {"train_loss": 0.25})
    rows = table(tmp_path / "metrics.csv")  # complete before it is closed
    assert [(row["step"], row["validation/loss"], row["epoch/train_loss"]) for row in rows] == [
        ("1", "", ""), ("2", "0.5", "0.25"),
    ]  # fmt: skip
    assert (rows[0]["lr/unet"], rows[0]["train/samples_per_sec"], rows[0]["memory/allocated_gib"]) == (
        "0.0001", "8.0", "1.0",
    )  # fmt: skip
    logger.close()


def test_a_step_that_is_trained_again_replaces_its_row_and_what_a_kill_left_of_one_is_gone(write, tmp_path):
    write([1, 2, 3, 4, 5]).close()
    path = tmp_path / "metrics.csv"
    with path.open("a", encoding="utf-8") as file:
        file.write("6,1.0,1.")
    write([4, 5], loss=2.0).close()
    assert [(row["step"], row["loss"]) for row in table(path)] == [
        ("1", "1.0"), ("2", "1.0"), ("3", "1.0"), ("4", "2.0"), ("5", "2.0"),
    ]  # fmt: skip


def test_what_is_measured_before_the_first_step_after_a_resume_joins_its_row(write, tmp_path):
    write([1, 2]).close()
    logger = write([])
    logger.on_validation(2, 9, 0.5, None)
    logger.close()
    columns = ("step", "loss", "validation/loss")
    rows = [tuple(row[name] for name in columns) for row in table(tmp_path / "metrics.csv")]
    assert rows == [("1", "1.0", ""), ("2", "1.0", "0.5")]


def test_a_file_of_something_else_is_left_alone_with_one_warning(write, tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("name,age\nme,9\n", encoding="utf-8")
    warnings = []
    write([1, 2], run=LoggedRun(tmp_path, warn=warnings.append), path=path).close()
    assert warnings == [f"CSV logging stops: {path} is not a table of a training: rename it, or choose another path."]
    assert path.read_text(encoding="utf-8").startswith("name,age")


def test_only_every_so_many_steps_are_logged_if_one_says_so(write, tmp_path):
    write([1, 2, 3, 4], every_steps=2).close()
    assert [row["step"] for row in table(tmp_path / "metrics.csv")] == ["2", "4"]
