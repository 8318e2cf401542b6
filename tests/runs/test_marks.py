"""What is noted about a run."""

import json

import pytest

from modules.config.errors import UserError
from modules.runs.marks import MARKS_NAME, MAX_NOTE, Marks, Result, change_marks, read_marks, tags_of
from tests.support.many_runs import make_run


def test_marks_are_changed_one_by_one_and_kept_in_the_run_folder(tmp_path):
    run = make_run(tmp_path / "run").path
    assert read_marks(run) == Marks()
    change_marks(run, name="  Best\ncat ", tags=tags_of("good, cat ,good,,"))
    result = Result("samples/grids/grid-001/a.png", "a cat", 500, 42, 0.8, ("models/m.safetensors",))
    change_marks(run, star=True, result=result)
    change_marks(run, note="x" * 9999)
    expected = Marks("Best cat", ("good", "cat"), "x" * MAX_NOTE, True, result)
    assert read_marks(run) == expected
    change_marks(run, name="", tags=(), note="", result=None)
    assert json.loads((run / MARKS_NAME).read_text()) == {"star": True}


def test_marks_of_a_run_that_is_gone_are_refused(tmp_path):
    with pytest.raises(UserError, match="can't be written"):
        change_marks(tmp_path / "gone", star=True)
    assert not (tmp_path / "gone").exists()
