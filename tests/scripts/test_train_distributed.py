"""What train_distributed.sh makes of its arguments; torchrun itself runs in test_odd_folder.py."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from modules.config.installation import ROOT
from modules.machine.devices import Gpu
from modules.machine.Machine import Machine
from modules.session import atomic
from modules.session.atomic import sweep_temporaries
from scripts import train_distributed

FOUR = [Gpu(index, "NVIDIA Test", f"GPU-{index}", 24 << 30, index) for index in range(4)]


WHAT = "model: {base: base}\nconcepts: [{path: pictures}]\n"


@pytest.fixture
def start(tmp_path, monkeypatch, capsys):
    """A function that starts it with arguments and gives (exit code, what it would become, what it said)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(train_distributed, "num_cores", lambda: 8)
    (tmp_path / "run.yaml").write_text(f"device_indexes: [1, 2]\n{WHAT}")
    (tmp_path / "all.yaml").write_text(f"family: sd15\n{WHAT}")

    def start(*arguments: str, gpus=FOUR, gpus_of_torch: int = 0) -> tuple[int | None, list[str], str]:
        become: list[list[str]] = []
        reason = "" if gpus else "no NVIDIA driver is installed"
        machine = Machine(tuple(gpus), cores=8, no_gpu_reason=reason, memory_bytes=64 << 30)
        monkeypatch.setattr(train_distributed, "read_machine", lambda: machine)
        monkeypatch.setattr(train_distributed, "count_by_torch", lambda: gpus_of_torch)
        monkeypatch.setattr(os, "execv", lambda program, command: become.append(command))
        code = train_distributed.main(list(arguments))
        return code, become[0] if become else [], capsys.readouterr().err

    return start


def ranks_of(command: list[str]) -> str:
    assert command[:2] == [sys.executable, str(ROOT / "scripts" / "elastic_agent.py")]
    return command[2].removeprefix("--nproc-per-node=")


@pytest.mark.parametrize(
    ("arguments", "ranks"),
    [
        (["all", "run.yaml"], "4"),
        (["2", "run.yaml"], "2"),
        (["run.yaml"], "2"),
        (["all.yaml"], "4"),
        (["3", "all.yaml"], "3"),
        (["1", "all.yaml"], "1"),
    ],
)
def test_the_number_wins_over_the_settings_and_all_over_both(arguments, ranks, start):
    _, command, said = start(*arguments)
    assert (ranks_of(command), said) == (ranks, "")


def test_all_takes_back_what_the_settings_choose_in_the_ranks_too(start):
    _, command, _ = start("all", "run.yaml", "--resume")
    script = command.index(str(ROOT / "scripts" / "train.py"))
    assert command[script + 1 :] == [
        "--config=run.yaml", "--multi_gpu", "--set=world_size=null", "--set=device_indexes=[]", "--resume"
    ]  # fmt: skip


def test_what_torchrun_keeps_of_errors_is_swept_at_the_next_start(start, tmp_path, monkeypatch):
    _, command, _ = start("all.yaml", "--set", f"workspace_dir={tmp_path / 'run'}")
    (folder,) = (tmp_path / "run").iterdir()
    assert f"--log-dir={folder}" in command
    assert not sweep_temporaries(tmp_path / "run")  # torchrun runs in this process
    monkeypatch.setattr(atomic, "is_alive", lambda pid: pid != os.getpid())
    assert sweep_temporaries(tmp_path / "run") == [folder]


def test_a_run_folder_that_can_not_be_used_is_refused_in_one_line_before_torchrun_starts(start, tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "old" / "backup" / "step-000000003").mkdir(parents=True)
    for folder, sentence in {"file/run": "workspace_dir", "old": "holds a run already: resume it"}.items():
        code, command, said = start("all.yaml", "--set", f"workspace_dir={tmp_path / folder}")
        assert (code, command) == (2, [])
        assert sentence in said
        assert len(said.splitlines()) == 1
    code, command, _ = start("all.yaml", "--resume", "--set", f"workspace_dir={tmp_path / 'old'}")
    assert code is None
    assert command


def test_torchrun_waits_until_the_ranks_have_saved(start):
    _, command, _ = start("all.yaml")
    assert "--shutdown-timeout=600" in command


@pytest.mark.skipif(os.name != "posix", reason="Windows has no SIGHUP")
@pytest.mark.parametrize("by_nohup", [False, True])
def test_torchrun_answers_all_that_asks_for_a_stop_but_under_nohup_no_closed_terminal(by_nohup, start):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if by_nohup else signal.SIG_DFL)
    try:
        _, command, _ = start("all.yaml")
    finally:
        signal.signal(signal.SIGHUP, before)
    (option,) = [part for part in command if part.startswith("--signals-to-handle=")]
    handled = set(option.partition("=")[2].split(","))
    always = {"SIGINT", "SIGTERM", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGXCPU"}
    assert handled == always | (set() if by_nohup else {"SIGHUP"})


def test_without_a_gpu_ranks_on_the_cpu_train_and_it_says_so(start):
    _, command, said = start("all", "all.yaml", gpus=[])
    assert ranks_of(command) == "2"
    assert said == "There is no GPU (no NVIDIA driver is installed): 2 processes train on the CPU.\n"
    assert os.environ["OMP_NUM_THREADS"] == "4"


def test_gpus_that_the_driver_of_nvidia_does_not_know_are_counted_by_torch(start):
    _, command, said = start("all", "all.yaml", gpus=[], gpus_of_torch=3)
    assert (ranks_of(command), said) == ("3", "")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "usage: train_distributed.sh"),
        (["2"], "usage: train_distributed.sh"),
        (["2", "--resume"], "usage: train_distributed.sh"),
        (["2", "none.yaml"], "none.yaml can't be read"),
        (["two", "all.yaml"], "two: the number of GPUs is a whole number or all."),
        (["5", "all.yaml"], "this machine has 4; use 4 or less"),
        (["1000000", "all.yaml", "--backend=gloo"], "of memory and this machine has"),
        (["0", "all.yaml"], "world_size"),
        (["all.yaml", "--set", "num_nodes=2"], "num_nodes 2: this is for one machine"),
    ],
)
def test_what_cannot_be_is_refused_before_a_rank_starts(arguments, sentence, start):
    code, command, said = start(*arguments)
    assert (code, command) == (2, [])
    assert sentence in said


def test_on_windows_it_names_what_works_there(start, monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    code, command, said = start("all", "run.yaml")
    assert (code, command) == (2, [])
    assert "torchrun does not work on Windows; use start-multi-gpu.bat" in said
