"""The file of results: one JSON object per line, written as it is found, so that a run that is cut off keeps its own.

A line is of one of three kinds:

    {"visit": "2026-11-26", "commit": "c0b4c053", "device": "cuda:0"}             a command begins
    {"part": "races", "check": "races", "case": "swap", "ok": true, ...}          a case has been measured
    {"part": "races", "ended": "ok", "seconds": 12.1}                             a part has ended
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

FILE_NAME = "results.jsonl"


def append_line(path: Path, line: dict[str, Any]) -> None:
    """Adds a line by a single write, since several parts write at once."""
    text = json.dumps(line, default=str) + "\n"
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """All lines of the last commit that was measured; a line that was cut off is left out."""
    lines: list[dict[str, Any]] = []
    commit = None
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            line = json.loads(text)
        except ValueError:  # the last line of a run that was killed
            continue
        if "visit" in line:
            if commit not in (None, line.get("commit")):
                lines.clear()
            commit = line.get("commit")
        lines.append(line)
    return lines


class Visit:
    """The results of one state of Chorus on one GPU; of a case that was measured again, the last.

    head: the first line. cases: (check, case) -> its line. ended: part -> how it ended.
    """

    def __init__(self, lines: list[dict[str, Any]]):
        self.head: dict[str, Any] = next(line for line in lines if "visit" in line)
        self.cases = {(line["check"], line["case"]): line for line in lines if "check" in line}
        self.ended = {line["part"]: line["ended"] for line in lines if "ended" in line}

    def of(self, check: str) -> list[tuple[str, dict[str, Any]]]:
        """(case, line) of a check."""
        return [(case, line) for (name, case), line in self.cases.items() if name == check]

    def values(self, check: str, case: str) -> dict[str, Any]:
        """What was found in a case; empty if it was not measured."""
        return self.cases.get((check, case), {}).get("values") or {}

    @property
    def card(self) -> str:
        """The name of the GPU; "" without one."""
        gpus = self.values("facts", "versions").get("gpus") or [{"name": ""}]
        return gpus[0]["name"]

    @property
    def peak_flops(self) -> float:
        """Of the fastest matrix product, per second; 0 if none was measured."""
        return max((line["values"]["tflops"] * 1e12 for _, line in self.of("matrix_peak") if line["ok"]), default=0.0)


def kernels_share(values: dict[str, Any]) -> float:
    """Of the time of a step, what its kernels take alone; 0 where they were not summed up."""
    kernels, step = values.get("kernel_seconds"), values.get("step_seconds")
    return kernels / step if kernels and step else 0.0


def matrix_share(values: dict[str, Any], peak_flops: float) -> float:
    """The operations of a step, recomputation included, by its time and by the fastest product's; 0 if unknown."""
    flops, step = values.get("flops"), values.get("step_seconds")
    return flops / step / peak_flops if flops and step and peak_flops else 0.0
