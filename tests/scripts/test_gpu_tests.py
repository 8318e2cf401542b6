"""The command for people who have a GPU, here with programs that stand in for the doctor and the parts."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace

import pytest

from modules.config.presets import why_not_offered
from scripts import gpu_tests
from scripts.gpu import cases, part, preset_memory, scheduling, travelling
from scripts.gpu.cases import NotHere, load_check, measure_cases
from scripts.gpu.parts import PARTS, Part
from scripts.gpu.results import append_line, read_lines
from scripts.gpu.scheduling import Room, fits, run_parts

# Stands in for a part: writes a result and hangs, unless it is "facts".
PART = """
import json, sys, time
name, results = sys.argv[1], sys.argv[sys.argv.index("--results") + 1]
with open(results, "a", encoding="utf-8") as file:
    file.write(json.dumps({"part": name, "check": name, "case": "it starts", "ok": True}) + "\\n")
time.sleep(0 if name == "facts" else 3000)
"""
ALONE = Part("alone", "right", (), 60, gib=4, is_alone=True)
SMALL = Part("small", "right", (), 60, gib=4)
CASES = ("first", "second", "third")
WRONG = {"ok": False, "difference": 1}
DONE = subprocess.CompletedProcess((), 0)


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Returns a function that runs the command with parts that write lines, and returns its exit code."""
    monkeypatch.setattr(gpu_tests, "DOCTOR", ("-c", "print('ok  Python: /home/jane/chorus')"))
    monkeypatch.setattr(gpu_tests, "has_gpu", lambda: True)

    def command(*lines: dict, arguments: tuple[str, ...] = ()) -> int:
        def run_parts(parts, device, results, *_):
            for line in lines:
                append_line(results, line)

        monkeypatch.setattr(gpu_tests, "run_parts", run_parts)
        return gpu_tests.main(["--out", str(tmp_path), *arguments])

    return command


def case(ok: bool | None, **values) -> dict:
    return {"part": "races", "check": "races", "case": "block swapping", "ok": ok, **values}


def test_a_failure_leaves_a_report_without_names_and_says_where_it_is(run, tmp_path, capfd):
    assert run(case(False, text="RuntimeError: at 10.1.2.3"), case(True)) == 1
    report = (tmp_path / "gpu-report.txt").read_text(encoding="utf-8")
    assert "ok  Python: /home/<user>/chorus" in report
    assert "FAILED: races: block swapping: RuntimeError: at <address>" in report
    shown = capfd.readouterr().out
    assert "/home/jane/chorus" in shown  # the person's own terminal shows everything
    assert f"Please attach {tmp_path / 'gpu-report.txt'}" in shown


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ([case(True), case(None, text="needs CUDA")], 0),
        ([case(True), {"part": "races", "ended": "time is over"}], 1),
        ([case(None, text="needs CUDA")], 1),  # nothing has passed
        ([], 1),
    ],
)
def test_all_is_well_only_if_something_passed_and_everything_came_to_its_end(lines, code, run):
    assert run(*lines, arguments=("--parts", "races")) == code


def test_without_a_gpu_no_test_is_said_to_have_passed(run, monkeypatch, capfd):
    monkeypatch.setattr(gpu_tests, "has_gpu", lambda: False)
    assert run(case(True)) == 2
    shown = capfd.readouterr().out
    assert "finds no NVIDIA GPU" in shown
    assert "passed" not in shown


def test_a_rehearsal_on_the_cpu_writes_what_it_finds_as_lines(tmp_path):
    """The real process of a part."""
    assert gpu_tests.main(["--device", "cpu", "--parts", "facts", "--out", str(tmp_path)]) == 0
    visit, *results, ended = read_lines(tmp_path / "results.jsonl")
    assert visit["device"] == "cpu"
    assert results[0]["values"]["torch"]
    assert {line["text"] for line in results[1:]} == {"needs CUDA"}
    assert ended == {"part": "facts", "ended": "ok", "seconds": ended["seconds"]}


def test_the_memory_of_a_preset_is_measured_by_what_simulates_it(tmp_path):
    """With a tiny model and without figures, on the CPU; it replaces parts of the simulation, which must exist."""
    assert gpu_tests.main(["--device", "cpu", "--parts", "memory", "--out", str(tmp_path)]) == 0


