"""A process ends with its parent, even while it is importing libraries."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from modules.launch import parent_watch
from modules.launch.lifeline import LOST_EXIT_CODE
from modules.launch.parent_watch import PARENT_VARIABLE
from tests.support.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parents[2]

# multiprocessing imports the script in its child processes before it loads their target.
SCRIPT = f"""
import multiprocessing
import sys
import time

sys.path.insert(0, {str(ROOT)!r})

if __name__ == "__mp_main__":
    from modules.launch.parent_watch import end_with_parent

    end_with_parent()
    print("importing", flush=True)
    time.sleep(30)
    print("imported", flush=True)
if __name__ == "__main__":
    multiprocessing.get_context("spawn").Process(target=print).start()
    time.sleep(600)
"""


def test_a_process_that_is_importing_ends_with_the_one_that_started_it(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout.readline() == "importing\n"
        parent.kill()
        assert parent.stdout.read() == ""  # EOF: all processes that could write to it have ended


def test_a_process_whose_parent_was_gone_before_it_could_look_ends_too():
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), PARENT_VARIABLE: str(gone.pid)}
    script = "import modules.launch.parent_watch as watch, time; watch.end_with_parent(); time.sleep(30)"
    assert subprocess.run([sys.executable, "-c", script], env=environment).returncode == LOST_EXIT_CODE


@pytest.mark.parametrize("name", ["train", "start_multi_gpu", "starting/standby"])
def test_ranks_that_a_script_spawns_watch_it_before_they_import_anything(name):
    run = f"import runpy; runpy.run_path({str(ROOT / 'scripts' / name)!r} + '.py', run_name='__mp_main__')"
    tell = "import threading; print([thread.name for thread in threading.enumerate()])"
    done = subprocess.run(
        [sys.executable, "-c", f"{run}; {tell}"], capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
    assert "parent watch" in done.stdout, done.stderr


def test_on_windows_which_goes_on_naming_a_parent_that_has_ended_its_end_is_seen(monkeypatch):
    answers = [True, True, False]
    monkeypatch.setattr(parent_watch, "os", SimpleNamespace(name="nt"))
    monkeypatch.setattr(parent_watch, "is_alive", lambda pid: answers.pop(0))
    monkeypatch.setattr(parent_watch, "_LOOK_SECONDS", 0.0)
    parent_watch.wait_for_end_of(7)
    assert answers == []
