"""Runs the tests that need an NVIDIA GPU: ./scripts/test.sh --gpu

The output of the doctor and the tests is printed and, without names of people, machines and networks, also written to
workspace/gpu-report.txt, which has everything that is needed to understand a failure without access to this GPU.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TextIO

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from modules.session.redaction import redact
from scripts.terminal import show

ROOT = Path(__file__).resolve().parents[1]
REPORT = ROOT / "workspace" / "gpu-report.txt"
FOLDERS = ("--set", "workspace_dir=workspace", "--set", "cache_dir=workspace")
DOCTOR = ("scripts/doctor.py", "--report", *FOLDERS)
# one test at a time: they share the GPU's memory
TESTS = ("-m", "pytest", "-m", "gpu", "-v", "-rs", "--durations=10", "--color=no", "-p", "no:cacheprovider", "tests")


def main() -> int:
    """0 where all tests have passed, 2 where there is no GPU to run them on, else what pytest gives."""
    REPORT.parent.mkdir(exist_ok=True)
    with REPORT.open("w", encoding="utf-8") as report:
        run(DOCTOR, report)
        if not has_gpu():
            show("PyTorch finds no NVIDIA GPU that it can use: the lines above say why.")
            return 2
        code = run(TESTS, report)
    if code == 0:
        show("All GPU tests have passed.")
    else:
        show(f"Please attach {REPORT} to your report: it holds no names of people, machines or networks.")
    return code


def run(arguments: tuple[str, ...], report: TextIO) -> int:
    """Runs Python with `arguments`, shows what it prints line by line, and returns its exit code."""
    command = [sys.executable, *arguments]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        encoding="utf-8", errors="replace",
    ) as process:  # fmt: skip
        assert process.stdout is not None
        for line in process.stdout:
            show(line.rstrip("\n"))
            report.write(redact(line))
            report.flush()  # a test that hangs is read in it, too
    return process.returncode


def has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


if __name__ == "__main__":
    sys.exit(main())
