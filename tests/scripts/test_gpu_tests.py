"""The command for people who have a GPU, here with programs that stand in for the doctor and the tests."""

from __future__ import annotations

import pytest

from scripts import gpu_tests


@pytest.fixture
def report(monkeypatch, tmp_path):
    path = tmp_path / "workspace" / "gpu-report.txt"
    monkeypatch.setattr(gpu_tests, "REPORT", path)
    monkeypatch.setattr(gpu_tests, "DOCTOR", ("-c", "print('ok  Python: /home/jane/chorus')"))
    monkeypatch.setattr(gpu_tests, "has_gpu", lambda: True)
    return path


def test_a_failure_leaves_a_report_without_names_and_says_where_it_is(report, monkeypatch, capfd):
    failing = "import sys; print('FAILED at 10.1.2.3', file=sys.stderr); sys.exit(1)"
    monkeypatch.setattr(gpu_tests, "TESTS", ("-c", failing))
    assert gpu_tests.main() == 1
    assert report.read_text().splitlines() == ["ok  Python: /home/<user>/chorus", "FAILED at <address>"]
    shown = capfd.readouterr().out
    assert "/home/jane/chorus" in shown  # the person's own terminal shows everything
    assert f"Please attach {report}" in shown


def test_without_a_gpu_no_test_is_said_to_have_passed(report, monkeypatch, capfd):
    monkeypatch.setattr(gpu_tests, "has_gpu", lambda: False)
    assert gpu_tests.main() == 2
    assert "finds no NVIDIA GPU" in capfd.readouterr().out
