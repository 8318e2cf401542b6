"""scripts/long_test_files.py: which test files take longest."""

from __future__ import annotations

import json

import pytest

from scripts import long_test_files

REPORT = """<?xml version="1.0"?><testsuites><testsuite>
<testcase classname="tests.ui.test_form" name="test_one" time="9"/>
<testcase classname="tests.ui.test_form.TestClass" name="test_two" time="9"/>
<testcase classname="tests.data.test_clips" name="test_three" time="20"/>
<testcase classname="tests.data.test_masks" name="test_four" time="3"/>
<testcase classname="tests.data.test_gone" name="test_five" time="90"/>
</testsuite></testsuites>
"""


@pytest.fixture
def report(tmp_path, monkeypatch):
    monkeypatch.setattr(long_test_files, "TARGET", tmp_path / "long_files.json")
    (tmp_path / "tests.xml").write_text(REPORT, encoding="utf-8")
    return tmp_path / "tests.xml"


def test_files_are_listed_by_what_their_tests_take_together(report):
    assert long_test_files.main([str(report)]) == 0
    assert json.loads(long_test_files.TARGET.read_text(encoding="utf-8")) == ["data/test_clips.py", "ui/test_form.py"]


def test_a_report_of_a_few_quick_tests_leaves_the_list_as_it_was(report, capfd):
    report.write_text(REPORT.replace('"9"', '"1"').replace('"20"', '"1"'), encoding="utf-8")
    assert long_test_files.main([str(report)]) == 1
    assert "in a run of all tests" in capfd.readouterr().err
    assert not long_test_files.TARGET.exists()
