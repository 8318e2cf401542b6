"""How scripts start: signals while they still import their libraries, and streams that are not there."""

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from modules.config.presets import ROOT
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


# This one sends the signal in SENT when the script has begun to import.
SENDS_SIGNAL = """
import os
import signal
import sys


class System:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "modules.config.describe":
            signal.raise_signal(int(os.environ["SENT"]))


sys.meta_path.insert(0, System)
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


def train_with_early_signal(
    number: int, folder: Path, *arguments: str, **variables: str
) -> subprocess.CompletedProcess:
    """A training of the demo whose script gets a signal while it imports. folder: gets the run folder `run`."""
    (folder / "sitecustomize.py").write_text(SENDS_SIGNAL)
    left_out = ("SLURM_", "TORCHELASTIC_", "CHORUS_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    env |= {"PYTHONPATH": str(folder), "SENT": str(int(number)), "CUDA_VISIBLE_DEVICES": "", **variables}
    settings = [f"--set=workspace_dir={folder / 'run'}", f"--set=cache_dir={folder / 'cache'}"]
    script = [sys.executable, str(SCRIPTS / "train.py"), "--preset=demo", *settings, *arguments]
    return subprocess.run(script, env=env, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_SECONDS)


posix_only = pytest.mark.skipif(os.name != "posix", reason="Windows knows none of these signals")


@posix_only
@pytest.mark.parametrize(("name", "on_ranks"), [("SIGTERM", "true"), ("SIGHUP", "false")])
def test_a_stop_while_the_script_starts_ends_the_run_before_it_trains_and_is_on_record(name, on_ranks, tmp_path):
    done = train_with_early_signal(getattr(signal, name), tmp_path, f"--set=enable_multi_gpu={on_ranks}")
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr
    assert json.loads((tmp_path / "run" / "exit.json").read_bytes())["status"] == "stopped"
    assert not any((tmp_path / "run" / "models").iterdir())


@posix_only
def test_a_dry_run_that_is_asked_to_end_while_it_starts_ends_by_the_signal(tmp_path):
    assert train_with_early_signal(signal.SIGTERM, tmp_path, "--dry-run").returncode == -signal.SIGTERM


@posix_only
def test_a_rank_that_its_launcher_ends_while_it_starts_waits_for_no_other(tmp_path):
    """SIGHUP stays blocked for a rank of a supervisor, which ends it by other means."""
    ranks = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0"}
    ranks |= {"GROUP_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "9"}
    ranks |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "x"}
    done = train_with_early_signal(signal.SIGTERM, tmp_path, **ranks)
    assert done.returncode == -signal.SIGTERM, done.stderr


@pytest.mark.skipif(os.name != "posix", reason="bash closes the streams")
def test_a_script_whose_streams_are_closed_does_its_work_in_silence(tmp_path):
    """As cron jobs and services may be started: no file that is opened later gets the number of stdout."""
    (tmp_path / "sitecustomize.py").write_text(TELLS_OF_STREAMS)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "TOLD": str(tmp_path / "told.txt")}
    command = f"{shlex.quote(sys.executable)} {shlex.quote(str(SCRIPTS / 'train.py'))} --preset none <&- >&- 2>&-"
    assert subprocess.run(["bash", "-c", command], env=environment, timeout=PATIENCE_SECONDS).returncode == 2
    assert (tmp_path / "told.txt").read_text() == "0 1 2"
