"""The supervisor with real processes, but toy ranks (tests/support/toy_ranks.py)."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from modules.config.TrainConfig import TrainConfig
from modules.distributed.Heartbeat import LIMIT_VARIABLE
from modules.launch import RankWatch, stacks
from modules.launch import Supervisor as module
from modules.launch.elastic_agent import failed_ranks
from modules.launch.launchers import SpawnLauncher, TorchrunLauncher, torchrun_command
from modules.launch.plan import SupervisePlan, plan_launch
from modules.launch.Supervisor import FAILED, FINISHED, STOPPED, Supervisor
from modules.machine.Machine import Machine
from modules.session.RunFolder import RunFolder
from modules.session.signals import remember_signals
from modules.session.slurm import REQUEUE_SIGNALS, REQUEUED
from tests.support.ports import free_port
from tests.support.Recorder import Recorder
from tests.support.toy_ranks import ForkedToyLauncher, ToyLauncher, toy_rank
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="these tests send signals and read /proc")

ROOT = Path(__file__).parents[2]
KILLED = "Rank {} was killed by SIGKILL: most often the system's memory was full; lower batch_size."


class Failures(Recorder):
    def __init__(self):
        super().__init__()
        self.failures: list[str] = []

    def on_failed(self, text: str) -> None:
        self.failures.append(text)


@pytest.fixture
def folder(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.create()
    yield folder
    # torchrun's ranks are not the supervisor's children: they have closed their files and are just ending
    wait_until(lambda: not any(is_alive(pid) for pid in pids(folder)), 30)


@pytest.fixture
def callbacks():
    return Failures()


@pytest.fixture
def supervise(folder, callbacks):
    """A function that runs a supervisor over toy ranks, with a list of actions for each, and returns its exit code.

    launcher: ToyLauncher if the ranks have to be child processes that inherit blocked signals.
    """

    def run(*actions, launcher=ForkedToyLauncher, **options):
        scenario = {"folder": str(folder.path), **{str(rank): names for rank, names in enumerate(actions)}}
        path = folder.path / "scenario.json"
        path.write_text(json.dumps(scenario))
        callbacks.attempts = []

        def make_launcher(attempt, resume):
            callbacks.attempts.append((attempt, resume))
            return launcher(path, len(actions))

        return Supervisor(folder, make_launcher, callbacks, **options).run()

    return run


@pytest.fixture
def spawn(supervise):
    """The same with torch.multiprocessing.spawn, which takes seconds."""

    def launcher(path, num_ranks):
        return SpawnLauncher(toy_rank, [json.loads(path.read_text())], num_ranks)

    return lambda *actions, **options: supervise(*actions, launcher=launcher, **options)


@pytest.fixture
def ends(folder):
    """The file in which torchrun's agent records the exit codes of failed ranks."""
    return folder.path / "ends.json"


@pytest.fixture
def torchrun(supervise, ends, monkeypatch):
    """The same with ranks started by another process, by default a fake torchrun agent."""
    monkeypatch.setattr(module, "_EXIT_CODE_SECONDS", 60)  # enough on a busy machine

    def run(*actions, command=None, **options):
        agent = [sys.executable, str(ROOT / "tests" / "support" / "toy_agent.py")]
        command = command or [*agent, str(ends), str(len(actions))]

        def launcher(path, num_ranks):
            return TorchrunLauncher([*command, str(path)], num_ranks, ends)

        return supervise(*actions, launcher=launcher, grace_seconds=1, **options)

    return run


