"""The project's tests and benchmarks that take a GPU, as programs of their own."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from scripts.gpu.cases import Case, NotHere, is_cuda, needs_cuda
from scripts.gpu.programs import run_program
from scripts.gpu.tiny_runs import ROOT, work_folder

MARK = "pytest.mark.gpu"
OF_PARTS = ("tests/trainer/test_gpu_runs.py", "tests/distributed/test_attention_trial.py")
OF_SEVERAL_GPUS = "two_gpus"
NO_TESTS = 5  # pytest's exit code
PAIRS = 6  # of turns of a benchmark


def marked_tests(device: str) -> Iterator[Case]:
    """The tests marked gpu, but for those whose checks are parts."""
    marked = [path for path in (ROOT / "tests").rglob("test_*.py") if MARK in path.read_text(encoding="utf-8")]
    for name in sorted(path.relative_to(ROOT).as_posix() for path in marked):
        if name not in OF_PARTS:
            yield name, partial(tested, device, name, "-k", f"not {OF_SEVERAL_GPUS}")


def several_gpus(device: str) -> Iterator[Case]:
    yield "two GPUs by NCCL", partial(tested_on_two, device)


def tested_on_two(device: str) -> dict[str, Any]:
    from modules.machine.devices import list_gpus

    needs_cuda(device)
    if len(list_gpus()) < 2:
        raise NotHere("needs two GPUs")
    return tested(device, "tests/trainer/test_gpu_ranks.py", "-k", OF_SEVERAL_GPUS)


def tested(device: str, *arguments: str) -> dict[str, Any]:
    """The last line of pytest; of failures, what it says of them."""
    needs_cuda(device)
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", "--color=no"]
    done = run_program([*command, *arguments])
    lines = done.stdout.splitlines() or [done.stderr]
    if done.returncode == NO_TESTS:
        raise NotHere("has no test for one GPU")
    told = [line for line in lines if line.startswith(("FAILED", "ERROR", "E  "))]
    return {"ok": not done.returncode, "summary": lines[-1], **({"told": told[:20]} if done.returncode else {})}


# --- benchmarks -------------------------------------------------------------------------------------------------------


def benchmark(device: str) -> Iterator[Case]:
    yield "LoRA beside a loop by hand", partial(compared, device, "--method", "lora")


def benchmark_full(device: str) -> Iterator[Case]:
    yield "full fine-tune beside a loop by hand", partial(compared, device, "--method", "full")


def benchmark_options(device: str) -> Iterator[Case]:
    from scripts.benchmarks.options import OPTIONS

    for option in OPTIONS:
        yield option, partial(compared, device, "--method", "lora", "--options", option)


def compared(device: str, *options: str) -> dict[str, Any]:
    """The ratios of scripts/benchmark.py, on a small Stable Diffusion 1.5 with random weights: [value, low, high]."""
    folder = work_folder()
    file = folder / "benchmark.json"
    place = ["--device", "cuda" if is_cuda(device) else "cpu", "--blocks", str(PAIRS if is_cuda(device) else 1)]
    size = ["--folder", str(folder / "benchmark"), "--steps-per-block", "5" if is_cuda(device) else "1"]
    done = run_program([sys.executable, "scripts/benchmark.py", "step", *place, *size, "--json", str(file), *options])
    if done.returncode:
        return {"ok": False, "error": done.stderr[-1500:]}
    found = json.loads(Path(file).read_text(encoding="utf-8"))["comparisons"]
    return {each["what"]: [round(each["ratio"][key], 3) for key in ("value", "low", "high")] for each in found}
