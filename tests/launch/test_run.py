"""run_training: the end of a run in its exit code, exit.json and events."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from modules.config.errors import UserError
from modules.launch.run import train_rank
from modules.launch.start import start_training
from modules.session.backups import damage
from modules.session.RunFolder import RunFolder
from modules.session.signals import stop_signals
from modules.trainer.FallbackSaver import FallbackSaver
from modules.trainer.TrainingLoop import TrainingLoop
from modules.weights.safe import load_tensors
from tests.support.full_disk import full_disk
from tests.support.train_here import train_here

posix_only = pytest.mark.skipif(os.name != "posix", reason="Windows knows neither SIGHUP nor SLURM's signal")


@pytest.fixture
def in_step(monkeypatch):
    """A function that installs an action to run at the beginning of each optimizer step, called with the loop."""

    def install(do) -> None:
        train_step = TrainingLoop.train_step

        def watched(self, step):
            do(self)
            train_step(self, step)

        monkeypatch.setattr(TrainingLoop, "train_step", watched)

    return install


def last_events(config) -> list[str]:
    lines = (Path(config.workspace_dir) / "events" / "rank-0.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["type"] for line in lines]


def record(config) -> dict:
    return json.loads((Path(config.workspace_dir) / "exit.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ["SIGINT", pytest.param("SIGHUP", marks=posix_only)])
def test_an_interrupt_and_a_closed_terminal_end_after_the_step_back_up_and_save(name, make_config, in_step):
    config, number = make_config("max_steps=50"), getattr(signal, name)
    in_step(lambda loop: signal.raise_signal(number) if loop.step == 3 else None)
    before = signal.getsignal(number)
    assert train_here(config) == 130
    assert signal.getsignal(number) is before
    assert record(config)["status"] == "stopped"
    run = Path(config.workspace_dir)
    assert list((run / "models").iterdir())
    (backup,) = (run / "backup").iterdir()
    assert int(backup.name.removeprefix("step-")) in (4, 5)


def test_a_second_interrupt_ends_at_once(make_config, in_step):
    config = make_config("max_steps=50")
    in_step(lambda loop: os.kill(os.getpid(), signal.SIGINT) if loop.step >= 3 else None)
    assert train_here(config) == 130
    assert record(config)["status"] == "stopped"
    assert not list((Path(config.workspace_dir) / "models").iterdir())


class ToyTrainer:
    """A trainer whose steps do nothing, until it is asked to stop."""

    def __init__(self, callbacks, commands):
        self.commands = commands
        self.step, self.stopped, self.requeues = 0, False, False
        self.runtime = SimpleNamespace(device=SimpleNamespace(type="none"))
        self.backups = SimpleNamespace(close=lambda: None)

    def start(self) -> None: ...

    def train(self) -> None:
        while not self.commands.stopping:
            self.step += 1
        self.stopped = True

    def end(self) -> None: ...


@pytest.fixture
def toy_run(tmp_path):
    """A function that returns the outcome of a run of `ToyTrainer` that first calls `act`."""

    def run(act, signals):
        def make(callbacks, commands):
            act()
            return ToyTrainer(callbacks, commands)

        folder = RunFolder(tmp_path)
        folder.create()
        return train_rank(folder, make, started=0.0, signals=signals)

    return run


@posix_only
@pytest.mark.parametrize(
    ("first", "said"),
    [
        ("SIGHUP", "The terminal was closed: stopping within two steps"),
        ("SIGUSR1", "Received SIGUSR1: stopping within two steps"),
        ("SIGXCPU", "Received SIGXCPU: stopping within two steps"),
    ],
)
def test_a_closed_terminal_and_a_notice_are_one_stop_however_often_they_are_told(first, said, toy_run, capfd):
    """Shell, kernel and systemd may all send SIGHUP; systemd also sends SIGTERM. LSF sends SIGXCPU, then SIGTERM."""
    number = getattr(signal, first)

    def close() -> None:
        for one in (number, signal.SIGTERM, number):
            signal.raise_signal(one)

    outcome = toy_run(close, stop_signals())
    assert (outcome.status, outcome.at_once, outcome.requeues) == ("stopped", False, False)
    assert said in capfd.readouterr().err


@posix_only
def test_signals_before_and_after_the_training_do_not_cost_the_record_of_its_end(make_config, monkeypatch):
    def make_trainer(config, callbacks, commands, resume, checked):
        return ToyTrainer(callbacks, commands)

    def with_signals(method):
        def call(*args, **options):
            signal.raise_signal(signal.SIGHUP)
            signal.raise_signal(signal.SIGTERM)
            return method(*args, **options)

        return call

    monkeypatch.setattr("modules.trainer.GenericTrainer.GenericTrainer", make_trainer)
    for name in ("clear_exit", "write_exit"):
        monkeypatch.setattr(RunFolder, name, with_signals(getattr(RunFolder, name)))
    config = make_config()
    assert train_here(config) == 130
    assert record(config)["status"] == "stopped"


class SignallingTerminal(io.RawIOBase):
    """A stream that sends this process SIGTERM in the middle of its first write."""

    def __init__(self):
        self.shown = b""

    def writable(self) -> bool:
        return True

    def write(self, data) -> int:
        if not self.shown:
            signal.raise_signal(signal.SIGTERM)
        self.shown += data
        return len(data)


def test_a_stop_signal_in_the_middle_of_a_line_on_the_terminal_is_a_stop(toy_run, monkeypatch):
    """If the handler itself wrote to the terminal, it would raise RuntimeError, as the stream is in use."""
    terminal = SignallingTerminal()
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(io.BufferedWriter(terminal), "utf-8", line_buffering=True))
    outcome = toy_run(lambda: None, (signal.SIGTERM,))
    assert (outcome.status, outcome.text) == ("stopped", "")
    assert b"Stopping within two steps" in terminal.shown


def test_a_run_on_one_device_says_which_it_is(make_config, capfd):
    assert train_here(make_config("max_steps=1")) == 0
    assert "Training on the CPU" in capfd.readouterr().err


def test_a_mistake_of_the_user_is_one_sentence_everywhere(make_config, in_step, capfd):
    def fail(loop):
        raise UserError("batch_size 4: too many; use 2.")

    config = make_config()
    in_step(fail)
    assert train_here(config) == 1
    assert record(config)["text"] == "batch_size 4: too many; use 2."
    assert last_events(config)[-1] == "failed"
    error = capfd.readouterr().err
    assert "Failed: batch_size 4: too many; use 2." in error
    assert "Traceback" not in error


def test_a_fault_of_the_program_shows_its_traceback(make_config, in_step, capfd):
    config = make_config()
    in_step(lambda loop: 1 / 0)
    assert train_here(config) == 1
    assert record(config)["status"] == "failed"
    assert "ZeroDivisionError" in record(config)["text"]
    assert "Traceback" in capfd.readouterr().err
    log = (Path(config.workspace_dir) / "log" / "rank-0.log").read_text(encoding="utf-8")
    assert "Traceback" in log
    assert last_events(config)[-1] == "failed"


def test_full_system_memory_ends_the_run_with_what_to_do(make_config, in_step):
    config = make_config()
    in_step(lambda loop: torch.empty(1 << 56))
    assert train_here(config) == 1
    assert record(config)["kind"] == "out_of_memory"
    assert record(config)["text"].startswith("The system's memory is full: close other programs")


def test_memory_that_cuda_itself_can_not_have_ends_the_run_with_what_to_do(make_config, in_step, monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)

    def fail(loop):
        raise torch.AcceleratorError("CUDA error: out of memory\nCUDA kernel errors might be reported later.")

    config = make_config()
    in_step(fail)
    assert train_here(config) == 1
    assert record(config)["text"].startswith("The GPU's memory is full: lower batch_size")


def test_what_nccl_lacks_on_this_machine_is_a_cause_and_said_in_a_sentence(make_config, in_step):
    def fail(loop):
        raise torch.distributed.DistBackendError(
            "NCCL error in: NCCLUtils.cpp:94, unhandled system error, NCCL version 2.27.7\nncclSystemError: failed.\n"
            "Last error:\nError while creating shared memory segment /dev/shm/nccl-LeXlEJ (size 9637888)"
        )

    config = make_config()
    in_step(fail)
    assert train_here(config) == 1
    assert record(config)["text"].startswith("NCCL can't connect the GPUs (Error while creating shared memory")
    assert record(config)["text"].endswith("--shm-size=8g or --ipc=host.")


def test_the_record_of_an_earlier_end_is_forgotten_while_a_run_goes_on(make_config, in_step):
    config = make_config("max_steps=1")
    assert train_here(config) == 0
    seen = []
    in_step(lambda loop: seen.append((Path(config.workspace_dir) / "exit.json").exists()))
    assert train_here(make_config("max_steps=2"), resume=True) == 0
    assert seen == [False]
    assert record(config)["status"] == "finished"


@pytest.mark.parametrize("wanted", [True, False])
def test_a_run_on_one_device_keeps_the_machine_awake_if_that_is_wanted(wanted, make_config, monkeypatch):
    seen = []

    def make_trainer(config, *arguments, **options):
        seen.append("trainer")
        raise UserError("far enough")

    @contextlib.contextmanager
    def kept_awake(tell):
        seen.append("awake")
        yield
        seen.append("asleep")

    monkeypatch.setattr("modules.trainer.GenericTrainer.GenericTrainer", make_trainer)
    monkeypatch.setattr("modules.launch.run.kept_awake", kept_awake)
    train_here(make_config(f"keep_awake={wanted}"))
    assert seen == (["awake", "trainer", "asleep"] if wanted else ["trainer"])


def test_tensorboard_scalars_are_written(make_config):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = make_config("tensorboard=true", "max_steps=3")
    assert train_here(config) == 0
    events = EventAccumulator(str(Path(config.workspace_dir) / "tensorboard"))
    events.Reload()
    assert {"loss", "grad_norm", "lr/unet"} <= set(events.Tags()["scalars"])
    assert [event.step for event in events.Scalars("loss")] == [1, 2, 3]


def test_a_backup_that_is_being_written_is_finished_and_told_of_though_the_run_fails(make_config, in_step, monkeypatch):
    from modules.trainer import BackupStore

    save_tensors = BackupStore.save_tensors

    def slow(path, tensors, metadata=None):
        failing.wait(10)
        save_tensors(path, tensors, metadata)

    def fail(loop):
        if loop.step == 2:
            failing.set()
            raise UserError("the run fails while its backup is being written.")

    failing = threading.Event()
    monkeypatch.setattr(BackupStore, "save_tensors", slow)
    in_step(fail)
    config = make_config("backup.every=2", "backup.unit=steps")
    assert train_here(config) == 1
    assert "backup" in last_events(config)
    assert last_events(config)[-1] == "failed"


# --- a disk that is full at the end -----------------------------------------------------------------------------------


@pytest.fixture
def full_at_end(make_config, tmp_path):
    """A function that runs settings whose model and backup don't fit on the disk: returns (exit code, exit.json)."""

    def run(*overrides: str) -> tuple[int, dict]:
        config = make_config(f"output.fallback_dir={tmp_path / 'spare'}", *overrides)
        with full_disk(tmp_path / "run" / "models", tmp_path / "run" / "backup"):
            return train_here(config), record(config)

    return run


