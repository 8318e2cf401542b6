"""Ctrl-C while a script still imports its libraries."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
NAMES = (
    "benchmark", "check_data", "convert", "doctor", "make_demo_model", "multi_node", "sample", "slurm_job",
    "start_multi_gpu", "train", "train_distributed",
)  # fmt: skip

# Python runs a sitecustomize.py before the script: this one presses Ctrl-C at the first import of the script's own.
PRESSES_CTRL_C = """
import signal
import sys


class Person:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "modules":
            signal.raise_signal(signal.SIGINT)


sys.meta_path.insert(0, Person)
"""


@pytest.mark.parametrize("name", NAMES)
def test_ctrl_c_while_a_script_starts_ends_it_with_one_line(name, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(PRESSES_CTRL_C)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    script = [sys.executable, str(SCRIPTS / f"{name}.py")]
    done = subprocess.run(script, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "Stopped.\n")
