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

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="these tests send signals and read /proc")


class Canary:
    """Makes a file where it is unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.parametrize("launcher", ["forked agent", "forked own torchrun", "forked spawn", "slurm"])
def test_no_port_is_open_to_the_network_and_a_stranger_runs_no_code(launcher, open_run, tmp_path):
    run = open_run(launcher, max_steps=100_000)
    run.wait_for_step(3)
    sockets = set().union(*(listening_sockets(pid) for pid in run.pids()))
    assert {address for address, _ in sockets} == {"127.0.0.1"}
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


def overwrite_rendezvous(port: int, value: bytes) -> list[str]:
    """What a stranger would write for torchrun's agent to unpickle; gives the keys at which it would."""
    store = TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=60), wait_for_workers=False)
    keys = store.list_keys()
    assert keys  # it is the store of the run
    found = [key for key in keys if "torch.rendezvous" in key]
    for key in found:
        store.set(key, base64.b64encode(value))
    return found
