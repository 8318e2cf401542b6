"""Chorus in a folder with an awkward name: each start script does there what it does elsewhere, and Ctrl-C ends it."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from modules.session.events import read_events
from modules.session.manifest import check_manifest
from modules.session.RunFolder import RunFolder
from scripts.setup.installing import create_venv
from scripts.setup_env import set_up, wanted_index
from tests.support.small_demo import shrink_demo
from tests.support.StartedRun import MARK, end_processes, find_processes
from tests.support.virtual_screen import missing, virtual_screen
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
FEW_STEPS = ("--set=sampling.every=100000", "--set=max_steps=2")
SECONDS = 300

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="looks for left processes in /proc"),
]


@pytest.fixture(scope="module")
def chorus(tmp_path_factory) -> Path:
    """A copy of Chorus, with an environment that takes its packages from the one of these tests."""
    root = tmp_path_factory.mktemp("odd") / "a b'cd&e%f!ü"
    left_out = shutil.ignore_patterns(".git", ".venv", "workspace", "tests", "docs", ".*_cache")
    shutil.copytree(ROOT, root, ignore=left_out)
    shrink_demo(root)
    index = wanted_index(root)

    def borrow_packages(root: Path, arguments: list[str], say) -> None:
        (packages,) = (root / ".venv").glob("lib/python3*/site-packages")
        (packages / "borrowed.pth").write_text("\n".join({sysconfig.get_path(name) for name in ("purelib", "platlib")}))

    def create(root: Path) -> None:
        create_venv(root, ("--without-pip",))

    set_up(root, ["requirements.txt"], index, lambda line: None, create, borrow_packages)
    return root


@pytest.fixture
def environment() -> Iterator[dict[str, str]]:
    """For processes that are found again by a mark; all that are left of them afterwards are ended."""
    mark = secrets.token_hex(8)
    env = {name: value for name, value in os.environ.items() if name != "DISPLAY"}
    yield env | {MARK: mark, "CUDA_VISIBLE_DEVICES": "", "PYTHON": sys.executable}
    end_processes({MARK: mark})


def wait_until_gone(environment: dict[str, str]) -> None:
    """Python's own helper of spawned processes ends a moment after them."""
    wait_until(lambda: not find_processes({MARK: environment[MARK]}), 30)


def run(environment: dict[str, str], chorus: Path, *command: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        ["bash", *command], cwd=chorus, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=SECONDS,
    )  # fmt: skip


def test_the_demo_runs_unattended(chorus, environment):
    """On a single rank: those that are started and ended in such a folder are in the test of Ctrl-C below."""
    done = run(environment, chorus, "./start-multi-gpu.sh", "--yes", "--demo", "--gpus=1", *FEW_STEPS)
    assert done.returncode == 0, done.stdout + done.stderr
    folder = chorus / "workspace" / "demo"
    assert f"Before and after: {folder / 'before_after.png'}" in done.stdout
    assert (folder / "before_after.png").is_file()
    wait_until_gone(environment)


@pytest.mark.proof
def test_torchrun_trains_as_many_ranks_as_it_is_told(chorus, environment):
    settings = ["resources/presets/demo.yaml", "--set=sampling.at_start=false", *FEW_STEPS]
    folder = chorus / "workspace" / "by torchrun"
    script = "./scripts/train_distributed.sh"
    done = run(environment, chorus, script, "2", *settings, f"--set=workspace_dir={folder}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "There is no GPU (CUDA_VISIBLE_DEVICES" in done.stderr or "There is no GPU (no NVIDIA" in done.stderr
    assert [len(steps_of(folder, rank)) for rank in (0, 1)] == [2, 2]
    wait_until_gone(environment)


def steps_of(folder: Path, rank: int) -> list[int]:
    path = RunFolder(folder).event_path(rank)
    records = read_events(path, 0)[0] if path.exists() else []
    return [record.event.step for record in records if record.event.type == "step"]


def test_ctrl_c_after_the_questions_stops_saves_and_leaves_no_process(chorus, environment):
    pexpect = pytest.importorskip("pexpect", reason="pexpect answers in a terminal")
    folder = chorus / "workspace" / "asked"
    changes = [f"--set={change}" for change in ("sampling.at_start=false", "max_steps=100000", "epochs=100000")]
    arguments = ["./start-multi-gpu.sh", "--run-folder", str(folder), *changes, *FEW_STEPS[:1]]
    child = pexpect.spawn("bash", arguments, cwd=str(chorus), env=environment, encoding="utf-8", timeout=SECONDS)
    with contextlib.closing(child):
        for prompt, answer in (
            ("Settings: .*: ", "demo"),
            ("Processes: .*: ", "2"),
            ("Backend: .*: ", "gloo"),
            ("share of the images.*: ", ""),
            ("Launcher: .*: ", "spawn"),
            ("Start it now\\? .*: ", "yes"),
        ):
            child.expect(prompt)
            child.sendline(answer)
        child.expect(r"\b[1-9]\d*/100000")
        child.sendintr()
        child.expect(pexpect.EOF)
        said = child.before
    assert (child.exitstatus, "Traceback" in said) == (130, False), said
    assert json.loads(RunFolder(folder).exit_path.read_text())["status"] == "stopped"
    (backup,) = RunFolder(folder).backup_dir.glob("step-*")
    assert check_manifest(backup) is None
    assert list(RunFolder(folder).models_dir.iterdir())
    wait_until_gone(environment)


def test_the_window_opens_and_ctrl_c_closes_it(chorus, environment):
    if shutil.which("xdotool") is None:
        missing("xdotool is not installed")
    with virtual_screen() as display:
        environment = {**environment, "DISPLAY": display}
        window = subprocess.Popen(
            ["bash", "./start-ui.sh"], cwd=chorus, env=environment, stderr=subprocess.PIPE, text=True
        )
        with window:
            search = ["xdotool", "search", "--sync", "--onlyvisible", "--name", "^Chorus$"]
            subprocess.run(search, env=environment, check=True, stdout=subprocess.DEVNULL, timeout=SECONDS)
            wait_until((chorus / "workspace" / ".window" / "settings.json").is_file)  # its frame is there before
            window.send_signal(signal.SIGINT)
            errors = window.stderr.read()
    assert (window.returncode in (0, 130), errors) == (True, "")  # 130: it was not quite open yet
    wait_until_gone(environment)