def is_alive(pid):
    """Whether a process is running; a zombie that has not been reaped counts as dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def pids(folder):
    return [int(path.read_text()) for path in folder.path.glob("pid-?-?")]


def wait_for_ranks(folder):
    wait_until(lambda: len(pids(folder)) == 2)


@contextlib.contextmanager
def meanwhile(act):
    thread = threading.Thread(target=act)
    thread.start()
    try:
        yield
    finally:  # a late signal would end the tests
        thread.join()


def test_a_run_is_finished_when_every_rank_says_so_and_ends_with_0(folder, callbacks, supervise):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    assert supervise(["finish"], ["wait_a_moment", "finish"]) == FINISHED
    record = folder.read_exit()
    assert (record["status"], record["rank"]) == ("finished", 0)
    assert (callbacks.failures, callbacks.warnings) == ([], [])
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_who_follows_the_run_sees_that_a_silent_phase_goes_on(folder, supervise, monkeypatch):
    """With ranks that write no events for a long time, as during caching."""
    monkeypatch.setattr(module, "_HEARTBEATS_SECONDS", 0.1)
    supervise(["wait_a_moment", "finish"], ["wait_a_moment", "finish"])
    record = json.loads(folder.heartbeats_path(0).read_bytes())
    assert time.time() - record["time"] < 60
    assert sorted(record["ranks"]) == ["0", "1"]
    for rank in record["ranks"].values():
        assert rank["phase"] == "loading"
        assert 0 <= rank["silent_seconds"] <= rank["limit_seconds"]
        assert rank["done"] in (None, "finished")


@pytest.mark.parametrize("other", [["symptom"], ["wait_a_moment", "symptom"]], ids=["earlier", "later"])
def test_the_cause_is_told_and_not_its_symptom(folder, callbacks, supervise, other, monkeypatch):
    monkeypatch.setattr(RankWatch, "SETTLE_SECONDS", 60)  # no waiting once both have ended
    first = ["wait_a_moment", "raise"] if other == ["symptom"] else ["raise"]
    assert supervise(other, first) == FAILED
    record = folder.read_exit()
    assert (record["rank"], record["kind"], record["text"]) == (1, "error", "ValueError: no such luck")
    assert record["traceback"] == "Traceback\nlast line"
    assert callbacks.failures == ["ValueError: no such luck"]


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_is_named_and_ends_the_other(folder, callbacks, supervise, victim):
    actions = [["work"], ["work"]]
    actions[victim] = ["kill_itself"]
    assert supervise(*actions) == FAILED
    record = folder.read_exit()
    assert (record["status"], record["rank"], record["kind"]) == ("failed", victim, "killed")
    assert (record["signal"], record["exit_code"], record["phase"]) == ("SIGKILL", -9, "loading")
    assert callbacks.failures == [record["text"]] == [KILLED.format(victim)]


def test_a_cause_is_shown_within_five_seconds():
    assert RankWatch.SETTLE_SECONDS + module._EXIT_CODE_SECONDS <= 4.5  # plus the processes' own time


def test_exit_code_0_is_not_enough(folder, supervise):
    assert supervise(["finish"], ["exit_0"]) == FAILED
    record = folder.read_exit()
    assert (record["rank"], record["kind"], record["exit_code"]) == (1, "ended", 0)


def test_to_be_done_is_not_enough(folder, supervise):
    assert supervise(["finish"], ["finish", "exit_3"]) == FAILED
    record = folder.read_exit()
    assert (record["rank"], record["kind"], record["exit_code"]) == (1, "ended", 3)


def test_a_rank_that_fails_just_after_the_supervisor_looked_has_still_failed(folder, supervise, monkeypatch):
    launchers = []

    class LooksTooEarly(RankWatch.RankWatch):
        def verdict(self, now):
            verdict = super().verdict(now)
            states = self._server.ranks.values()
            if len(states) == 2 and all(state.done for state in states) and launchers[0].is_running():
                for state in states:
                    os.kill(state.pid, signal.SIGKILL)
                wait_until(lambda: not launchers[0].is_running())
            return verdict

    def launcher(*arguments):
        launchers.append(ForkedToyLauncher(*arguments))
        return launchers[0]

    monkeypatch.setattr(module, "RankWatch", LooksTooEarly)
    assert supervise(["finish", "hang"], ["finish", "hang"], launcher=launcher) == FAILED
    assert folder.read_exit()["signal"] == "SIGKILL"


def test_a_hanging_rank_is_ended_and_its_stacks_are_saved(folder, supervise, monkeypatch):
    monkeypatch.setenv(LIMIT_VARIABLE, "1")
    monkeypatch.setattr(stacks, "STACKS_SECONDS", 60)  # no waiting once both have written them
    assert supervise(["work"], ["hang"]) == FAILED
    record = folder.read_exit()
    assert (record["rank"], record["kind"]) == (1, "hung")
    assert record["text"].endswith("while loading (limit 1 s); its stacks are in log/rank-1.stacks.")
    assert "_hang_in_this_function" in folder.stacks_path(1).read_text()
    assert "_work" in folder.stacks_path(0).read_text()


def test_a_stopped_process_counts_as_hanging_and_promises_no_stacks(folder, supervise, monkeypatch):
    monkeypatch.setenv(LIMIT_VARIABLE, "1")
    assert supervise(["stop_itself"], ["work"], grace_seconds=0.5) == FAILED
    record = folder.read_exit()
    assert (record["rank"], record["kind"]) == (0, "hung")
    assert record["text"].endswith("(limit 1 s).")


def test_the_record_is_there_while_a_deaf_rank_still_lives(folder, callbacks, supervise):
    def note(text):
        callbacks.record = folder.read_exit()
        callbacks.was_alive = is_alive(int((folder.path / "pid-0-0").read_text()))

    callbacks.on_failed = note
    assert supervise(["be_deaf", "work"], ["wait_a_moment", "raise"], grace_seconds=0.5) == FAILED
    assert callbacks.record["rank"] == 1
    assert callbacks.was_alive


def test_a_rank_that_is_done_but_does_not_end_is_killed_with_a_warning(folder, callbacks, supervise, monkeypatch):
    monkeypatch.setattr(module, "LINGER_SECONDS", 0.5)
    assert supervise(["finish"], ["finish", "be_deaf", "hang"]) == FINISHED
    assert callbacks.warnings == ["The training is done, but its ranks did not end within 0.5 s."]
    assert folder.read_exit()["status"] == "finished"


def test_an_accident_is_followed_by_another_attempt_from_the_backup(folder, callbacks, supervise):
    code = supervise([["work"], ["finish"]], [["kill_itself"], ["finish"]], max_restarts=2, has_backup=lambda: True)
    assert code == FINISHED
    assert callbacks.attempts == [(0, False), (1, True)]
    assert callbacks.warnings == [KILLED.format(1) + " Starting again from the last backup (1 of 2)."]
    assert callbacks.failures == []
    assert folder.read_exit()["status"] == "finished"


def test_attempts_come_to_an_end(folder, callbacks, supervise):
    assert supervise(["exit_3"], max_restarts=1) == FAILED
    assert callbacks.attempts == [(0, False), (1, True)]  # resumed, although there are models but no backup
    assert callbacks.warnings[0].endswith("Starting again from the beginning (1 of 1).")
    assert folder.read_exit()["exit_code"] == 3


def test_a_cause_without_a_full_stop_gets_one(callbacks, supervise):
    assert supervise(["raise"], max_restarts=1) == FAILED
    assert callbacks.warnings == ["ValueError: no such luck. Starting again from the beginning (1 of 1)."]


def test_an_error_of_the_user_is_not_tried_again(folder, callbacks, supervise):
    assert supervise(["raise_user_error"], max_restarts=2) == FAILED
    assert callbacks.attempts == [(0, False)]
    assert folder.read_exit()["kind"] == "user_error"


def test_the_first_interrupt_asks_for_a_stop(folder, callbacks, supervise):
    def interrupt():
        wait_for_ranks(folder)
        os.kill(os.getpid(), signal.SIGINT)

    with meanwhile(interrupt):
        assert supervise(["work_until_stopped"], ["work_until_stopped"], max_restarts=1) == STOPPED
    assert callbacks.statuses[1:] == ["Stopping within two steps; press Ctrl-C again to stop at once without saving"]
    assert folder.read_exit()["status"] == "stopped"
    assert callbacks.attempts == [(0, False)]


def test_the_second_interrupt_ends_all_at_once(folder, callbacks, supervise):
    def interrupt():
        wait_for_ranks(folder)
        os.kill(os.getpid(), signal.SIGINT)
        wait_until(lambda: callbacks.statuses[1:])
        os.kill(os.getpid(), signal.SIGTERM)

    with meanwhile(interrupt):
        assert supervise(["be_deaf", "work"], ["work"], grace_seconds=0.5) == STOPPED
    assert callbacks.statuses[2:] == ["Stopped at once; there is no backup to resume from"]
    assert folder.read_exit()["status"] == "stopped"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_ranks_that_still_import_are_ended_by_the_first_interrupt(number, folder, callbacks, supervise):
    def interrupt():
        wait_for_ranks(folder)
        os.kill(os.getpid(), number)

    with meanwhile(interrupt):
        assert supervise(["import"], ["import"]) == STOPPED
    assert callbacks.statuses[1:] == ["Stopped before the training began"]
    assert folder.read_exit()["status"] == "stopped"
    assert not list(folder.commands_dir.glob("*.cmd"))


def test_a_stop_while_ranks_import_again_says_what_is_kept(folder, callbacks, supervise):
    with meanwhile(lambda: (wait_for_ranks(folder), os.kill(os.getpid(), signal.SIGTERM))):
        assert supervise(["import"], ["import"], resume=True) == STOPPED
    assert callbacks.statuses[1:] == ["Stopped at once; there is no backup to resume from"]


def test_ranks_of_other_nodes_are_asked_to_stop_also_while_they_import(folder, callbacks, supervise):
    def interrupt():
        wait_for_ranks(folder)
        os.kill(os.getpid(), signal.SIGINT)
        wait_until(lambda: list(folder.commands_dir.glob("*.stop.cmd")))
        os.kill(os.getpid(), signal.SIGINT)

    with meanwhile(interrupt):
        assert supervise(["import"], ["import"], has_all=False) == STOPPED
    assert callbacks.statuses[1].startswith("Stopping within two steps")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("SIGHUP", "The terminal was closed: stopping within two steps"),
        ("SIGUSR2", "Received SIGUSR2: stopping within two steps"),
    ],
)
def test_a_closed_terminal_or_a_notice_is_one_stop_and_reaches_no_rank(name, said, folder, callbacks, supervise):
    """Shell, kernel and systemd may all send SIGHUP to every process, and systemd also sends SIGTERM."""
    number = getattr(signal, name)

    def close():
        wait_for_ranks(folder)
        for pid in (*pids(folder), os.getpid()):
            os.kill(pid, number)
        wait_until(lambda: callbacks.statuses[1:])
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), signal.SIGTERM)

    with meanwhile(close):
        actions = ["work_until_stopped"]
        assert supervise(actions, actions, launcher=ToyLauncher, max_restarts=1) == STOPPED
    assert callbacks.statuses[1:] == [said]
    assert folder.read_exit()["status"] == "stopped"


class ImportingRanks:
    """A launcher whose ranks are ended by SIGTERM before they have connected."""

    num_ranks = 2
    last_lines = ()

    def __init__(self, is_supervisor_told: bool):
        self._is_supervisor_told = is_supervisor_told

    def start(self, variables):
        if self._is_supervisor_told:
            os.kill(os.getpid(), signal.SIGTERM)

    def is_running(self):
        return False

    def exit_codes(self):
        return {0: -signal.SIGTERM, 1: -signal.SIGTERM}

    def killed_by(self):
        return None


@pytest.mark.parametrize(("is_told", "status"), [(True, "stopped"), (False, "failed")])
def test_a_sigterm_that_ends_ranks_while_they_import_is_a_stop_where_it_is_for_the_whole_run(
    is_told, status, folder, callbacks
):
    code = Supervisor(folder, lambda attempt, resume: ImportingRanks(is_told), callbacks, max_restarts=0).run()
    assert folder.read_exit()["status"] == status
    assert code == (STOPPED if is_told else FAILED)
    assert ("Stopped before the training began" in callbacks.statuses) is is_told


def test_an_interrupt_of_the_whole_terminal_reaches_no_rank_that_is_starting(folder, spawn):
    """The ranks ignore SIGINT before they import anything: only the supervisor handles it."""

    def interrupt():
        wait_for_ranks(folder)
        for pid in pids(folder):
            os.kill(pid, signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with meanwhile(interrupt):
        assert spawn(["work_until_stopped"], ["work_until_stopped"]) == STOPPED


@pytest.mark.parametrize("reaches", ["the process above", "all processes", "nobody yet"])
def test_the_signal_at_the_end_of_a_jobs_time_is_for_every_rank_and_ends_none(
    reaches, folder, callbacks, supervise, monkeypatch
):
    """SLURM may send it to the task's process only or also to its children; "nobody yet": before ranks are started."""
    for name in ("SLURM_STEP_ID", "SLURM_PROCID"):
        monkeypatch.setenv(name, "0")
    before = signal.getsignal(signal.SIGUSR1)
    remember_signals(REQUEUE_SIGNALS)

    def send():
        if reaches != "nobody yet":
            wait_for_ranks(folder)
        for pid in (os.getpid(), *(pids(folder) if reaches == "all processes" else ())):
            os.kill(pid, signal.SIGUSR1)

    try:
        if reaches == "nobody yet":
            send()
        with meanwhile(send):
            actions = ["work_until_requeued"], ["work_until_requeued"]
            assert supervise(*actions, launcher=ToyLauncher, max_restarts=1) == REQUEUED
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert callbacks.attempts == [(0, False)]
    assert folder.read_exit() is None  # it will contain SLURM's answer


