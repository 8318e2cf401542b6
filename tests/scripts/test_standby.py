"""scripts/starting/standby.py: a run is the same as without it, and nothing outlives the window but a run."""

from __future__ import annotations

import json
import subprocess
import sys

import psutil
import pytest
import yaml

from modules.config.presets import ROOT
from modules.session.RunFolder import RunFolder
from tests.support.fork_server import call_forked
from tests.support.standby_run import run_on_standby
from tests.support.waiting import wait_until

linux = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked, and found by their parents")
WINDOW = """
import time
from modules.ui.models.Standby import Standby, StandbyPlan
print(Standby(StandbyPlan("train", "")).process.pid, flush=True)
time.sleep(600)
"""


@linux
def test_a_run_trains_in_the_processes_that_waited_and_writes_its_own_log(tmp_path, tiny_sd15, picture_folder):
    folder = RunFolder(tmp_path / "run")
    settings = {
        "family": "sd15",
        "workspace_dir": str(folder.path),
        "cache_dir": str(tmp_path / "cache"),
        "model": {"base": str(tiny_sd15)},
        "concepts": [{"path": str(picture_folder(((32, 32),) * 4))}],
        "data": {"resolution": 32, "bucket_step": 8},
        "lora": {"rank": 2},
        "max_steps": 2,
    }
    (tmp_path / "settings.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    assert call_forked(run_on_standby, tmp_path / "settings.yaml", str(folder.path)) == (True, 0)
    assert folder.read_exit()["status"] == "finished"
    assert "Finished after 2 steps" in folder.window_log_path.read_text(encoding="utf-8")
    started = json.loads(folder.event_path(0).read_text(encoding="utf-8").splitlines()[0])
    assert started["started"] == 1.0, "the time at which the window was asked"


@linux
def test_what_waits_ends_with_a_window_that_is_killed():
    with subprocess.Popen([sys.executable, "-c", WINDOW], stdout=subprocess.PIPE, cwd=ROOT) as window:
        standby = psutil.Process(int(window.stdout.readline()))
        wait_until(lambda: any("spawn_main" in " ".join(rank.cmdline()) for rank in standby.children()))
        waiting = [standby, *standby.children()]
        window.kill()
    wait_until(lambda: not any(process.is_running() and process.status() != "zombie" for process in waiting))
