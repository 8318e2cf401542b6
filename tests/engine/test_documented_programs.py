"""The programs of docs/training_engine.md run as they are printed."""

from __future__ import annotations

import os
import re
import sys

import pytest

from modules.weights.safe import load_tensors
from tests.support.fork_server import ROOT, ForkedScript

PATIENCE_SECONDS = 300
MAX_LINES = 40
PAGE = ROOT / "docs" / "training_engine.md"
PROGRAMS = {
    re.match(r"# (\w+)\.py\n", block)[1]: block
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    if block.startswith("# ")
}
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}


@pytest.mark.parametrize(
    ("name", "figure"),
    [("direct", "accuracy"), ("launched", "loss"), ("sharded", "loss"), ("longer", "loss")],
)
def test_a_program_runs_as_printed(name, figure, tmp_path):
    program, output = tmp_path / f"{name}.py", tmp_path / "output.txt"
    program.write_text(PROGRAMS[name], encoding="utf-8")
    code = ForkedScript([str(program)], ENVIRONMENT, output, cwd=tmp_path).wait(PATIENCE_SECONDS)
    said = output.read_text(encoding="utf-8")
    assert code == 0, said
    (value,) = re.findall(rf"^{figure} ([\d.]+)", said, re.MULTILINE)
    assert float(value) > 0.9 if figure == "accuracy" else float(value) < 0.4
    assert ("Number of processes: 2" in said) == (name not in ("direct", "longer"))
    (checkpoint,) = (tmp_path / "runs" / name / "checkpoints" / "last").iterdir()
    assert "0.weight" in load_tensors(checkpoint / "model.safetensors")


@pytest.mark.skipif(sys.platform == "win32", reason="torchrun does not work on Windows")
def test_the_program_for_torchrun_runs_as_printed(tmp_path):
    (tmp_path / "ranks.py").write_text(PROGRAMS["ranks"], encoding="utf-8")
    torchrun = [str(ROOT / "scripts" / "elastic_agent.py"), "--nproc-per-node=2", "ranks.py"]
    code = ForkedScript(torchrun, ENVIRONMENT, tmp_path / "output.txt", cwd=tmp_path).wait(PATIENCE_SECONDS)
    said = (tmp_path / "output.txt").read_text(encoding="utf-8")
    assert code == 0, said
    assert "Number of processes: 2" in said
    (loss,) = re.findall(r"^loss ([\d.]+)", said, re.MULTILINE)
    assert float(loss) < 0.4


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_short(name):
    assert PROGRAMS[name].count("\n") <= MAX_LINES