def test_a_rank_that_does_not_wait_for_the_signal_lives_on(folder, supervise, monkeypatch):
    for name in ("SLURM_STEP_ID", "SLURM_PROCID"):
        monkeypatch.setenv(name, "0")

    def send():
        wait_for_ranks(folder)
        for pid in pids(folder):
            os.kill(pid, signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGINT)

    with meanwhile(send):
        assert supervise(["work_until_stopped"], ["work_until_stopped"], launcher=ToyLauncher) == STOPPED


SUPERVISOR = """
import sys
from modules.launch.launchers import SpawnLauncher
from modules.launch.Supervisor import Supervisor
from modules.session.RunFolder import RunFolder
from modules.session.TrainCallbacks import TrainCallbacks
from tests.support.toy_ranks import toy_rank
if __name__ == "__main__":
    scenario = {"folder": sys.argv[1], "0": ["work"], "1": ["hang"]}
    launcher = SpawnLauncher(toy_rank, [scenario], 2)
    Supervisor(RunFolder(sys.argv[1]), lambda attempt, resume: launcher, TrainCallbacks()).run()
"""


def test_ranks_end_when_the_supervisor_is_killed(folder):
    process = subprocess.Popen([sys.executable, "-c", SUPERVISOR, str(folder.path)], cwd=ROOT)
    try:
        wait_for_ranks(folder)
        assert all(is_alive(pid) for pid in pids(folder))
    finally:
        process.kill()
        process.wait()
    wait_until(lambda: not any(is_alive(pid) for pid in pids(folder)))
    assert folder.read_exit() is None


