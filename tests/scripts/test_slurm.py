"""scripts/slurm_job.py: the script it writes, run by stand-ins for sbatch, srun and scontrol; SLURM is not here."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image
from safetensors.numpy import load_file

from modules.session.event_types import Event
from modules.session.events import read_events
from modules.session.manifest import check_manifest
from scripts import slurm_job
from tests.support.fork_server import ForkedScript, pids_that_write_to
from tests.support.run_processes import descendants
from tests.support.StartedRun import MARK, find_processes
from tests.support.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parents[2]
FAKES = ROOT / "tests" / "support" / "fake_slurm"
MINIMUM = ("--gpus-per-node", "2", "--time", "1:00:00")
BASE = {"model": {"base": "base"}, "concepts": [{"path": "pictures"}], "workspace_dir": "workspace/run"}
ON_CPUS = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}

needs_bash = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("bash") is None, reason="the job script is for bash on Linux"
)


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """With settings.yaml; the folder that commands run in."""
    (tmp_path / "settings.yaml").write_text(yaml.safe_dump(BASE), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def write(folder, capfdbinary):
    """A function that gives what the script writes for arguments; settings.yaml is its --config where none is given."""

    def write(*arguments: str) -> str:
        config = [] if "--config" in arguments else ["--config", "settings.yaml"]
        code = slurm_job.main([*config, *arguments])
        output, error = capfdbinary.readouterr()
        assert code == 0, error
        return output.decode("utf-8")

    return write


@pytest.fixture
def refusal(folder, capsys):
    """A function that gives the one sentence with which arguments are refused."""

    def refuse(*arguments: str) -> str:
        assert slurm_job.main(["--config", "settings.yaml", *arguments]) == 2
        output, error = capsys.readouterr()
        assert output == ""
        (sentence,) = error.splitlines()
        return sentence

    return refuse


def submit(script: str, folder: Path, *arguments: str, seconds: float = 20.0, **variables: str) -> int:
    """Has the stand-ins run `script` to its end; its exit code."""
    with submitted(script, folder, *arguments, **variables) as (process, _):
        return process.wait(seconds)


@contextlib.contextmanager
def submitted(
    script: str, folder: Path, *arguments: str, **variables: str
) -> Iterator[tuple[subprocess.Popen, dict[str, str]]]:
    """(The stand-in for sbatch, which runs `script`, and the environment of the other stand-ins for its job).

    All that is left of the job ends with the block.
    """
    path, state = folder / "job.sbatch", folder / "slurm"
    path.write_text(script, encoding="utf-8")
    state.mkdir(exist_ok=True)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "CHORUS_"))}
    path_variable = os.pathsep.join((str(FAKES), str(Path(sys.executable).parent), env["PATH"]))
    env |= {"PATH": path_variable, "FAKE_SLURM": str(state), MARK: secrets.token_hex(8)}
    process = subprocess.Popen([str(FAKES / "sbatch"), str(path), *arguments], cwd=folder, env=env | variables)
    try:
        yield process, env
    finally:
        while pids := pids_of_job(folder, env):  # again, for what they have started meanwhile
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        process.wait()


def pids_of_job(folder: Path, env: dict[str, str]) -> set[int]:
    """Tasks are forked, so that the system tells of another environment."""
    outputs = list(folder.glob("slurm-*.out"))
    return {*find_processes({MARK: env[MARK]}), *(pid for output in outputs for pid in pids_that_write_to(output))}


# --- the script -------------------------------------------------------------------------------------------------------


def test_the_script_asks_for_one_task_per_gpu_a_signal_to_the_tasks_and_another_turn(write):
    script = write("--nodes", "2", "--gpus-per-node", "a100:8", "--time", "12:00:00", "--partition", "gpu")
    options = {line for line in script.splitlines() if line.startswith("#SBATCH ")}
    assert {
        "#SBATCH --nodes=2",
        "#SBATCH --gpus-per-node=a100:8",
        "#SBATCH --ntasks-per-node=8",
        "#SBATCH --time=12:00:00",
        "#SBATCH --partition=gpu",
        "#SBATCH --signal=USR1@120",  # B:USR1@120 would reach the batch script alone
        "#SBATCH --requeue",
        "#SBATCH --open-mode=append",
        "#SBATCH --output=slurm-%j.out",
    } <= options
    assert not any("--account" in option or "--mem" in option for option in options)
    first_command = next(number for number, line in enumerate(script.splitlines()) if line == "set -eu")
    assert all(number < first_command for number, line in enumerate(script.splitlines()) if line in options)


def test_the_script_is_read_without_importing_torch(folder):
    code = "import sys; from scripts import slurm_job; slurm_job.main(sys.argv[1:]); sys.exit('torch' in sys.modules)"
    command = [sys.executable, "-c", code, "--config", "settings.yaml", *MINIMUM]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, timeout=PATIENCE_SECONDS
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(b"#!/usr/bin/env bash\n")


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("--nodes", "0", *MINIMUM), ("--nodes '0'", "from 1 to 10000")),
        (("--nodes", "two", *MINIMUM), ("--nodes 'two'", "a whole number")),
        (("--gpus-per-node", "0", "--time", "1:00:00"), ("--gpus-per-node '0'", "8 or a100:8")),
        (("--gpus-per-node", "2", "--time", "soon"), ("--time 'soon'", "12:00:00 or 2-12")),
        (("--gpus-per-node", "2", "--time", "3"), ("--time '3'", "twice the 120 s")),
        (("--gpus-per-node", "2", "--time", "3:00"), ("--time '3:00'", "twice the 120 s")),
        ((*MINIMUM, "--partition", "gpu\n#SBATCH --uid=0"), ("--partition", "a name")),
        ((*MINIMUM, "--account", "a b"), ("--account 'a b'", "without spaces")),
        ((*MINIMUM, "--mem", "much"), ("--mem 'much'", "200G")),
        ((*MINIMUM, "--name=-x"), ("--name '-x'", "letters")),
        ((*MINIMUM, "--cpus-per-task", "0"), ("--cpus-per-task '0'", "from 1 to 1024")),
        ((*MINIMUM, "--backup-seconds", "70000"), ("--backup-seconds '70000'", "to 65535")),
        ((*MINIMUM, "--array", "3-1"), ("--array '3-1'", "0-7%2")),
        ((*MINIMUM, "--array", "0-3%0"), ("--array '0-3%0'", "at once")),
        ((*MINIMUM, "--array", "0-99999999"), ("--array", "10000 tasks")),
        ((*MINIMUM, "--set", "seed=1\nreboot"), ("--set", "U+000A")),
        ((*MINIMUM, "--set", "sede=1"), ("sede",)),
        ((*MINIMUM, "--preset", "sd15-lara"), ("did you mean sd15-lora?",)),
        ((*MINIMUM, "--set", "batch_size_mode=global", "--set", "batch_size=3"), ("batch_size 3 (global) on 2 GPUs",)),
        ((*MINIMUM, "--array", "0-3", "--set", "workspace_dir=run%a", "--config", "none-%a.yaml"), ("none-0.yaml",)),
    ],
)
def test_a_value_that_slurm_or_the_training_would_refuse_is_refused_in_one_sentence(arguments, parts, refusal):
    sentence = refusal(*arguments)
    for part in parts:
        assert part in sentence


def test_a_preset_lies_under_the_settings(folder, write):
    (folder / "settings.yaml").write_text("concepts: [{path: pictures}]\n", encoding="utf-8")
    script = write("--preset", "sd15-lora-8gb", *MINIMUM, "--array", "0-1")
    assert "train.py --preset=sd15-lora-8gb --config=settings.yaml --set=workspace_dir=" in script


@pytest.mark.parametrize("time", ["4", "4:00", "0:04:00", "0-1", "1-0:0", "2-12:30:10"])
def test_every_way_to_write_a_time_is_taken(time, write):
    assert f"#SBATCH --time={time}\n" in write("--gpus-per-node", "2", "--time", time)


def test_array_tasks_that_would_share_a_run_folder_are_refused(folder, refusal):
    for task, name in enumerate(("a", "b", "a")):
        path = folder / f"{task}.yaml"
        path.write_text(yaml.safe_dump(BASE | {"workspace_dir": name}), encoding="utf-8")
    sentence = refusal(*MINIMUM, "--array", "0-2", "--config", "%a.yaml")
    assert "workspace_dir 'a' is that of 2 tasks" in sentence
    assert "--set workspace_dir=workspace/%a" in sentence


# --- run by the stand-ins ---------------------------------------------------------------------------------------------

# What stands in for Python writes down how each task was called.
RECORDER = """#!/bin/sh
for word in "$@"; do echo "$word"; done > "task-$SLURM_JOB_ID-$SLURM_PROCID"
echo "$CHORUS_TOKEN" > "token-$SLURM_JOB_ID-$SLURM_PROCID"
"""


@pytest.fixture
def recorder(folder) -> str:
    path = folder / "a python"
    path.write_text(RECORDER, encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def calls(folder: Path) -> dict[str, list[str]]:
    """Job and rank -> its arguments."""
    return {path.name[5:]: path.read_text(encoding="utf-8").splitlines() for path in sorted(folder.glob("task-*"))}


@needs_bash
def test_each_task_runs_the_training_with_the_words_as_they_were_given(folder, write, recorder):
    name = "it's $(touch pwned) `x`;ü &.yaml"
    (folder / name).write_text(yaml.safe_dump(BASE), encoding="utf-8")
    prompt = 'sampling.samples.0.prompt="a" $HOME %a; touch pwned'
    script = write(*MINIMUM, "--nodes", "2", "--config", name, "--set", prompt, "--python", recorder)
    assert subprocess.run(["bash", "-n"], input=script.encode(), capture_output=True).stderr == b""
    assert submit(script, folder, "--resume") == 0
    expected = [f"{ROOT}/scripts/train.py", f"--config={name}", f"--set={prompt}", "--resume"]
    assert calls(folder) == {f"4711-{rank}": expected for rank in range(4)}
    assert not (folder / "pwned").exists()
    assert (folder / "slurm-4711.out").exists()
    token = (folder / f"{name}.token").read_text()
    assert [path.read_text() for path in folder.glob("token-*")] == [token] * 4
    assert token.strip() not in script


@needs_bash
def test_array_jobs_have_folders_and_output_of_their_own_and_what_differs(folder, write, recorder):
    script = write(*MINIMUM, "--array", "2,5", "--set", "seed=%a", "--python", recorder)
    assert submit(script, folder) == 0
    found = calls(folder)
    assert sorted(found) == ["4711-0", "4711-1", "4712-0", "4712-1"]
    assert found["4711-0"] == found["4711-1"]
    for job, task in (("4711", 2), ("4712", 5)):
        settings = [f"--set=seed={task}", f"--set=workspace_dir=workspace/run-{task}"]
        assert found[f"{job}-0"][2:] == settings
        assert (folder / f"slurm-4711_{task}.out").exists()


def test_array_tasks_with_settings_of_their_own_have_the_token_of_the_job(folder, write):
    for task in range(2):
        (folder / f"{task}.yaml").write_text(yaml.safe_dump(BASE | {"workspace_dir": f"run-{task}"}), encoding="utf-8")
    script = write(*MINIMUM, "--array", "0-1", "--config", "%a.yaml")
    assert "CHORUS_TOKEN=$(cat -- chorus.token)\nexport CHORUS_TOKEN\n" in script
    assert [path.name for path in folder.glob("*.token")] == ["chorus.token"]


@needs_bash
@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_has_nothing_to_say(write):
    script = write(*MINIMUM, "--array", "0-3", "--set", "seed=%a")
    done = subprocess.run(["shellcheck", "-"], input=script.encode(), capture_output=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
@needs_bash
def test_a_job_whose_time_ends_backs_up_is_queued_again_once_and_ends_as_if_nothing_had_happened(
    folder, tiny_sd15, write
):
    """Two ranks, the last of which alone gets the signal."""
    steps = 8
    prepare_run(folder, tiny_sd15, max_steps=steps)
    alone = [str(ROOT / "scripts" / "train.py"), "--config", "settings.yaml", "--set", "workspace_dir=alone"]
    assert ForkedScript(alone, os.environ | ON_CPUS, folder / "alone.txt", cwd=folder).wait(PATIENCE_SECONDS) == 0

    script = write(*MINIMUM, "--python", sys.executable)
    code = submit(script, folder, seconds=300, CHORUS_FAULT="preempt@1:3", **ON_CPUS)
    output = (folder / "slurm-4711.out").read_text(encoding="utf-8")
    assert code == 0, output
    assert (folder / "slurm" / "job-4711.txt").read_text() == "2\n"
    assert (folder / "slurm" / "scontrol.txt").read_text() == "requeue 4711 by 0\n"
    assert output.count("Number of processes: 2") == 2
    assert output.count("Job 4711 is queued again") == 1

    run = folder / "workspace" / "run"
    backup, last = sorted((run / "backup").glob("step-*"))
    stop = int(backup.name.removeprefix("step-"))
    assert stop in (3, 4)
    assert int(last.name.removeprefix("step-")) == steps
    assert check_manifest(backup) is None
    assert f"Resumed at step {stop} from {backup.name}" in output
    for rank in range(2):
        assert [event.step for event in events(run, rank, "step")] == list(range(1, steps + 1))
    losses, expected = ([event.loss for event in events(path, 0, "step")] for path in (run, folder / "alone"))
    assert losses == pytest.approx(expected, rel=1e-5)  # float32 in batches of other sizes
    (model,) = (run / "models").glob("*.safetensors")  # none was saved at the end of the first turn
    weights, wanted = load_file(model), load_file(folder / "alone" / "models" / model.name)
    assert weights.keys() == wanted.keys()
    for name, values in wanted.items():
        np.testing.assert_allclose(weights[name], values, atol=1e-5, err_msg=name)


@pytest.mark.slow
@needs_bash
def test_a_signal_to_all_tasks_backs_up_for_another_turn_and_scancel_backs_up_without_one(folder, tiny_sd15, write):
    """Two nodes of one rank."""
    prepare_run(folder, tiny_sd15, max_steps=100_000)
    script = write("--nodes", "2", "--gpus-per-node", "1", "--time", "1:00:00", "--python", sys.executable)
    run, state = folder / "workspace" / "run", folder / "slurm"

    def steps(rank: int) -> list[int]:
        return [event.step for event in events(run, rank, "step")]

    def scancel(*arguments: str) -> None:
        subprocess.run([str(FAKES / "scancel"), *arguments], env=env, check=True)

    with submitted(script, folder, **ON_CPUS) as (sbatch, env):
        wait_for(lambda: min(len(steps(rank)) for rank in (0, 1)) >= 3, folder)
        scancel("--signal=USR1", "4711")
        wait_for(lambda: (state / "job-4711.txt").read_text() == "2\n", folder)
        (first,) = (run / "backup").glob("step-*")
        stop = int(first.name.removeprefix("step-"))
        wait_for(lambda: min(steps(rank)[-1] for rank in (0, 1)) >= stop + 3, folder)
        scancel("4711")
        wait_for(lambda: sbatch.poll() is not None and not pids_of_job(folder, env), folder)
    output = (folder / "slurm-4711.out").read_text(encoding="utf-8")
    assert f"Resumed at step {stop} from {first.name}" in output
    last = steps(0)[-1]
    assert steps(0) == steps(1) == list(range(1, last + 1))  # none is done twice: both ranks have stopped at the same
    assert sorted(path.name for path in (run / "backup").glob("step-*")) == [first.name, f"step-{last:09d}"]
    assert [check_manifest(path) for path in (run / "backup").glob("step-*")] == [None, None]
    assert len(list((run / "models").glob("*.safetensors"))) == 1  # of the second turn
    assert json.loads((run / "exit.json").read_bytes())["status"] == "stopped"
    assert (state / "scontrol.txt").read_text() == "requeue 4711 by 0\n"
    assert output.count("Job 4711 is") == 1
    assert (state / "job-4711.txt").read_text() == "2\n"


@pytest.mark.slow
@needs_bash
def test_one_task_that_starts_its_ranks_itself_has_them_back_up_for_another_turn(folder, tiny_sd15, write):
    """By torchrun, whose agent has no use for the signal."""
    prepare_run(folder, tiny_sd15, max_steps=100_000)
    script = write("--gpus-per-node", "1", "--time", "1:00:00", "--python", sys.executable)
    run, state = folder / "workspace" / "run", folder / "slurm"

    def steps(rank: int) -> list[int]:
        return [event.step for event in events(run, rank, "step")]

    with submitted(script, folder, "--multi_gpu", "--world_size", "2", **ON_CPUS):
        wait_for(lambda: min(len(steps(rank)) for rank in (0, 1)) >= 3, folder)
        (task,) = json.loads((state / "tasks.json").read_text(encoding="utf-8"))
        for pid in (task, *descendants(task)):
            os.kill(pid, signal.SIGUSR1)  # the task and all below it, as some clusters do
        wait_for(lambda: (state / "job-4711.txt").read_text() == "2\n", folder)
        (first,) = (run / "backup").glob("step-*")
        stop = int(first.name.removeprefix("step-"))
        assert check_manifest(first) is None
        assert list((run / "models").iterdir()) == []
    output = (folder / "slurm-4711.out").read_text(encoding="utf-8")
    assert steps(0)[:stop] == steps(1)[:stop] == list(range(1, stop + 1))
    assert "Number of processes: 2" in output
    assert output.count("Job 4711 is queued again") == 1
    assert (state / "scontrol.txt").read_text() == "requeue 4711 by 0\n"


def prepare_run(folder: Path, model: Path, max_steps: int) -> None:
    """Pictures, and settings.yaml of a quick run on them."""
    (folder / "pictures").mkdir()
    random = np.random.default_rng(0)
    for index in range(10):
        pixels_HWC = random.integers(0, 256, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels_HWC).save(folder / "pictures" / f"{index}.png")
        (folder / "pictures" / f"{index}.txt").write_text(f"a photo of cat {index}", encoding="utf-8")
    settings = BASE | {
        "cache_dir": "cache",
        "family": "sd15",
        "model": {"base": str(model)},
        "data": {"resolution": 32, "bucket_step": 8},
        "lora": {"rank": 4, "alpha": 4.0},
        "optimizer": {"learning_rate": 1e-3},
        "output": {"format": "diffusers"},
        "batch_size": 4,
        "batch_size_mode": "global",
        "epochs": 100_000,
        "max_steps": max_steps,
        "distributed_backend": "gloo",
        "tensorboard": False,
    }
    (folder / "settings.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")


def wait_for(condition: Callable[[], object], folder: Path, seconds: float = 180.0) -> None:
    """Raises TimeoutError, with what the job has written, where `condition` does not come true."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError((folder / "slurm-4711.out").read_text(encoding="utf-8"))
        time.sleep(0.05)


def events(run: Path, rank: int, kind: str) -> list[Event]:
    found, _ = read_events(run / "events" / f"rank-{rank}.jsonl")
    return [record.event for record in found if record.event.type == kind]
