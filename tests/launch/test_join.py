"""How a rank started by another launcher ends."""

from __future__ import annotations

import contextlib
import signal
import threading
from pathlib import Path

import pytest
from torch.distributed import HashStore

from modules.config.errors import UserError
from modules.config.files import config_from_values
from modules.distributed.environments import SlurmEnvironment
from modules.distributed.SignedStore import SignedStore
from modules.launch import join
from modules.launch.lifeline import Lifeline, LifelineServer
from modules.launch.plan import JoinPlan
from modules.launch.RankWatch import watch_in_thread
from modules.launch.run import Outcome
from modules.session.RunFolder import RunFolder
from modules.session.signals import stop_signals
from tests.support.waiting import PATIENCE_SECONDS, wait_until

LATER_SECONDS = 0.3


@pytest.fixture(autouse=True)
def same_signals():
    before = {number: signal.getsignal(number) for number in stop_signals()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def planned(environment: SlurmEnvironment, folder: Path) -> JoinPlan:
    return JoinPlan(
        config=config_from_values({"workspace_dir": str(folder)}),
        resume=False,
        stop_signals=(),
        requeue_signals=(),
        environment=environment,
        is_supervised=False,
    )


def test_the_rank_that_keeps_the_watch_of_a_machine_stays_until_its_other_ranks_are_done(monkeypatch, tmp_path):
    """On the second of two machines, whose ranks no other machine waits for at the end."""
    order = []
    with contextlib.closing(LifelineServer()) as server:
        first, second = (Lifeline.from_environment(rank, server.variables()) for rank in (2, 3))
        second.on_lost = lambda: order.append("the second has lost the first")
        watch = watch_in_thread(server, lambda failure: order.append(failure.text), (2, 3))

        def train(plan, lifeline, started, checked):
            lifeline.done("finished", 8)
            return Outcome("finished", 8)

        def end_later():
            wait_until(lambda: 2 in server.ranks and server.ranks[2].done)
            threading.Event().wait(LATER_SECONDS)
            order.append("the second is done")
            second.done("finished", 8)

        monkeypatch.setattr(join, "_meet", lambda *arguments: (first, watch))
        monkeypatch.setattr(join, "train_as_rank", train)
        monkeypatch.setattr(join, "end_process", lambda outcome, lifeline: order.append("the first ends"))
        other = threading.Thread(target=end_later)
        other.start()
        environment = SlurmEnvironment(2, 0, 4, 2, 1, 2, "127.0.0.1", 12355, "job", 0)
        join.join_training(planned(environment, tmp_path))
        other.join()
        first.close()
        second.close()
    assert order == ["the second is done", "the first ends"]


def test_rank_0_stays_until_the_others_have_read_why_all_are_refused(monkeypatch, tmp_path):
    """Its end may take the store with it, or have the launcher kill the others."""
    (tmp_path / "models" / "model").mkdir(parents=True)
    store, ended = SignedStore(HashStore(), b"key", "run"), []
    monkeypatch.setattr("modules.distributed.setup_distributed.setup_distributed", lambda config, tell: None)
    monkeypatch.setattr("modules.distributed.setup_distributed.run_store", lambda: store)
    monkeypatch.setattr(join, "REFUSAL_SECONDS", 0.0)

    def meet(rank: int) -> None:
        environment = SlurmEnvironment(rank, rank, 2, 2, 0, 1, "127.0.0.1", 12355, "job", 0)
        folder = RunFolder(tmp_path)
        with pytest.raises((UserError, SystemExit)) as end, contextlib.ExitStack() as held:
            join._meet(planned(environment, tmp_path), folder, held)
        ended.append((rank, type(end.value)))

    first = threading.Thread(target=meet, args=(0,))
    first.start()
    assert store.wait_for("is_refused", PATIENCE_SECONDS)
    threading.Event().wait(LATER_SECONDS)
    assert ended == []
    meet(1)
    first.join()
    assert sorted(ended) == [(0, UserError), (1, SystemExit)]


def test_the_rank_that_keeps_the_watch_waits_for_nobody_after_a_second_ctrl_c(monkeypatch, tmp_path):
    """The others may be in a collective that this rank never joins, so they end with it."""
    ended = []
    with contextlib.closing(LifelineServer()) as server:
        first, second = (Lifeline.from_environment(rank, server.variables()) for rank in (0, 1))
        second.on_lost = lambda: None
        watch = watch_in_thread(server, lambda failure: None, (0, 1))
        monkeypatch.setattr(join, "_meet", lambda *arguments: (first, watch))
        monkeypatch.setattr(join, "record_end", lambda folder, outcome: None)
        monkeypatch.setattr(join, "train_as_rank", lambda *arguments: Outcome("stopped", at_once=True))
        monkeypatch.setattr(join, "end_process", lambda outcome, lifeline: ended.append(watch.is_alive()))
        environment = SlurmEnvironment(0, 0, 2, 2, 0, 1, "127.0.0.1", 12355, "job", 0)
        join.join_training(planned(environment, tmp_path))
        assert ended == [True]
        first.done("stopped", 0)
        second.done("stopped", 0)
        watch.join()
        first.close()
        second.close()