def test_ranks_are_not_spawned_by_a_thread_that_ends(folder):
    refused = []

    def start():
        with pytest.raises(RuntimeError, match="main thread") as caught:
            SpawnLauncher(toy_rank, [{}], 1).start({})
        refused.append(caught)

    with meanwhile(start):
        pass
    assert refused


def test_torchrun_ranks_finish(folder, torchrun):
    assert torchrun(["finish"], ["finish"]) == FINISHED
    assert folder.read_exit()["status"] == "finished"


def test_torchrun_ranks_that_are_killed_are_named_with_their_signal(folder, torchrun):
    assert torchrun(["work"], ["kill_itself"]) == FAILED
    record = folder.read_exit()
    assert (record["rank"], record["signal"], record["text"]) == (1, "SIGKILL", KILLED.format(1))


def test_torchrun_ranks_that_hang_and_are_deaf_are_killed(folder, torchrun, monkeypatch):
    monkeypatch.setenv(LIMIT_VARIABLE, "1")
    assert torchrun(["work"], ["be_deaf", "stop_itself"]) == FAILED
    assert folder.read_exit()["kind"] == "hung"


def test_a_torchrun_that_can_not_start_gives_its_last_words(folder, torchrun, capsys):
    code = "import sys; sys.exit('no such option')"
    assert torchrun(["finish"], ["finish"], command=[sys.executable, "-c", code]) == FAILED
    record = folder.read_exit()
    assert (record["kind"], record["exit_code"], record["traceback"]) == ("ended", 1, "no such option")
    assert "no such option" in capsys.readouterr().err


