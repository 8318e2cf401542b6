import itertools
import os
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from modules.launch.lifeline import LOST_EXIT_CODE, Lifeline, LifelineServer, RankError, RankState
from modules.launch.RankWatch import (
    SETTLE_SECONDS,
    START_SECONDS,
    SUSPENDED_SECONDS,
    Failure,
    RankWatch,
    watch_in_thread,
)
from modules.session.out_of_memory import ADVICE
from tests.support.waiting import PATIENCE_SECONDS

posix_only = pytest.mark.skipif(os.name == "nt", reason="exit codes of signals are POSIX")


class Ranks:
    """Two fake training ranks and what happens to them; the clock starts at 100 s."""

    def __init__(self, num_ranks=2):
        self.ranks = {rank: RankState(rank, 1000 + rank, 100.0, 100.0, "training", 60.0) for rank in range(num_ranks)}
        self.watch = RankWatch(SimpleNamespace(ranks=self.ranks), range(num_ranks))
        assert self.watch.verdict(100.0) is None

    def fails(self, rank, at, text="ValueError: no", user=False, symptom=False):
        self.ranks[rank].error = RankError(at, text, "line\n" * 30 + "last", user, symptom)

    def leaves(self, rank, at):
        self.ranks[rank].is_connected = False
        self.ranks[rank].lost_at = at

    def exits(self, rank, at, code):
        self.watch.exited(rank, code, at)

    def is_done(self, rank):
        self.ranks[rank].done = "finished"

    def verdict_at(self, *times):
        """The first verdict of a watcher that checks at `times`."""
        return next((verdict for now in times if (verdict := self.watch.verdict(now)) is not None), None)

    def settled(self, first_sign):
        return self.verdict_at(first_sign, first_sign + SETTLE_SECONDS)


@pytest.fixture
def ranks():
    return Ranks()


def test_all_is_well_while_heartbeats_come(ranks):
    assert ranks.verdict_at(101, 105, 110, 115) is None


def test_the_first_sign_waits_for_the_cause(ranks):
    ranks.fails(0, 101)
    assert ranks.watch.verdict(101) is None
    assert ranks.watch.verdict(101 + SETTLE_SECONDS - 0.01) is None
    assert ranks.watch.verdict(101 + SETTLE_SECONDS).rank == 0


def test_an_error_is_given_as_it_was_told(ranks):
    ranks.fails(1, 101, "ValueError: no")
    failure = ranks.settled(101)
    assert (failure.rank, failure.kind, failure.text, failure.phase) == (1, "error", "ValueError: no", "training")
    assert failure.traceback == "line\n" * 19 + "last"
    assert (failure.signal, failure.exit_code) == (None, None)


def test_the_record_holds_what_is_known(ranks):
    ranks.exits(1, 101, 3)
    assert ranks.settled(101).record() == {
        "rank": 1,
        "kind": "ended",
        "text": "Rank 1 ended with exit code 3 without saying why; see log/rank-1.log.",
        "exit_code": 3,
        "phase": "training",
    }


def test_a_user_error_is_told_from_others(ranks):
    ranks.fails(1, 101, user=True)
    assert ranks.settled(101).kind == "user_error"


@pytest.mark.parametrize("advice", ADVICE)
def test_full_memory_is_told_from_other_errors(ranks, advice):
    ranks.fails(1, 101, advice)
    assert ranks.settled(101).kind == "out_of_memory"


@pytest.mark.parametrize("symptom_at", [100.5, 101.5])
def test_a_symptom_is_never_the_cause_of_an_error(ranks, symptom_at):
    ranks.fails(0, symptom_at, "Connection closed by peer", symptom=True)
    ranks.fails(1, 101, "ValueError: no")
    assert ranks.settled(102).rank == 1


def test_of_two_errors_the_earlier_one_is_the_cause(ranks):
    ranks.fails(0, 101.2)
    ranks.fails(1, 101.1)
    assert ranks.settled(102).rank == 1


def test_a_symptom_alone_is_given(ranks):
    ranks.fails(0, 101, "Connection closed by peer", symptom=True)
    failure = ranks.settled(101)
    assert (failure.text, failure.is_symptom) == ("Connection closed by peer", True)


@posix_only
@pytest.mark.parametrize("order", list(itertools.permutations(["leaves", "exits", "symptom"])))
def test_a_killed_rank_is_the_cause_in_any_order_of_signs(ranks, order):
    for time, sign in zip([101, 101.3, 101.6], order, strict=True):
        if sign == "leaves":
            ranks.leaves(1, time)
        elif sign == "exits":
            ranks.exits(1, time, -signal.SIGKILL)
        else:
            ranks.fails(0, time, "Connection closed by peer", symptom=True)
    failure = ranks.settled(102)
    assert (failure.rank, failure.kind, failure.signal, failure.exit_code) == (1, "killed", "SIGKILL", -9)
    assert failure.text == ("Rank 1 was killed by SIGKILL: most often the system's memory was full; lower batch_size.")


