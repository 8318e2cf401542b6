"""How scripts start: Ctrl-C while they still import their libraries, and streams that are not there."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import PATIENCE_SECONDS

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


# At the end, this one tells which descriptors stdin, stdout and stderr have.
TELLS_OF_STREAMS = """
import atexit
import os
import sys


def tell():
    with open(os.environ["TOLD"], "w") as file:
        file.write(" ".join(str(stream.fileno()) for stream in (sys.stdin, sys.stdout, sys.stderr)))


atexit.register(tell)
"""


@pytest.mark.parametrize("name", NAMES)
def test_ctrl_c_while_a_script_starts_ends_it_with_one_line(name, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(PRESSES_CTRL_C)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    script = [sys.executable, str(SCRIPTS / f"{name}.py")]
    done = subprocess.run(script, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "Stopped.\n")


@pytest.mark.skipif(os.name != "posix", reason="bash closes the streams")
def test_a_script_whose_streams_are_closed_does_its_work_in_silence(tmp_path):
    """As cron jobs and services may be started: no file that is opened later gets the number of stdout."""
    (tmp_path / "sitecustomize.py").write_text(TELLS_OF_STREAMS)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "TOLD": str(tmp_path / "told.txt")}
    command = f"{shlex.quote(sys.executable)} {shlex.quote(str(SCRIPTS / 'train.py'))} --preset none <&- >&- 2>&-"
    assert subprocess.run(["bash", "-c", command], env=environment, timeout=PATIENCE_SECONDS).returncode == 2
    assert (tmp_path / "told.txt").read_text() == "0 1 2"
