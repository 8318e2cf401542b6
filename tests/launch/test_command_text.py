from __future__ import annotations

import json
import os
import shlex
import shutil
import stat
import subprocess
import sys
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from modules.config.errors import UserError
from modules.config.files import apply_overrides, config_from_values
from modules.config.presets import ROOT
from modules.launch.command_text import (
    Places,
    bash_line,
    bash_script,
    commands_text,
    node_commands,
    powershell_line,
    powershell_script,
)
from modules.machine import run_shape
from modules.machine.run_shape import uses_torchrun
from modules.session.run_token import make_token_file, token_path
from scripts import train
from tests.support.waiting import PATIENCE_SECONDS

BASH = shutil.which("bash")
POWERSHELL = shutil.which("pwsh") or shutil.which("powershell")
needs_bash = pytest.mark.skipif(BASH is None or os.name == "nt", reason="no bash")

HOSTILE = [
    "; touch X",
    "$(touch X)",
    "`touch X`",
    "'; touch X; '",
    '"; touch X; "',
    'a\' "b" c',
    "| touch X",
    "& touch X &",
    "> X",
    "$HOME",
    "!!",
    "-x",
    "--help",
    "*",
    "\\",
    "a=b",
    "#",
    "{a,b}",
    "%s",
    "’; touch X; ‘",
    "ä ö",
]


def multi_gpu(**values):
    return config_from_values({"enable_multi_gpu": True, **values})


def two_nodes(**values):
    return multi_gpu(num_nodes=2, **{"master_addr": "10.0.0.1", "initial_port": "29500", **values})


@pytest.fixture
def recorder(tmp_path):
    """A program that records its arguments, working folder and environment."""
    folder = tmp_path / "it's; touch X $(touch X)" / "A=1"
    folder.mkdir(parents=True)
    path = folder / "-python"
    path.write_text('#!/bin/sh\nprintf "%s\\0" "$(pwd)" "$NCCL_SOCKET_IFNAME" "$GLOO_SOCKET_IFNAME" "$@"; echo\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@dataclass
class Seen:
    folder: str
    interfaces: set[str]
    arguments: tuple[str, ...]


def run_bash(*words, cwd=None):
    """The commands that were run: the check, if any, and the training."""
    env = {name: value for name, value in os.environ.items() if not name.endswith("_SOCKET_IFNAME")}
    done = subprocess.run([BASH, *words], cwd=cwd, env=env, capture_output=True, timeout=PATIENCE_SECONDS)
    assert done.returncode == 0, done.stderr
    seen = []
    for record in done.stdout.decode().split("\0\n")[:-1]:
        folder, nccl, gloo, *arguments = record.split("\0")
        seen.append(Seen(folder, {nccl, gloo}, tuple(arguments)))
    return seen


@needs_bash
@pytest.mark.parametrize("value", HOSTILE)
@pytest.mark.parametrize("use_torchrun", [True, False])
def test_no_value_is_read_by_bash(value, use_torchrun, recorder, tmp_path):
    config = two_nodes(master_addr=value, use_torchrun=use_torchrun, device_indexes=[0])
    places = Places(value, str(recorder), f"/opt/{value}", str(recorder.parent), value)
    make_token_file(recorder.parent / token_path(value))
    for command in node_commands(config, 2, places):
        *checks, run = run_bash("-c", bash_line(command), cwd=tmp_path)
        assert run == Seen(str(recorder.parent), {value}, command.arguments[1:])
        assert checks == ([Seen(str(recorder.parent), {""}, command.check[1:])] if use_torchrun else [])
    assert not list(tmp_path.rglob("X"))


@needs_bash
def test_a_relative_program_with_an_equals_sign_is_no_assignment(recorder, tmp_path):
    places = Places("run.yaml", "A=1/-python", "/opt", str(recorder.parent.parent))
    [command] = node_commands(multi_gpu(), 2, places)
    [run] = run_bash("-c", bash_line(command), cwd=tmp_path)
    assert run.arguments == command.arguments[1:]


@needs_bash
def test_the_saved_file_runs_the_command_of_its_machine(recorder, tmp_path):
    commands = node_commands(two_nodes(), 2, Places("run.yaml", str(recorder), "/opt", str(tmp_path)))
    path = tmp_path / "start.sh"
    path.write_text(bash_script(commands))
    make_token_file(tmp_path / "run.yaml.token")
    assert ["--node-rank=1" in seen.arguments for seen in run_bash(str(path), "1")] == [True, True]
    assert subprocess.run([BASH, str(path)], capture_output=True, timeout=PATIENCE_SECONDS).returncode == 2
    path.write_text(bash_script(node_commands(multi_gpu(), 2, Places("run.yaml", str(recorder), "/opt"))))
    [run] = run_bash(str(path))
    assert "--set=world_size=2" in run.arguments


@pytest.mark.parametrize("use_torchrun", [True, False])
def test_on_one_machine_chorus_starts_the_ranks_itself_by_torchrun_or_not(use_torchrun):
    """torchrun of its own would open its store to the network."""
    config = multi_gpu(use_torchrun=use_torchrun)
    [command] = node_commands(config, 2, Places("run.yaml", "python", "/opt/chorus"), resume=True)
    python, script, *arguments = command.arguments
    assert (python, script) == ("python", "/opt/chorus/scripts/train.py")
    args = train.parse(arguments)
    assert (args.config, args.resume) == ("run.yaml", True)
    started = config_from_values(apply_overrides({"num_nodes": 1}, args.set))
    assert (started.enable_multi_gpu, started.world_size) == (True, 2)
    assert uses_torchrun(started) == uses_torchrun(config)


@pytest.mark.parametrize("character", ["\n", "\r", "\0", "\x1b", "\t", "\x85", "\u2028", "\u202e", "\ud800"])
def test_a_character_that_can_not_be_seen_is_refused(character):
    for field in ("config_path", "python", "chorus", "folder", "interface"):
        with pytest.raises(UserError, match="remove it"):
            Places(**{"config_path": "run.yaml", field: f"/a{character}b"})
    with pytest.raises(UserError, match="master_addr"):
        node_commands(two_nodes(master_addr=f"a{character}b"), 2, Places("run.yaml"))


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"config_path": ""}, "empty"),
        ({"config_path": "~/run.yaml"}, "whole path"),
        ({"python": " "}, "empty"),
        ({"folder": "work"}, "whole path"),
        ({"chorus": "-"}, "whole path"),
    ],
)
def test_a_path_that_would_not_be_found_is_refused(values, word):
    with pytest.raises(UserError, match=word):
        Places(**{"config_path": "run.yaml", **values})