@posix_only
def test_another_signal_is_named(ranks):
    ranks.exits(0, 101, -signal.SIGSEGV)
    assert ranks.settled(101).text == "Rank 0 was killed by SIGSEGV."


@posix_only
def test_a_rank_killed_after_another_failed_is_not_the_cause(ranks):
    ranks.fails(0, 101)
    ranks.exits(1, 101.5, -signal.SIGABRT)
    assert ranks.settled(102).rank == 0


@posix_only
def test_a_rank_that_told_its_error_and_then_crashed_has_failed_by_the_error(ranks):
    ranks.fails(1, 101, "ValueError: no")
    ranks.exits(1, 101.5, -signal.SIGABRT)
    assert ranks.settled(102).text == "ValueError: no"


def test_exit_code_0_before_the_end_is_a_failure(ranks):
    ranks.exits(1, 101, 0)
    failure = ranks.settled(101)
    assert (failure.kind, failure.exit_code) == ("ended", 0)
    assert failure.text == "Rank 1 ended before the training was finished."


def test_an_exit_seen_before_the_word_that_explains_it_is_no_failure(ranks):
    ranks.exits(1, 101, 0)
    assert ranks.watch.verdict(101) is None
    ranks.is_done(1)
    assert ranks.verdict_at(101.1, 105) is None


def test_an_exit_code_without_a_word_is_given(ranks):
    ranks.exits(1, 101, 3)
    failure = ranks.settled(101)
    assert (failure.kind, failure.exit_code) == ("ended", 3)
    assert failure.text == "Rank 1 ended with exit code 3 without saying why; see log/rank-1.log."


def test_a_rank_that_was_told_to_end_is_a_symptom(ranks):
    ranks.exits(0, 101, LOST_EXIT_CODE)
    ranks.exits(1, 101.5, 3)
    assert ranks.settled(102).rank == 1


def test_a_rank_that_is_done_and_crashes_afterwards_has_failed(ranks):
    ranks.is_done(1)
    ranks.exits(1, 101, 134)
    assert ranks.settled(101).exit_code == 134


def test_ranks_that_are_done_are_well(ranks):
    for rank in (0, 1):
        ranks.is_done(rank)
        ranks.exits(rank, 101, 0)
    assert ranks.verdict_at(101, 500, 900) is None


def test_a_lost_connection_is_a_failure_and_its_exit_code_may_come_later(ranks):
    ranks.leaves(1, 101)
    failure = ranks.settled(101)
    assert (failure.rank, failure.kind) == (1, "lost")
    assert ranks.watch.refresh(failure, 102.1) == failure
    ranks.exits(0, 102.2, -9)
    assert ranks.watch.refresh(failure, 102.3).rank == 1
    ranks.exits(1, 102.4, -9)
    assert ranks.watch.refresh(failure, 102.5).kind == "killed"


def test_an_exit_with_an_unknown_code_is_a_loss_until_the_code_is_known(ranks):
    ranks.exits(1, 101, None)
    assert ranks.settled(101).kind == "lost"
    ranks.exits(1, 103, 7)
    assert ranks.watch.verdict(103).exit_code == 7


def test_silence_beyond_the_limit_is_a_hang(ranks):
    look_every_second = [100 + second for second in range(70)]
    ranks.ranks[0].last_beat = 1000
    ranks.ranks[1].phase = "sampling"
    failure = ranks.verdict_at(*look_every_second)
    assert (failure.rank, failure.kind, failure.phase) == (1, "hung", "sampling")
    assert failure.text == "Rank 1 has not moved for 62 s while sampling (limit 60 s)."


def test_of_two_silent_ranks_the_one_that_was_silent_first_hangs(ranks):
    ranks.ranks[0].last_beat = 103
    failure = ranks.verdict_at(*(100 + second for second in range(70)))
    assert failure.rank == 1
    assert failure.text.endswith("(limit 60 s).")


def test_a_rank_that_is_ahead_of_a_silent_one_waits_for_it(ranks):
    ranks.ranks[0].step_beats, ranks.ranks[1].step_beats = 7, 6
    ranks.ranks[1].last_beat = 103  # of the step before, told late
    failure = ranks.verdict_at(*(100 + second for second in range(70)))
    assert failure.rank == 1
    assert failure.text.endswith("(limit 60 s).")