def test_a_run_whose_disk_is_full_at_the_end_is_finished_and_says_where_its_model_is(full_at_end, tmp_path, capfd):
    code, ended = full_at_end("output.wait_minutes=0")
    assert (code, ended["status"]) == (0, "finished")
    model, backup = sorted(map(Path, ended["elsewhere"]))
    assert (model.name, backup.name) == ("model.safetensors", "step-000000004")
    assert model.parent.parent == tmp_path / "spare"
    assert load_tensors(model)
    assert damage(backup) is None
    assert not list((tmp_path / "run" / "models").iterdir())
    events = [json.loads(line) for line in (tmp_path / "run" / "events" / "rank-0.jsonl").read_text().splitlines()]
    assert [event["path"] for event in events if event["type"] in ("saved", "backup")] == [str(backup), str(model)]
    said = capfd.readouterr().err
    for text in (f"The model is in {model}, not in", f"step 4: {model}", "No space left on device"):
        assert text in said


def test_a_stop_ends_the_waiting_for_room(full_at_end, monkeypatch):
    waiting = []

    def stop_when_it_waits(saver, seconds: float) -> str:
        waiting.append(seconds)
        os.kill(os.getpid(), signal.SIGTERM)
        return "waiting"

    monkeypatch.setattr(FallbackSaver, "_waiting_text", stop_when_it_waits)
    code, ended = full_at_end("output.wait_minutes=60")
    assert (code, ended["status"], len(ended["elsewhere"])) == (0, "finished", 2)
    assert len(waiting) == 1


