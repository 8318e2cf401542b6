"""Processes that wait for a start: when they do, and what becomes of them."""

from __future__ import annotations

import json
import os
import time

import pytest

from modules.machine.memory_estimate import GIB
from modules.session.RunFolder import RunFolder
from modules.ui.models import Standby as standby_module
from modules.ui.models import StandbyKeeper as keeper_module
from modules.ui.models.RunModel import start_supervisor
from modules.ui.models.ScriptRun import ScriptRun
from modules.ui.models.Standby import MAX_REQUEST_BYTES, Standby, StandbyPlan
from modules.ui.models.StandbyKeeper import FIRST_SECONDS, REST_SECONDS, UNUSED_SECONDS, StandbyKeeper
from tests.support.waiting import wait_until

RUN, IMAGES = StandbyPlan("train", "sd15"), StandbyPlan("sample", "sd15")
ECHO = """
import os, sys
line = sys.stdin.readline()
if line:
    print(os.getpid(), line)
"""


@pytest.fixture
def chorus(tmp_path, monkeypatch):
    """A folder in place of that of Chorus, in which a waiting process tells its id and what it is asked for."""
    script = tmp_path / "chorus" / "scripts" / "starting" / "standby.py"
    script.parent.mkdir(parents=True)
    script.write_text(ECHO)
    monkeypatch.setattr(standby_module, "ROOT", tmp_path / "chorus")
    return script


class TestProcess:
    def test_images_are_made_by_the_process_that_waits(self, chorus):
        standby = Standby(IMAGES)
        run = ScriptRun("sample.py", None, ["--prompt", "a fox"], standby=lambda kind, *asked: standby.take(*asked))
        pid, request = run.run().split(maxsplit=1)
        assert int(pid) == standby.process.pid
        assert json.loads(request)["script"] == "sample.py"
        assert json.loads(request)["arguments"] == ["--prompt", "a fox"]

    def test_images_that_are_cancelled_before_they_begin_end_the_process(self, chorus):
        standby = Standby(IMAGES)
        run = ScriptRun("sample.py", None, [], standby=lambda kind, *asked: (run.cancel(), standby.take(*asked))[1])
        assert run.run() is None
        assert not standby.is_waiting

    def test_a_run_is_the_process_that_waits(self, chorus, tmp_path):
        folder = RunFolder(tmp_path / "run")
        folder.create()
        asked = []
        process = object()
        started = start_supervisor(folder, folder.config_path, True, 1.5, lambda *what: asked.append(what) or process)
        assert started is process
        options = ["--supervise", "--config", str(folder.config_path), "--resume"]
        assert asked == [("train", "train.py", options, {"CHORUS_STARTED": "1.5"}, folder.window_log_path)]

    @pytest.mark.parametrize("what", ["variable", "code", "folder", "package", "long request", "its own end"])
    def test_one_that_a_new_process_would_differ_from_is_ended_and_not_taken(self, what, chorus, tmp_path, monkeypatch):
        (tmp_path / "site-packages").mkdir()
        monkeypatch.syspath_prepend(str(tmp_path / "site-packages"))
        standby, arguments = Standby(IMAGES), []
        assert standby.fits()
        match what:
            case "variable":
                monkeypatch.setenv("HF_HOME", str(tmp_path))
            case "code":
                chorus.write_text(f"{ECHO}\n")
            case "folder":
                monkeypatch.chdir(tmp_path)
            case "package":
                os.utime(tmp_path / "site-packages", (1, 1))
            case "long request":
                arguments = ["x" * MAX_REQUEST_BYTES]
            case _:
                standby.process.kill()
                standby.process.wait()
        assert standby.take("sample.py", arguments) is None
        wait_until(lambda: not standby.is_waiting)


class FakeStandby:
    made: list[FakeStandby]

    def __init__(self, plan):
        self.plan, self.is_waiting = plan, True
        self.made.append(self)

    def take(self, *asked):
        return self, asked

    def end(self):
        self.is_waiting = False


class Clock:
    now = 1000.0
    time = staticmethod(time.time)

    def monotonic(self):
        return self.now


class Scheduler:
    def every(self, seconds, job):
        self.job = job


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(keeper_module, "time", clock)
    return clock


@pytest.fixture
def memory(monkeypatch):
    """[available bytes]"""
    found = [16 * GIB]
    monkeypatch.setattr(keeper_module, "available_bytes", lambda: found[0])
    return found


