"""What forked processes promise to the tests that start runs in them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from multiprocessing.connection import Connection

import pytest

from tests.support.fork_server import ForkedScript, call_forked, pids_that_write_to, start_forked
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
    output = tmp_path / "output.txt"
    wait_until(lambda: output.exists() and "error" in output.read_text())
    assert os.getsid(process.pid) == process.pid
    assert pids_that_write_to(output) == [process.pid]
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait(PATIENCE_SECONDS) == -signal.SIGTERM
    assert pids_that_write_to(output) == []


def code_of_what_it_starts(line: str) -> tuple[int, int]:
    return os.getpid(), subprocess.run([sys.executable, *line.split()]).returncode


def test_a_function_is_called_in_a_process_of_its_own_and_what_it_starts_is_forked(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import sys; sys.exit(7 if 'torch' in sys.modules else 1)")
    pid, code = call_forked(code_of_what_it_starts, str(script))
    assert pid != os.getpid()
    assert code == 7
    with pytest.raises(EOFError):
        call_forked(code_of_what_it_starts)


STARTER = """
import json, signal, subprocess, sys
signal.signal(signal.SIGTERM, lambda *_: None)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
kept = open(sys.argv[1])
options = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE, "start_new_session": True}
done = subprocess.Popen([sys.executable, "-u", *sys.argv[1:]], env={"GIVEN": "another"}, **options)
_, error = done.communicate(b"what it is told")
sys.exit(100 + done.returncode if error == b"an error\\n" else 1)
"""
STARTED = """
import os, signal, sys
print(*sys.argv[1:], *os.environ, "torch" in sys.modules, os.getsid(0) == os.getpid(), flush=True)
print(sys.stdin.read(), *(signal.getsignal(n).name for n in (signal.SIGTERM, signal.SIGHUP)), flush=True)
print([fd for fd in os.listdir("/proc/self/fd") if os.path.realpath(f"/proc/self/fd/{fd}") == __file__], flush=True)
print("an error", file=sys.stderr)
sys.exit(7)
"""


@pytest.mark.parametrize("is_module", [False, True])
def test_what_a_script_starts_by_python_is_forked_and_begins_as_a_new_process(is_module, tmp_path):
    (tmp_path / "starter.py").write_text(STARTER)
    (tmp_path / "started.py").write_text(STARTED)
    arguments = ["-m", "starter"] if is_module else [str(tmp_path / "starter.py")]
    output = tmp_path / "output.txt"
    process = ForkedScript([*arguments, str(tmp_path / "started.py"), "x"], {"GIVEN": "a value"}, output, cwd=tmp_path)
    assert process.wait(PATIENCE_SECONDS) == 107, output.read_text()
    assert output.read_text().splitlines() == ["x GIVEN True True", "what it is told SIG_DFL SIG_IGN", "[]"]
