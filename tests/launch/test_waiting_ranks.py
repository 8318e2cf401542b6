"""Ranks that wait for a run. scripts/starting/standby.py as a whole is tested in tests/scripts/test_standby.py."""

from __future__ import annotations

from functools import partial

import pytest

from modules.launch import WaitingRanks as waiting_module
from modules.launch.WaitingRanks import WaitingRanks
from tests.support.waiting_rank import note_arguments, watched_import


def test_a_waiting_rank_has_its_libraries_no_device_and_does_what_it_is_told(tmp_path, monkeypatch):
    noted, said = tmp_path / "noted.json", tmp_path / "said.txt"
    monkeypatch.delenv("CHORUS_STARTED", raising=False)
    ranks = WaitingRanks(1, partial(watched_import, "sd15", noted))
    monkeypatch.setenv("CHORUS_STARTED", "1.5")
    ranks.log = said
    (process,) = ranks.take(1, note_arguments, ({"a": 1}, noted))
    process.join()
    assert process.exitcode == 0
    assert said.read_text() == "rank 0: {'a': 1}, started 1.5, devices touched: [], missing: []\n"
    assert ranks.take(1, note_arguments, ({}, noted)) == []


class FakeProcess:
    def __init__(self):
        self.exitcode = None

    def kill(self):
        self.exitcode = -9

    def join(self):
        assert self.exitcode is not None


@pytest.mark.parametrize("difference", ["more ranks", "a variable", "an end", "none"])
def test_ranks_that_new_ones_would_differ_from_are_ended_and_not_taken(difference, monkeypatch):
    processes = [FakeProcess(), FakeProcess()]
    monkeypatch.setattr(waiting_module, "spawn_ranks", lambda target, arguments, num_ranks: processes)
    ranks = WaitingRanks(2, print)
    monkeypatch.setattr(ranks, "_senders", [])
    if difference == "a variable":
        monkeypatch.setenv("OMP_NUM_THREADS", "7")
    if difference == "an end":
        processes[1].exitcode = 1
    taken = ranks.take(3 if difference == "more ranks" else 2, print, ())
    assert taken == (processes if difference == "none" else [])
    assert all((process.exitcode is None) == (difference == "none") for process in processes)
