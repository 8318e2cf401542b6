"""The page on GPUs says what the results say."""

from __future__ import annotations

import json

import pytest

from scripts import gpu_report
from scripts.gpu.results import Visit, append_line

VERSIONS = {"torch": "2.13.0", "gpus": [{"name": "NVIDIA H200"}], "cores": 16}


def case(check: str, name: str, ok: bool | None = True, **values) -> dict:
    return {"part": "part", "check": check, "case": name, "ok": ok, "values": values}


LINES = [
    {"visit": "2026-12-01", "commit": "abcd", "device": "cuda:0", "note": "A made-up visit."},
    case("facts", "versions", **VERSIONS),
    case("families", "good"),
    case("families", "bad", False, waits={"modules/trainer/x.py:1": 2}),
    {"part": "races", "check": "races", "case": "", "ok": None, "text": "needs CUDA"},
    case("presets", "a-lora-12gb", measured=7.5, simulated=7.66, estimated=8.0),
    case("matrix_peak", "8 x 8 x 8", tflops=500.0),
    case("matrix_peak", "4 x 4 x 4", tflops=800.0),
    case("steps", "model | batch 4 | Chorus", step_seconds=9.0),  # measured again
    case("steps", "model | batch 4 | Chorus", step_seconds=0.8, batch_size=4, kernel_seconds=0.2, flops=64e12),
    case("steps", "model | batch 4 | by hand", step_seconds=0.9, peak_gib=7.8),
    case(
        "graph_speed", "model", with_step_seconds=0.2, without_step_seconds=0.8, times_as_fast=4, times_the_memory=1.1
    ),
    {"part": "memory", "ended": "time is over", "seconds": 300},
    {"part": "ranks", "ended": "failed", "seconds": 100},
]


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Returns a function that writes results to a file and returns it; what is kept goes to tmp_path."""
    monkeypatch.setattr(gpu_report, "FOLDER", tmp_path / "kept")

    def write(lines) -> object:
        path = tmp_path / "results.jsonl"
        for line in lines:
            append_line(path, line)
        return path

    return write


@pytest.mark.parametrize(
    "expected",
    [
        "## 2026-12-01: NVIDIA H200\n",
        "Chorus at abcd, with torch 2.13.0, 16 cores.",
        "A made-up visit.",
        "| families | 1 | 1: bad |  |",
        "| races | 0 |  | 1: needs CUDA |",
        "Not ended: memory (time is over).",
        "* `modules/trainer/x.py:1` in 1: bad",
        "| a-lora-12gb | 7.50 | 7.66 | 8.00 |",
        "* CUDA graphs, model: 0.2 s a step, without 0.8; 1.1 times the memory.",
        # 0.2 of 0.8 s; 64 TFLOP in 0.8 s are a tenth of 800 TFLOP/s
        "| model, batch 4 | 0.800 | 5.00 | 0.900 |  | 25 % | 10 % |  | 7.80 |",
        "* A product of 4 x 4 x 4 in bfloat16: 800 TFLOP/s.",
    ],
)
def test_a_section_says_what_was_found(expected):
    assert expected in "\n".join(gpu_report.section(Visit(LINES)))


def test_results_are_kept_without_names_and_become_a_section_of_the_page(written, tmp_path):
    path = written([*LINES, {**case("races", "x", False), "text": "at /home/jane/chorus", "trace": ["of /home/jane"]}])
    assert gpu_report.keep(path) == 0
    (kept,) = (tmp_path / "kept").iterdir()
    assert kept.name == "2026-12-01-h200-abcd.jsonl"
    text = kept.read_text(encoding="utf-8")
    assert "jane" not in text
    assert len([json.loads(line) for line in text.splitlines()]) == len(LINES) + 1
    assert "## 2026-12-01: NVIDIA H200" in gpu_report.page()


def test_a_rehearsal_is_not_kept(written, tmp_path, capfd):
    rehearsal = [{**LINES[0], "device": "cpu"}, *LINES[1:]]
    assert gpu_report.keep(written(rehearsal)) == 1
    assert "no GPU was measured" in capfd.readouterr().err
    assert not (tmp_path / "kept").exists()