def test_another_node_counts_its_ranks_on_and_leaves_the_record_to_the_first(folder, callbacks, torchrun):
    code = torchrun(["finish"], command=[sys.executable, "-c", "exit(3)"], first_rank=4, writes_exit=False)
    assert code == FAILED
    assert callbacks.failures == ["Rank 4 ended with exit code 3 without saying why; see log/rank-4.log."]
    assert folder.read_exit() is None


def planned(num_ranks: int, **settings: Any) -> SupervisePlan:
    config = TrainConfig(enable_multi_gpu=True, world_size=num_ranks, distributed_backend="gloo", **settings)
    plan = plan_launch(config, {}, Machine(cores=num_ranks))
    assert isinstance(plan, SupervisePlan)
    return plan


def test_the_real_torchrun_tells_the_signal_of_a_rank(folder, torchrun, ends, monkeypatch):
    script = str(ROOT / "tests" / "support" / "toy_ranks.py")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    command = torchrun_command(planned(2, initial_port=str(free_port())), [script], folder.log_dir, ends)
    assert torchrun(["work"], ["wait_a_moment", "kill_itself"], command=command) == FAILED
    record = folder.read_exit()
    assert (record["rank"], record["kind"], record["signal"]) == (1, "killed", "SIGKILL")


def test_the_torchrun_command_names_this_node():
    plan = planned(4, num_nodes=3, node_rank=1, master_addr="10.0.0.1")
    command = torchrun_command(plan, ["train.py", "--config", "a b"], "/run/launch", "/run/ends.json")
    assert command[:3] == [sys.executable, str(ROOT / "scripts" / "elastic_agent.py"), "--ends=/run/ends.json"]
    assert command[3:] == [
        *["--nnodes", "3", "--node-rank", "1", "--nproc-per-node", "4"],
        *["--master-addr", "10.0.0.1", "--master-port", "12355", "--log-dir", "/run/launch"],
        *["--shutdown-timeout", "600", "train.py", "--config", "a b"],
    ]


def test_ranks_that_the_agent_ended_itself_are_not_taken_for_failures():
    error = ChildFailedError("train", {5: failure(1, -11, time=10), 4: failure(0, -signal.SIGTERM, time=12)})
    assert failed_ranks(error) == {"1": -11}


def test_a_rank_that_somebody_ended_by_sigterm_is_the_first_failure():
    failures = {0: failure(0, -signal.SIGTERM, time=10), 1: failure(1, -11, time=12)}
    assert failed_ranks(ChildFailedError("train", failures)) == {"0": -signal.SIGTERM, "1": -11}


def failure(local_rank: int, exit_code: int, time: int) -> ProcessFailure:
    made = ProcessFailure(local_rank, pid=1, exitcode=exit_code, error_file="")
    made.timestamp = time
    return made


def test_a_launcher_that_is_killed_is_the_cause_and_not_what_its_ranks_say_then(folder, callbacks, torchrun):
    code = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    assert torchrun(["finish"], ["finish"], command=[sys.executable, "-c", code]) == FAILED
    assert callbacks.failures == ["The process that started the ranks was killed by SIGKILL."]
    assert (folder.read_exit()["kind"], folder.read_exit()["signal"]) == ("ended", "SIGKILL")