# --- parts in processes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "ended"), [("races", "time is over"), ("memory", "ok")])
def test_a_part_that_hangs_is_ended_at_its_limit_and_the_next_one_runs(name, ended, tmp_path, monkeypatch):
    """Which is as it should be for a part that has more cases than time."""
    results = tmp_path / "results.jsonl"
    monkeypatch.setattr(scheduling, "PROGRAM", ("-c", PART))
    monkeypatch.setattr(scheduling.time, "monotonic", lambda: 1e6 if has_begun(results) else 0.0)
    monkeypatch.setattr(scheduling, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(scheduling, "LEAST_SECONDS", -1e9)
    parts = [PARTS[name], replace(PARTS["facts"], limit=10**9)]
    run_parts(parts, "cpu", results, Room(0, 1), None, lambda text: None)
    lines = read_lines(results)
    assert [(line["part"], line.get("ended")) for line in lines] == [
        (name, None), (name, ended), ("facts", None), ("facts", "ok"),
    ]  # fmt: skip


def has_begun(results) -> bool:
    return results.exists() and bool(read_lines(results))


def test_no_part_begins_without_time_for_it(tmp_path):
    results = tmp_path / "results.jsonl"
    run_parts([PARTS["facts"]], "cpu", results, Room(0, 1), 5, lambda text: None)
    assert read_lines(results) == [{"part": "facts", "ended": "no time left", "seconds": 0}]


@pytest.mark.parametrize(
    ("begins", "running", "room", "expected"),
    [
        (ALONE, [], Room(0, 1), True),  # by itself, a part is content with any GPU
        (ALONE, [SMALL], Room(80, 8), False),
        (SMALL, [ALONE], Room(80, 8), False),
        (SMALL, [SMALL], Room(8, 8), True),
        (SMALL, [SMALL], Room(7, 8), False),
        (SMALL, [SMALL], Room(80, 1), False),
    ],
)
def test_parts_run_beside_each_other_where_there_is_room(begins, running, room, expected):
    assert fits(begins, running, room) is expected


def test_a_rehearsal_runs_as_many_parts_as_there_are_cores_with_a_thread_each(monkeypatch, tmp_path):
    monkeypatch.setattr(gpu_tests, "num_cores", lambda: 2)
    large = replace(SMALL, gib=1000)  # no GPU has to hold them
    room = gpu_tests._room("cpu")
    assert fits(large, [large], room)
    assert not fits(large, [large, large], room)
    threads = "import os; print(os.environ['OMP_NUM_THREADS'])"
    monkeypatch.setattr(scheduling, "PROGRAM", ("-c", threads))
    for device, expected in (("cpu", "1"), ("cuda:0", "2")):
        part = replace(SMALL, name=device.partition(":")[0])
        run_parts([part], device, tmp_path / "results.jsonl", room, None, lambda text: None)
        assert (tmp_path / f"{part.name}.log").read_text(encoding="utf-8").split() == [expected]


@pytest.mark.parametrize(("device", "num_processes"), [("cuda:0", 3), ("cpu", 2)])
def test_a_case_whose_process_dies_is_said_to_have_failed(device, num_processes, tmp_path, monkeypatch):
    """On a GPU, each case has a process of its own; a rehearsal has no time to start so many."""
    results, started = tmp_path / "results.jsonl", []
    measured = {"part": "families", "check": "families", "case": "first", "ok": True}

    def die(command, **_):
        started.append(command)
        if "first" in command:
            append_line(results, measured)
        return subprocess.CompletedProcess(command, -11)

    monkeypatch.setattr(part, "load_check", lambda path: lambda device: [(name, dict) for name in CASES])
    monkeypatch.setattr(part.subprocess, "run", die)
    assert part.run_apart(PARTS["families"], device, results) == 1
    assert len(started) == num_processes
    assert {line["case"]: line["ok"] for line in read_lines(results)} == dict(
        zip(CASES, (True, False, False), strict=True)
    )
    assert len(read_lines(results)) == len(CASES)


# --- checks and results -----------------------------------------------------------------------------------------------


def test_every_part_names_checks_that_exist():
    assert all(callable(load_check(check)) for part in PARTS.values() for check in part.checks)


@pytest.mark.parametrize("name", [*preset_memory.FIRST, *preset_memory.ON_CPU])
def test_the_presets_that_are_measured_first_are_offered(name):
    base, _, memory = name.removesuffix("gb").rpartition("-")
    assert why_not_offered(base, int(memory)) == ""


def test_an_error_ends_its_case_alone_and_what_is_not_here_is_skipped(monkeypatch):
    def missing():
        raise NotHere("needs the package av")

    made = [("divides", lambda: {"ok": 1 / 0}), ("missing", missing), ("wrong", lambda: WRONG), ("right", dict)]
    monkeypatch.setattr(cases, "load_check", lambda path: lambda device: made)
    outcomes = {result["case"]: result for result in measure_cases("runs:runs", "cpu")}
    assert outcomes["divides"]["ok"] is False
    assert outcomes["divides"]["text"].startswith("ZeroDivisionError")
    assert (outcomes["missing"]["ok"], outcomes["missing"]["text"]) == (None, "needs the package av")
    assert (outcomes["wrong"]["ok"], outcomes["wrong"]["values"]) == (False, {"difference": 1})
    assert outcomes["right"]["ok"] is True


def test_a_line_that_was_cut_off_and_results_of_an_earlier_commit_are_left_out(tmp_path):
    results = tmp_path / "results.jsonl"
    for commit, ok in (("aaaa", False), ("bbbb", True), ("bbbb", None)):
        append_line(results, {"visit": "2026-11-26", "commit": commit})
        append_line(results, case(ok))
    with results.open("a", encoding="utf-8") as file:
        file.write(json.dumps(case(False))[:20])
    assert [line["ok"] for line in read_lines(results) if "check" in line] == [True, None]


def test_the_versions_that_travel_are_those_that_are_pinned(monkeypatch):
    asked = []
    monkeypatch.setattr(travelling.subprocess, "run", lambda command, **_: asked.extend(command) or DONE)
    monkeypatch.setattr(travelling, "version", lambda name: "1.0")
    assert gpu_tests.main(["--prepare", "wheels"]) == 0
    assert {"peft==0.21.2", "gguf==0.19.0", "pydantic-core==1.0", "--no-deps"} <= set(asked)
    assert not [word for word in asked if word.startswith(("torch==", "bitsandbytes"))]
