"""What forked processes promise to the tests that start runs in them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from multiprocessing.connection import Connection

import pytest

from tests.support.fork_server import ForkedScript, pids_of_session, start_forked
from tests.support.waiting import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")

SCRIPT = """
import os, sys, time
print(sys.argv[1:], os.environ["GIVEN"], "HOME" in os.environ, flush=True)
print("an error", file=sys.stderr, flush=True)
while sys.argv[1] == "wait":
    time.sleep(0.01)
sys.exit(7)
"""


def tell_modules(connection: Connection) -> None:
    connection.send([name for name in ("torch", "diffusers", "peft", "modules.launch.start") if name in sys.modules])


def test_a_forked_process_begins_with_all_imports_done():
    ours, theirs = multiprocessing.Pipe()
    process = start_forked(tell_modules, theirs)
    assert ours.recv() == ["torch", "diffusers", "peft", "modules.launch.start"]
    process.join()


@pytest.fixture
def start(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return lambda argument: ForkedScript([str(path), argument], {"GIVEN": "a value"}, tmp_path / "output.txt")


def test_a_script_gets_its_arguments_environment_and_output_and_its_exit_code_is_told(start, tmp_path):
    process = start("end")
    assert process.wait(PATIENCE_SECONDS) == process.poll() == 7
    assert (tmp_path / "output.txt").read_text() == "['end'] a value False\nan error\n"


def test_a_script_has_a_session_of_its_own_and_a_signal_to_it_is_its_end(start, tmp_path):
    process = start("wait")
    wait_until(lambda: (tmp_path / "output.txt").exists() and "error" in (tmp_path / "output.txt").read_text())
    assert pids_of_session(process.pid) == [process.pid]
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait(PATIENCE_SECONDS) == -signal.SIGTERM
    assert pids_of_session(process.pid) == []