def test_a_second_interrupt_during_the_waiting_ends_at_once_and_what_was_saved_is_on_record(
    full_at_end, in_step, monkeypatch
):
    in_step(lambda loop: os.kill(os.getpid(), signal.SIGINT) if loop.step == 2 else None)
    monkeypatch.setattr(FallbackSaver, "_waiting_text", lambda *arguments: os.kill(os.getpid(), signal.SIGINT))
    code, ended = full_at_end("output.wait_minutes=60", "max_steps=50")
    assert (code, ended["status"], len(ended["elsewhere"])) == (130, "stopped", 2)


@posix_only
def test_where_the_run_folder_was_nothing_is_made_anew_and_a_resume_names_the_backup(
    make_config, in_step, tmp_path, capfd
):
    """An empty folder is what is left where a disk was unmounted."""
    samples = ("sampling.at_end=true", "sampling.samples.0.prompt=a cat", "sampling.samples.0.steps=1")
    settings = ("output.wait_minutes=0", f"output.fallback_dir={tmp_path / 'spare'}", "output.every=2")
    config = make_config(*samples, *settings, "output.unit=steps")
    run = Path(config.workspace_dir)

    def unmount(loop) -> None:
        if loop.step == 1:
            run.rename(tmp_path / "disk")
            run.mkdir()

    in_step(unmount)
    assert train_here(config) == 0
    assert not list(run.iterdir())
    (spare,) = (tmp_path / "spare").iterdir()
    assert sorted(path.name for path in spare.iterdir()) == ["model.safetensors", "step-000000004"]
    said = capfd.readouterr().err
    assert said.count("Samples could not be written") == 1
    assert f"The model is in {spare / 'model.safetensors'}" in said
    train_here(config, resume=True)
    assert f"There is no backup in {run / 'backup'}: training starts at step 0. One of step 4 is in {spare}" in (
        capfd.readouterr().err
    )


