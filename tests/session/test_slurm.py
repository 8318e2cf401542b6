"""The interpretation of SLURM's variables, and the requeueing of a job."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from modules.session.slurm import is_task, requeue, was_requeued

posix_only = pytest.mark.skipif(os.name != "posix", reason="the stand-in for scontrol is a shell script")
JOB = {"SLURM_JOB_ID": "4713", "SLURM_RESTART_COUNT": "0"}


@pytest.fixture
def scontrol(tmp_path, monkeypatch):
    """A function that puts a fake scontrol with a given result on the PATH and returns the log of its calls."""

    def install(code: int = 0, complaint: str = "") -> Path:
        program, calls = tmp_path / "scontrol", tmp_path / "calls"
        lines = ["#!/bin/sh", f'echo "$@" >> "{calls}"', f'printf "%s" "{complaint}" >&2', f"exit {code}"]
        program.write_text("\n".join(lines), encoding="utf-8")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        return calls

    return install


@posix_only
@pytest.mark.parametrize(
    ("variables", "name"),
    [
        ({}, "4713"),
        # the last task of an array has the array's own job id
        ({"SLURM_ARRAY_JOB_ID": "4713", "SLURM_ARRAY_TASK_ID": "3"}, "4713_3"),
    ],
)
def test_a_job_is_queued_again_once_and_an_array_task_alone(variables, name, scontrol):
    calls = scontrol()
    text = requeue(JOB | variables)
    assert text.startswith(f"Job {name} is queued again")
    assert calls.read_text() == f"requeue {name}\n"


@posix_only
def test_a_refusal_comes_with_slurms_words_and_the_way_on(scontrol):
    scontrol(1, "Requested operation is presently disabled for job 4713")
    text = requeue(JOB)
    assert "not queued again (Requested operation is presently disabled for job 4713)" in text
    assert "sbatch job.sbatch --resume" in text
    assert text.count(".\n") == 0


@posix_only
def test_a_refusal_without_words_has_its_exit_code(scontrol):
    scontrol(3)
    assert "scontrol ended with exit code 3" in requeue(JOB)


def test_without_scontrol_the_way_on_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    text = requeue(JOB)
    assert "no scontrol" in text
    assert "sbatch job.sbatch --resume" in text


@pytest.mark.parametrize(("count", "expected"), [(None, False), ("", False), ("0", False), ("1", True), ("12", True)])
def test_a_restart_count_above_0_is_another_turn(count, expected):
    assert was_requeued({} if count is None else {"SLURM_RESTART_COUNT": count}) is expected


@pytest.mark.parametrize("step", [None, "batch", "4294967291"])
def test_a_batch_script_is_no_task(step):
    assert is_task({"SLURM_PROCID": "0", "SLURM_STEP_ID": "0"})
    assert not is_task({"SLURM_PROCID": "0", **({} if step is None else {"SLURM_STEP_ID": step})})
