"""Nobody outside the machine reaches a run that Chorus has started on it, and nothing that the run reads is code."""

from __future__ import annotations

import base64
import os
import pickle
import signal
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from torch.distributed import TCPStore

from modules.machine.listening import listening_sockets
from scripts import listening
from scripts.listening import WAYS
from tests.support.fork_server import ROOT, ForkedScript, pids_that_write_to
from tests.support.ports import free_port
from tests.support.StartedRun import kill_all
from tests.support.waiting import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="these tests send signals and read /proc")


class Canary:
    """Makes a file where it is unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


ROWS = {"forked agent": "agent", "forked own torchrun": "own torchrun", "forked spawn": "spawn"}


@pytest.mark.parametrize("launcher", [*ROWS, "slurm"])
def test_no_port_is_open_to_the_network_and_a_stranger_runs_no_code(launcher, open_run, tmp_path):
    port = free_port()
    run = open_run(launcher, max_steps=100_000, initial_port=str(port))
    run.wait_for_step(3)
    sockets = sockets_of(run.pids())
    assert {address for address, _ in sockets} == {"127.0.0.1"}
    if launcher in ROWS:
        assert listening.row(WAYS[ROWS[launcher]], sockets, port) in table()
    canary = tmp_path / "canary"
    if launcher == "forked agent":
        ((_, port),) = listening_sockets(run.processes[0].pid)
        assert overwrite_rendezvous(port, pickle.dumps(Canary(canary))) == []
    for process in run.processes:
        os.killpg(process.pid, signal.SIGTERM)
    run.wait()
    assert run.record()["status"] == "stopped", run.output
    assert list((run.folder / "models").iterdir())
    assert not canary.exists()


def test_what_a_program_launches_is_reached_from_this_machine_only(tmp_path):
    output, written = tmp_path / "output.txt", tmp_path / "long-2" / "history.json"
    program = [str(ROOT / "tests" / "support" / "launched_training.py"), "long", str(tmp_path), "2"]
    process = ForkedScript(program, {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}, output)
    try:
        wait_until(lambda: written.exists() or process.poll() is not None, PATIENCE_SECONDS)
        sockets = sockets_of(pids_that_write_to(output))
    finally:
        kill_all(pids_that_write_to(output))
        process.wait()
    assert sockets, output.read_text()
    assert listening.row(WAYS["launch"], sockets, 0) in table()


def test_the_table_has_each_way_to_start_once():
    names = [line.split(" | ")[0].removeprefix("| ") for line in table()[2:]]
    assert names == [way.name for way in WAYS.values()]


@pytest.mark.proof
def test_the_table_is_what_is_seen_of_every_way_to_start():
    assert listening.measured_table().splitlines() == table()


def table() -> list[str]:
    """The lines of the table in docs/multi_gpu.md."""
    text = listening.PAGE.read_text(encoding="utf-8")
    return text.partition(listening.BEGIN)[2].partition(listening.END)[0].strip().splitlines()


def sockets_of(pids: list[int]) -> listening.Sockets:
    return set().union(*(listening_sockets(pid) for pid in pids))


def overwrite_rendezvous(port: int, value: bytes) -> list[str]:
    """What a stranger would write for torchrun's agent to unpickle; gives the keys at which it would."""
    store = TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=60), wait_for_workers=False)
    keys = store.list_keys()
    assert keys  # it is the store of the run
    found = [key for key in keys if "torch.rendezvous" in key]
    for key in found:
        store.set(key, base64.b64encode(value))
    return found