def test_a_run_that_can_be_backed_up_nowhere_on_its_way_ends_and_keeps_its_last_state_elsewhere(make_config, tmp_path):
    settings = ("backup.every=1", "backup.unit=steps", "max_steps=9", f"output.fallback_dir={tmp_path / 'spare'}")
    config = make_config(*settings)
    with full_disk(tmp_path / "run" / "backup"):
        assert train_here(config) == 1
    text = record(config)["text"]
    assert "3 backups in a row could not be written" in text
    assert "free some space there, then resume from the backup of step 4." in text
    assert "The backup of step 4 is in" in text
    assert train_here(config, resume=True) == 0


def test_a_finished_run_that_is_resumed_saves_nothing_again(make_config, capfd):
    config = make_config("max_steps=1")
    models = RunFolder(config.workspace_dir).models_dir
    assert train_here(config) == 0
    (model,) = saved = list(models.iterdir())
    capfd.readouterr()
    assert train_here(config, resume=True) == 0
    assert "Nothing is left to do: the run finished at step 1" in capfd.readouterr().err
    assert list(models.iterdir()) == saved
    assert (record(config)["status"], last_events(config)[-1]) == ("finished", "finished")
    model.unlink()  # as if it had been saved in a fallback folder
    assert train_here(config, resume=True) == 0
    assert list(models.iterdir()) == saved
    assert train_here(make_config("max_steps=2"), resume=True) == 0
    assert len(list(models.iterdir())) == 2


# --- as a task of SLURM -----------------------------------------------------------------------------------------------


@pytest.fixture
def slurm_task(monkeypatch, in_step):
    """The calls of scontrol by a run that is a job's only task and gets the signal in its third step."""
    calls = []
    for name, value in {"SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("modules.launch.run.requeue", lambda: calls.append("requeue") or "Job 4711 is queued again.")
    in_step(lambda loop: os.kill(os.getpid(), signal.SIGUSR1) if loop.step == 2 else None)
    before = {number: signal.getsignal(number) for number in (*stop_signals(), signal.SIGUSR1)}
    yield calls
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(("count", "resumes"), [(None, False), ("0", False), ("2", True)])
def test_a_job_that_slurm_runs_again_resumes(count, resumes, make_config, monkeypatch):
    if count is not None:
        monkeypatch.setenv("SLURM_RESTART_COUNT", count)
    monkeypatch.setattr("modules.launch.start.run_training", lambda plan, checked: plan.resume)
    assert start_training(make_config()) is resumes


@posix_only
def test_at_the_end_of_its_time_a_job_of_slurm_backs_up_and_is_queued_again(make_config, slurm_task, capfd):
    config = make_config("max_steps=50")
    assert train_here(config) == 75
    assert slurm_task == ["requeue"]
    assert (record(config)["status"], record(config)["text"]) == ("stopped", "Job 4711 is queued again.")
    assert "Job 4711 is queued again." in capfd.readouterr().err
    run = Path(config.workspace_dir)
    assert not list((run / "models").iterdir())
    (backup,) = (run / "backup").iterdir()
    assert backup.name in ("step-000000003", "step-000000004")


@posix_only
def test_a_job_whose_time_ends_before_anything_is_trained_is_queued_again(make_config, slurm_task, monkeypatch):
    clear_exit = RunFolder.clear_exit

    def signal_comes(folder: RunFolder) -> None:
        os.kill(os.getpid(), signal.SIGUSR1)
        clear_exit(folder)

    monkeypatch.setattr(RunFolder, "clear_exit", signal_comes)
    config = make_config("max_steps=50")
    assert train_here(config) == 75
    assert slurm_task == ["requeue"]
    assert record(config)["status"] == "stopped"


@posix_only
def test_a_job_whose_backup_can_not_be_written_is_not_requeued(make_config, slurm_task, monkeypatch):
    def fail(path, tensors, metadata=None):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("modules.trainer.BackupStore.save_tensors", fail)
    config = make_config("max_steps=50")
    assert train_here(config) == 1
    assert slurm_task == []
    assert "not requeued" in record(config)["text"]