@pytest.fixture
def plans():
    return [RUN]


@pytest.fixture
def keeper(clock, memory, plans, monkeypatch):
    """As in a window that opened a while ago."""
    FakeStandby.made = []
    monkeypatch.setattr(keeper_module, "Standby", FakeStandby)
    monkeypatch.setattr(keeper_module, "num_cores", lambda: 2)
    keeper = StandbyKeeper(lambda: plans, lambda: keeper.wish)
    keeper.wish = True
    keeper.start(Scheduler())
    clock.now += FIRST_SECONDS
    return keeper


def waiting(keeper) -> list[StandbyPlan]:
    """The plans for which a process waits after a look."""
    keeper.look()
    return [standby.plan for standby in FakeStandby.made if standby.is_waiting]


class TestKeeper:
    def test_nothing_waits_in_a_window_that_was_not_told_to(self, clock, memory, monkeypatch):
        """As those of the tests."""
        monkeypatch.setattr(keeper_module, "Standby", None)
        keeper = StandbyKeeper(lambda: [RUN], lambda: True)
        keeper.hurry()
        assert keeper.take("train", "train.py", []) is None

    def test_a_process_starts_once_the_window_rests(self, keeper, clock):
        keeper.note_use()
        assert waiting(keeper) == []
        clock.now += REST_SECONDS
        assert waiting(keeper) == waiting(keeper) == [RUN]
        assert len(FakeStandby.made) == 1

    def test_a_start_that_is_being_checked_waits_for_no_rest(self, keeper):
        keeper.note_use()
        keeper.hurry()
        assert waiting(keeper) == [RUN]

    def test_one_core_is_left_to_the_window(self, clock, memory, monkeypatch):
        monkeypatch.setattr(keeper_module, "num_cores", lambda: 1)
        keeper, scheduler = StandbyKeeper(lambda: [RUN], lambda: True), Scheduler()
        keeper.start(scheduler)
        assert not hasattr(scheduler, "job")

    def test_the_switch_ends_it(self, keeper):
        assert waiting(keeper) == [RUN]
        keeper.wish = False
        assert waiting(keeper) == []

    def test_it_ends_when_the_window_is_not_used(self, keeper, clock):
        assert waiting(keeper) == [RUN]
        clock.now += UNUSED_SECONDS
        assert waiting(keeper) == []
        keeper.note_use()
        clock.now += REST_SECONDS
        assert waiting(keeper) == [RUN]

    def test_it_ends_when_memory_is_short_and_starts_only_with_room_for_its_ranks(self, keeper, memory, plans):
        assert waiting(keeper) == [RUN]
        memory[0] = 0.9 * GIB
        assert waiting(keeper) == []
        memory[0] = 4 * GIB
        plans[:] = [StandbyPlan("train", "sd15", num_ranks=8)]
        assert waiting(keeper) == []
        plans[:] = [StandbyPlan("train", "sd15", num_ranks=2)]
        assert waiting(keeper) == plans

    def test_another_number_of_ranks_takes_other_ranks(self, keeper, plans):
        assert waiting(keeper) == [RUN]
        plans[:] = [StandbyPlan("train", "sd15", num_ranks=2), IMAGES]
        assert waiting(keeper) == plans

    def test_another_family_needs_no_other_process(self, keeper, plans):
        assert waiting(keeper) == [RUN]
        plans[:] = [StandbyPlan("train", "sdxl")]
        assert len(waiting(keeper)) == len(FakeStandby.made) == 1

    def test_one_that_ends_by_itself_is_not_started_again(self, keeper, clock):
        assert waiting(keeper) == [RUN]
        FakeStandby.made[0].is_waiting = False
        assert waiting(keeper) == []

    def test_what_is_taken_is_not_ended_and_the_next_one_waits(self, keeper, plans):
        plans[:] = [IMAGES]
        assert waiting(keeper) == [IMAGES]
        taken, asked = keeper.take("sample", "sample.py", ["--out", "x"])
        assert asked[:2] == ("sample.py", ["--out", "x"])
        assert keeper.take("sample", "sample.py", []) is None
        assert waiting(keeper) == [IMAGES, IMAGES]
        keeper.close()
        assert waiting(keeper) == [IMAGES]
        assert taken.is_waiting