def test_several_machines_are_numbered_by_torchrun_itself():
    commands = node_commands(two_nodes(), 4, Places("/shared/run.yaml", "python", "/opt/chorus", "/shared"))
    assert [command.arguments for command in commands] == [
        (
            *("python", "-m", "torch.distributed.run", "--nnodes=2", f"--node-rank={rank}", "--nproc-per-node=4"),
            *("--master-addr=10.0.0.1", "--master-port=29500"),
            *("/opt/chorus/scripts/train.py", "--config=/shared/run.yaml"),
        )
        for rank in (0, 1)
    ]


def test_torchrun_is_started_after_a_check_of_the_machines():
    config = two_nodes(device_indexes=[0])
    for command in node_commands(config, 4, Places("run.yaml", "python", "/opt/chorus", "/shared", "eth0")):
        assert command.check == (
            *("python", "/opt/chorus/scripts/multi_node.py", "--check", "--config=run.yaml", "--nodes=2"),
            *(f"--node-rank={command.node_rank}", "--processes-per-node=4"),
            *("--master-addr=10.0.0.1", "--master-port=29500"),
        )
    assert [command.check for command in node_commands(multi_gpu(), 2, Places("run.yaml"))] == [()]


@needs_bash
def test_nothing_is_started_after_a_check_that_fails(recorder, tmp_path):
    recorder.write_text(recorder.read_text() + '[ "$2" != --check ] || exit 7\n')
    command, _ = node_commands(two_nodes(), 2, Places("run.yaml", str(recorder), "/opt", str(tmp_path)))
    make_token_file(tmp_path / "run.yaml.token")
    for line in (bash_line(command), bash_script([command])):
        done = subprocess.run([BASH, "-c", line], capture_output=True, timeout=PATIENCE_SECONDS)
        assert (done.returncode, done.stdout.count(b"\n")) == (7, 1)
    assert "; if ($LASTEXITCODE -eq 0) { & " in powershell_line(command)


@needs_bash
def test_the_machines_read_their_token_from_the_file_beside_the_settings(recorder, tmp_path):
    recorder.write_text('#!/bin/sh\necho "$CHORUS_TOKEN"\n')
    commands = node_commands(two_nodes(), 2, Places("run.yaml", str(recorder), "/opt", str(tmp_path)))
    path = tmp_path / "run.yaml.token"
    for line in (bash_line(commands[1]), f"set -- 1\n{bash_script(commands)}"):
        path.unlink(missing_ok=True)
        done = subprocess.run([BASH, "-c", line], capture_output=True, timeout=PATIENCE_SECONDS)
        assert (done.returncode, done.stdout) == (1, b"")
        assert b"run.yaml.token" in done.stderr
        make_token_file(path)
        done = subprocess.run([BASH, "-c", line], capture_output=True, timeout=PATIENCE_SECONDS)
        assert done.stdout.decode() == 2 * path.read_text()
    assert "$env:CHORUS_TOKEN = Get-Content -Raw -LiteralPath 'run.yaml.token' " in powershell_line(commands[0])
    assert all(path.read_text().strip() not in text for text in map(bash_line, commands))


def test_one_machine_needs_no_token_from_a_file():
    [command] = node_commands(multi_gpu(), 2, Places("run.yaml"))
    assert "TOKEN" not in bash_line(command) + powershell_line(command) + bash_script([command])


