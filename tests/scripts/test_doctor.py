"""The command line of the doctor, run for real."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from modules.machine.doctor.packages import check_packages
from scripts import doctor
from tests.support.fork_server import ForkedScript
from tests.support.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = str(ROOT / "scripts" / "doctor.py")
END_SECONDS = 300.0


def run(*arguments: str, folder: Path, **env: str) -> subprocess.CompletedProcess:
    command = [sys.executable, SCRIPT, *arguments]
    env = {**os.environ, **env}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=END_SECONDS)


@pytest.fixture
def broken_torch(tmp_path) -> str:
    """What PYTHONPATH has to be for a PyTorch that can't be loaded."""
    package = tmp_path / "shadow" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('libcudart.so.13: cannot open shared object file')\n")
    return str(package.parent)


@pytest.mark.slow
def test_this_machine_is_examined_and_two_cpu_ranks_exchange_gradients(tmp_path):
    """CUDA_VISIBLE_DEVICES: a machine with GPUs is examined as one without. Those that import torch are forked
    from a process that has."""
    options = ["--json", "--set=distributed_backend=gloo", "--set=world_size=2"]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    code = ForkedScript([SCRIPT, *options], environment, tmp_path / "said.json", cwd=tmp_path).wait(END_SECONDS)
    values = json.loads((tmp_path / "said.json").read_text(encoding="utf-8"))  # nothing was written to stderr
    checks = {check["name"]: check for check in values["checks"]}
    assert set(values) == {"can_train", "verdict", "checks"}
    for check in values["checks"]:
        assert set(check) == {"name", "state", "text", "remedy", "details", "values"}
    assert code == (0 if values["can_train"] else 1)
    assert checks["PyTorch"]["state"] == "ok"
    assert checks["communication"]["text"].startswith("2 CPU ranks by gloo: ")
    assert checks["communication"]["values"]["all"]["gb_per_s"] > 0


def test_a_broken_torch_is_a_line_of_the_report_and_fails(tmp_path, broken_torch):
    done = run("--quick", folder=tmp_path, PYTHONPATH=broken_torch)
    assert done.returncode == 1
    assert "fails    PyTorch:         it can't be loaded: ImportError: libcudart.so.13" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("Training would fail: PyTorch")
    assert "Traceback" not in done.stdout + done.stderr


def test_missing_packages_are_a_line_of_the_report_and_no_traceback(tmp_path):
    done = subprocess.run(
        [sys.executable, "-S", SCRIPT], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
    assert done.returncode == 1
    assert "torch is missing" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("Training would fail: packages")
    assert done.stderr == ""


def test_settings_that_can_not_be_used_fail_and_the_machine_is_examined_all_the_same(capsys, monkeypatch, tmp_path):
    examined = []
    monkeypatch.setattr("modules.machine.doctor.examine.examine", lambda *arguments: examined.append(arguments) or [])
    path = tmp_path / "run.yaml"
    path.write_text("epochs: 0\nbatch_siez: 3\n")
    assert doctor.main(["--config", str(path), "--quick"]) == 1
    output = capsys.readouterr().out
    assert "fails    settings:        they can't be used." in output
    assert "did you mean batch_size" in output
    assert [(arguments[1], arguments[2]) for arguments in examined] == [([], True)]


def test_what_the_command_line_says_of_machines_reaches_settings_and_dry_run(monkeypatch, capsys):
    examined = []
    monkeypatch.setattr("modules.machine.doctor.examine.examine", lambda *arguments: examined.append(arguments) or [])
    monkeypatch.setattr(
        "modules.launch.check_other_nodes.check_other_nodes", lambda config, tell: tell("waiting for node 0 (3 s)")
    )
    nodes = ["--nodes", "2", "--node-rank", "1", "--master-addr", "10.0.0.1", "--master-port", "29500"]
    assert doctor.main(["--preset", "sd15-lora", *nodes]) == 0
    assert doctor.main([*nodes, "--json"]) == 0
    assert doctor.main([]) == 0
    (config, arguments, _, meet), (machine, nothing, *_), (_, _, _, no_meeting) = examined
    assert (config.num_nodes, config.node_rank, config.master_addr, config.initial_port) == (2, 1, "10.0.0.1", "29500")
    assert arguments[0] == "--preset=sd15-lora"
    assert "--set=num_nodes=2" in arguments
    assert (machine.num_nodes, machine.enable_multi_gpu, machine.distributed_backend) == (2, True, "auto")
    assert nothing == []
    meet()
    assert capsys.readouterr().err == "waiting for node 0 (3 s)\n"
    assert no_meeting is None


def test_a_missing_package_ends_the_checks_that_need_it(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "check_packages", lambda: check_packages({"pydantic": "2"}, lambda name: None))
    assert doctor.main([]) == 1
    output = capsys.readouterr().out
    assert "pydantic is missing" in output
    assert "GPUs" not in output


def test_the_doctor_does_without_torch():
    code = "import sys; sys.path.insert(0, '.'); import scripts.doctor, modules.machine.doctor.examine;"
    code += "sys.exit(bool({'torch', 'diffusers', 'transformers', 'tkinter'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
