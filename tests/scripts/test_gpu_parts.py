"""The parts of gpu_tests.py, on the CPU where they need no CUDA, and what they must not need."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from modules.config.families import load_families
from modules.distributed import torch_facts
from scripts import gpu_tests
from scripts.gpu.cases import measure_cases
from scripts.gpu.families import train_family
from scripts.gpu.parts import PARTS

ROOT = Path(__file__).resolve().parents[2]
OPTIONAL = {"av", "bitsandbytes", "customtkinter", "gguf", "hypothesis", "lycoris", "pexpect", "PIL.ImageTk", "tkinter"}
SMALLEST = "hunyuan_dit"


def files_that_run_on_gpus() -> set[Path]:
    """The parts, and the marked tests with the conftests that pytest imports for them."""
    marked = [path for path in (ROOT / "tests").rglob("test_*.py") if "pytest.mark.gpu" in path.read_text("utf-8")]
    folders = {folder for path in marked for folder in path.parents if folder.is_relative_to(ROOT / "tests")}
    conftests = [folder / "conftest.py" for folder in folders if (folder / "conftest.py").is_file()]
    return {*marked, *conftests, *(ROOT / "scripts" / "gpu").glob("*.py")} - {Path(__file__)}


def imported_at_the_top(path: Path) -> Iterator[str]:
    """The modules that importing a file imports, and "module.name" of what is imported from them."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_what_runs_on_gpus_imports_no_optional_package_at_its_top():
    """So that it also runs on a machine that has little more than PyTorch."""
    unseen, seen, found = list(files_that_run_on_gpus()), set(), set()
    while unseen:
        path = unseen.pop()
        seen.add(path)
        for name in imported_at_the_top(path):
            if name in OPTIONAL or name.partition(".")[0] in OPTIONAL:
                found.add((path.relative_to(ROOT).as_posix(), name))
            file = ROOT / f"{name.replace('.', '/')}.py"
            if file.is_file() and file not in seen:
                unseen.append(file)
    assert len(seen) > 100  # it has followed the imports of Chorus
    assert found == set()


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == SMALLEST else pytest.mark.proof) for name in load_families()],
)
def test_every_family_has_the_settings_that_its_run_needs(name):
    found = train_family(name, "cpu")
    assert found["problems"] == []
    assert all(math.isfinite(loss) for loss in found["losses"])


@pytest.mark.parametrize(("device", "is_right"), [("cpu", True), ("cuda:0", False)])
def test_a_rehearsal_needs_no_driver_for_a_pytorch_that_has_cuda(device, is_right, monkeypatch):
    found = {"reason": "Found no NVIDIA driver on your system.", "devices": [], "cuda": "13.0"}
    monkeypatch.setattr(torch_facts, "read_facts", lambda: found)
    versions = next(result for result in measure_cases("machine:facts", device) if result["case"] == "versions")
    assert versions["ok"] is is_right
    assert versions["values"]["reason"] == found["reason"]


@pytest.mark.parametrize(
    "check",
    [
        "kernels:rounding",
        "kernels:checksums",
        "kernels:skipping",
        "lora_layers:lora",
        "fewer_operations:fewer_operations",
        "attention:gradients",
        "ceilings:matrix_peak",
        "dequantizing:times",
        "quantized_matmul:products_in_8_bits",
        "quantized_matmul:times_in_8_bits",
    ],
)
def test_a_check_of_kernels_passes_on_the_cpu(check):
    results = list(measure_cases(check, "cpu"))
    assert any(result["ok"] for result in results)
    assert [result for result in results if result["ok"] is False] == []


@pytest.mark.proof
@pytest.mark.parametrize("name", PARTS)
def test_every_part_passes_its_rehearsal(name, tmp_path):
    """Those that only skip on the CPU end with 1, because nothing has passed."""
    code = gpu_tests.main(["--device", "cpu", "--parts", name, "--out", str(tmp_path)])
    shown = (tmp_path / "gpu-report.txt").read_text(encoding="utf-8")
    assert "FAILED" not in shown
    assert code == 0 or " 0 passed, 0 failed" in f" {shown}"
