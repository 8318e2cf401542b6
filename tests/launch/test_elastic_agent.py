"""torchrun's agent as Chorus starts it: its store is for this machine alone."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

import pytest

from modules.launch.elastic_agent import parse
from tests.support.fork_server import ROOT, ForkedScript
from tests.support.ports import free_port
from tests.support.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="torchrun does not work with PyTorch's Windows builds")

# Of each rank: what the agent listens on, and where it is said to; then as many failures as are asked for.
RANK = """
import json, os, signal, sys
from pathlib import Path
from modules.machine.listening import listening_sockets
said = [os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])]
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
path = Path(sys.argv[1]) / f"{os.environ['RANK']}-{attempt}.json"
path.write_text(json.dumps([sorted(listening_sockets(os.getppid())), said]))
if os.environ["RANK"] == "1" and int(attempt) < int(sys.argv[2]):
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def start(tmp_path):
    """A function that runs the agent with options of torchrun over two ranks; gives (exit code, what it printed)."""
    script = tmp_path / "rank.py"
    script.write_text(RANK)

    def run(*options: str, failures: int = 0) -> tuple[int, str]:
        output = tmp_path / "output.txt"
        output.write_text("")
        words = [str(ROOT / "scripts" / "elastic_agent.py"), "--nproc-per-node=2", *options]
        words += [str(script), str(tmp_path), str(failures)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        code = ForkedScript(words, environment, output).wait(PATIENCE_SECONDS)
        return code, output.read_text()

    return run


def seen(folder: Path) -> list[list]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


@pytest.mark.parametrize("options", [[], ["--standalone"]])
def test_on_one_machine_the_only_port_is_a_free_one_of_loopback(options, start, tmp_path):
    assert start(*options) == (0, "")
    (first, second) = seen(tmp_path)
    assert first == second
    sockets, said = first
    assert sockets == [said]
    assert said[0] == "127.0.0.1"


def test_the_port_that_is_asked_for_is_taken_and_kept_when_ranks_are_restarted(start, tmp_path):
    port = free_port()
    code, _ = start(f"--master-port={port}", "--max-restarts=1", "--monitor-interval=0.1", failures=1)
    assert code == 0
    assert seen(tmp_path) == [[[["127.0.0.1", port]], ["127.0.0.1", port]]] * 4  # two ranks, twice


def test_a_busy_port_is_told_and_another_one_is_taken(start, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        code, said = start(f"--master-port={port}")
    taken = seen(tmp_path)[0][1][1]
    assert (code, said) == (0, f"Port {port} is busy: using {taken}.\n")


def test_a_rank_that_fails_is_printed_unless_a_file_is_named_for_it(start, tmp_path):
    code, said = start(failures=1)
    assert code == 1
    assert "Signal 9 (SIGKILL)" in said
    code, said = start(f"--ends={tmp_path / 'ends'}", failures=1)
    assert code == 1
    assert "SIGKILL)" not in said
    assert json.loads((tmp_path / "ends").read_text()) == {"1": -9}


def test_a_port_that_is_none_is_refused(capsys):
    with pytest.raises(SystemExit):
        parse(["--master-port=70000", "train.py"])
    assert "--master-port 70000: ports go up to 65535" in capsys.readouterr().err