def test_ranks_that_fall_silent_together_are_all_named():
    ranks = Ranks(4)
    ranks.ranks[0].last_beat = 100.2
    ranks.ranks[2].last_beat = 100.01
    ranks.ranks[3].last_beat = 103
    failure = ranks.verdict_at(*(100 + second for second in range(70)))
    assert failure.rank == 1
    assert "(limit 60 s); ranks 0, 2 stopped within 1 s of it and may be the cause." in failure.text


def test_a_symptom_of_a_hang_is_not_its_cause(ranks):
    assert ranks.verdict_at(*range(100, 160)) is None
    ranks.fails(0, 160.5, "timed out", symptom=True)
    assert ranks.settled(160.6).rank == 1


def test_a_watcher_that_was_stopped_itself_forgives_silence(ranks):
    ranks.watch.verdict(101)
    woken = 101 + 1000
    assert SUSPENDED_SECONDS < 1000
    assert ranks.verdict_at(*(woken + second for second in range(60))) is None
    assert ranks.verdict_at(*(woken + second for second in range(60, 65))).kind == "hung"


def test_a_rank_that_never_connects_is_found(ranks):
    del ranks.ranks[1]
    ranks.ranks[0].limit_seconds = 1e9
    looks = [100 + 4 * number for number in range(int(START_SECONDS / 4) + 3)]
    failure = ranks.verdict_at(*looks)
    assert (failure.rank, failure.kind) == (1, "hung")
    assert failure.text == "Rank 1 has not started within 600 s."


def test_nothing_is_waited_for_when_all_ranks_have_ended():
    ranks = Ranks(1)
    ranks.leaves(0, 101)
    ranks.exits(0, 101, 3)
    assert ranks.watch.verdict(101).exit_code == 3


@pytest.mark.parametrize("code", [0, 1])
def test_the_last_words_of_ranks_that_have_all_ended_are_waited_for(code):
    ranks = Ranks(1)
    ranks.exits(0, 101, code)  # its message is still unread
    assert ranks.watch.verdict(101) is None
    if code:
        ranks.fails(0, 100.9)
        assert ranks.watch.verdict(101.1).text == "ValueError: no"
    else:
        ranks.is_done(0)
        assert ranks.verdict_at(101.1, 105) is None


def test_the_words_of_a_rank_that_has_ended_before_it_was_ever_heard_are_waited_for():
    ranks = Ranks(1)
    heard = ranks.ranks.pop(0)
    ranks.exits(0, 101, 0)  # all that it has sent is still unread
    assert ranks.watch.verdict(101) is None
    ranks.ranks[0] = heard
    ranks.is_done(0)
    assert ranks.verdict_at(101.1, 105) is None


@pytest.fixture
def server():
    return LifelineServer()  # the thread of the watch owns it


def test_a_thread_gives_the_verdict_and_then_ends_the_ranks(server):
    told, order = threading.Event(), []

    def on_verdict(failure: Failure) -> None:
        order.append(failure.text)
        told.set()

    first, second = (Lifeline.from_environment(rank, server.variables()) for rank in (0, 1))
    lost = threading.Event()
    first.on_lost = lambda: (order.append("lost"), lost.set())
    thread = watch_in_thread(server, on_verdict, range(2))
    second.failed("ValueError: no", "")
    second.close()
    assert told.wait(PATIENCE_SECONDS)
    assert lost.wait(PATIENCE_SECONDS)
    thread.join(PATIENCE_SECONDS)
    assert order == ["ValueError: no", "lost"]
    first.close()


def test_the_thread_ends_when_all_ranks_are_done(server):
    lines = [Lifeline.from_environment(rank, server.variables()) for rank in (0, 1)]
    thread = watch_in_thread(server, pytest.fail, range(2))
    lines[0].done("finished", 1)
    thread.join(0.3)
    assert thread.is_alive()
    lines[1].done("finished", 1)
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()
    for line in lines:
        line.close()


HOST = """
import os, signal, sys, time
from modules.launch.lifeline import Lifeline, LifelineServer
from modules.launch.RankWatch import watch_in_thread
server = LifelineServer()
Lifeline.from_environment(0, server.variables())
print(server.variables()["CHORUS_LIFELINE"], flush=True)
watch_in_thread(server, lambda failure: print(failure.text, flush=True), range(2))
time.sleep(600)
"""


@posix_only
def test_the_host_of_the_watch_ends_with_the_other_rank():
    host = subprocess.Popen([sys.executable, "-c", HOST], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    other = Lifeline.from_environment(1, {"CHORUS_LIFELINE": host.stdout.readline().strip()})
    other.close()
    stdout, _ = host.communicate(timeout=PATIENCE_SECONDS)
    assert host.returncode == LOST_EXIT_CODE
    assert stdout == "Rank 1 ended without saying why; see log/rank-1.log.\n"