def test_all_commands_are_shown_under_the_number_of_their_machine():
    commands = node_commands(two_nodes(), 2, Places("run.yaml"))
    text = commands_text(commands, "10.0.0.1", bash_line)
    note = (
        "# The machines know each other by the token in run.yaml.token. Copy it to each that does not share the disk."
    )
    assert text == f"{note}\n\n# node 0 (10.0.0.1)\n{bash_line(commands[0])}\n\n# node 1\n{bash_line(commands[1])}"


def test_without_torchrun_the_command_says_what_differs_between_machines():
    commands = node_commands(two_nodes(use_torchrun=False), 4, Places("run.yaml", "python"))
    assert "torch.distributed.run" not in commands[1].arguments
    assert {"--set=node_rank=1", "--set=num_nodes=2", "--set=world_size=4"} <= set(commands[1].arguments)


def test_on_windows_the_command_does_without_torchrun_whatever_the_setting(monkeypatch):
    places = Places("run.yaml", "python")
    without = node_commands(two_nodes(use_torchrun=False), 4, places)
    monkeypatch.setattr(run_shape, "sys", SimpleNamespace(platform="win32"))
    assert node_commands(two_nodes(use_torchrun=True), 4, places) == without


def test_one_device_needs_no_launcher():
    for config in (config_from_values({}), multi_gpu()):
        [command] = node_commands(config, 1, Places("run.yaml", "python"))
        assert command.arguments[1:] == (f"{ROOT}/scripts/train.py", "--config=run.yaml")


def test_resume_is_handed_on_to_the_check_of_the_machines():
    for command in node_commands(two_nodes(), 2, Places("run.yaml"), resume=True):
        assert command.check[-1] == "--resume"  # without it, one machine would start over


def test_chosen_gpus_are_counted_as_the_window_counts_them():
    [command] = node_commands(multi_gpu(device_indexes=[1, 2]), 2, Places("run.yaml"))
    assert ("CUDA_DEVICE_ORDER", "PCI_BUS_ID") in command.variables


def test_powershell_reads_no_value():
    places = Places("it's ’; $(touch X) `.yaml", "C:\\Program Files\\python.exe", "C:\\chorus", "D:\\", "eth0")
    line = powershell_line(node_commands(two_nodes(), 2, places)[0])
    assert "{ & 'C:\\Program Files\\python.exe' '-m'" in line
    assert "'--config=it''s ’’; $(touch X) `.yaml'" in line
    assert line.startswith("Set-Location -LiteralPath 'D:\\' ")
    assert "$env:NCCL_SOCKET_IFNAME = 'eth0'; " in line


@pytest.mark.parametrize("value", ['a"b', "a b\\"])
def test_what_powershells_hand_over_differently_is_refused(value):
    with pytest.raises(UserError, match="PowerShell"):
        powershell_line(node_commands(multi_gpu(), 2, Places(value))[0])


@pytest.mark.skipif(POWERSHELL is None, reason="no PowerShell")
@pytest.mark.parametrize("value", [value for value in HOSTILE if '"' not in value])
def test_no_value_is_read_by_powershell(value, tmp_path):
    recorder = tmp_path / "record.py"
    recorder.write_text("import json, sys\nprint(json.dumps(sys.argv[1:]))\n", encoding="utf-8")
    command = node_commands(two_nodes(master_addr=value), 2, Places(value, "python", "/opt", str(tmp_path)))[0]
    places = command.arguments[3:]
    assert "'--check'" in powershell_line(command)
    command = type(command)(0, (sys.executable, str(recorder), *places), command.variables, command.folder)
    path = tmp_path / "start.ps1"
    path.write_text(powershell_script([command]), encoding="utf-8-sig")
    options = [POWERSHELL, "-NoProfile", "-ExecutionPolicy", "Bypass", "-File", str(path)]
    done = subprocess.run(options, capture_output=True, text=True, encoding="utf-8", timeout=PATIENCE_SECONDS)
    assert tuple(json.loads(done.stdout)) == places
    assert not list(tmp_path.rglob("X"))


def test_the_line_is_what_a_shell_would_split_into_the_arguments():
    [command] = node_commands(multi_gpu(), 2, Places("a b.yaml", "python", "/opt/chorus", "/work folder"))
    assert shlex.split(bash_line(command)) == ["cd", "--", "/work folder", "&&", *command.arguments]


@needs_bash
def test_the_command_starts_a_training_as_it_is(tmp_path):
    """As far as possible without a model: the settings are read and their problems reported."""
    (tmp_path / "it's a run.yaml").write_text("config_version: 1\nworkspace_dir: ''\n")
    [command] = node_commands(config_from_values({}), 1, Places("it's a run.yaml", folder=str(tmp_path)))
    line = f"{bash_line(command)} --dry-run"
    done = subprocess.run([BASH, "-c", line], capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert done.returncode == 2
    assert "workspace_dir is empty" in done.stderr
