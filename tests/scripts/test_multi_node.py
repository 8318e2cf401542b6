from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from modules.config.errors import UserError
from modules.config.files import config_from_values, save_config
from modules.config.presets import ROOT
from modules.launch.command_text import Places, bash_line, node_commands, powershell_script
from modules.machine.devices import Gpu
from modules.machine.Machine import Machine
from scripts import multi_node
from tests.support.waiting import PATIENCE_SECONDS

SETTINGS = {
    **{"model": {"base": "base"}, "concepts": [{"path": "pictures"}], "distributed_backend": "gloo"},
    **{"enable_multi_gpu": True, "num_nodes": 2, "world_size": 2, "master_addr": "10.0.0.1", "initial_port": "29500"},
}


@pytest.fixture
def config_file(tmp_path) -> str:
    path = tmp_path / "run.yaml"
    save_config(config_from_values(SETTINGS), path)
    return str(path)


def written(capsys, *arguments: str) -> str:
    assert multi_node.main(list(arguments)) == 0
    return capsys.readouterr().out


def refusal(capsys, *arguments: str) -> str:
    assert multi_node.main(list(arguments)) == 2
    [sentence] = capsys.readouterr().err.splitlines()
    return sentence


def test_it_writes_the_commands_of_the_window(config_file, capsys):
    commands = node_commands(config_from_values(SETTINGS), 2, Places(config_file))
    note = f"# The machines know each other by the token in {config_file}.token. "
    note += "Copy it to each that does not share the disk."
    lines = [note, f"# node 0 (10.0.0.1)\n{bash_line(commands[0])}", f"# node 1\n{bash_line(commands[1])}"]
    assert written(capsys, "--config", config_file, "--shell", "bash") == "\n\n".join(lines) + "\n"
    file = powershell_script(commands)
    assert written(capsys, "--config", config_file, "--shell", "powershell", "--script") == file + "\n"


def test_every_option_reaches_the_commands(config_file, capsys):
    options = ["--nodes=3", "--processes-per-node=4", "--master-addr=10.0.0.9", "--master-port=29511", "--resume"]
    places = ["--interface=eth7", "--python=/opt/my python", "--chorus=/opt/chorus", "--folder=/work folder"]
    text = written(capsys, "--config", config_file, "--shell=bash", *options, *places)
    words = shlex.split(text.splitlines()[-1])
    token = ["CHORUS_TOKEN=$(cat", "--", f"{config_file}.token)", "&&", "export", "CHORUS_TOKEN", "&&"]
    assert words[:12] == ["cd", "--", "/work folder", "&&", *token, "/opt/my python"]
    assert {"--nnodes=3", "--node-rank=2", "--nproc-per-node=4", "--master-addr=10.0.0.9"} <= set(words)
    assert {"--master-port=29511", "GLOO_SOCKET_IFNAME=eth7", "/opt/chorus/scripts/train.py", "--resume"} <= set(words)
    assert "torch.distributed.run" not in written(capsys, "--config", config_file, "--no-torchrun")


def test_presets_and_settings_reach_training_and_check(config_file, capsys):
    given = ["--preset", "sd15-lora", "--set", "epochs=3", "--set", "model.base=other base"]
    text = written(capsys, "--config", config_file, *given, "--shell", "bash")
    options = [shlex.quote(option) for option in (f"--config={config_file}", "--preset=sd15-lora", "--set=epochs=3")]
    assert text.count(" ".join([*options, "'--set=model.base=other base'"])) == 4  # check and training of two machines


def test_the_token_is_made_once_in_a_file_for_its_owner_and_never_shown(config_file, capsys):
    path = Path(f"{config_file}.token")
    texts = [written(capsys, "--config", config_file) for _ in range(2)]
    assert texts[0] == texts[1]
    assert path.read_text().strip() not in texts[0]
    if os.name == "posix":
        assert path.stat().st_mode & 0o777 == 0o600
    path.unlink()
    written(capsys, "--config", config_file, "--nodes", "1")
    assert not path.exists()
    path.touch()
    assert "holds no token: delete it" in refusal(capsys, "--config", config_file)


def test_what_has_no_command_is_refused_in_one_sentence(config_file, capsys, tmp_path):
    assert "num_nodes" in refusal(capsys, "--config", config_file, "--nodes", "none")
    assert "node_rank 2 with num_nodes 2" in refusal(capsys, "--config", config_file, "--check", "--node-rank", "2")
    assert "is not a whole path" in refusal(capsys, "--config", config_file, "--folder", "work")
    assert "nothing.yaml" in refusal(capsys, "--config", str(tmp_path / "nothing.yaml"))


@pytest.mark.skipif(os.name == "nt", reason="Windows keeps the folder that a process works in")
def test_commands_for_a_folder_that_is_gone_are_refused_in_one_sentence(config_file, capsys, tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert "no longer exists: start it again from another one" in refusal(capsys, "--config", config_file)
    assert written(capsys, "--config", config_file, "--folder", str(tmp_path))


def test_nodes_that_are_all_on_this_machine_are_checked_and_told_so(config_file, capsys, monkeypatch):
    monkeypatch.setattr(multi_node, "check_nodes", lambda *args, **options: ["Node 1: 127.0.0.1"])
    for address in ("localhost", "127.0.1.1"):
        assert multi_node.main(["--config", config_file, "--check", f"--master-addr={address}"]) == 0
        warning, found = capsys.readouterr().out.splitlines()
        assert warning.startswith(f"Warning: master_addr '{address}' with num_nodes 2: only this machine can find ")
        assert found == "Node 1: 127.0.0.1"
    assert "--master-addr=127.0.0.1" in written(capsys, "--config", config_file, "--master-addr=127.0.0.1")


def test_a_check_looks_at_this_machines_own_part_before_it_waits(config_file, capsys, monkeypatch):
    assert refusal(capsys, "--config", config_file, "--check", "--master-addr=").startswith("master_addr is empty")
    told = []

    @contextlib.contextmanager
    def refused_together(config, tell):
        try:
            yield
        except UserError as error:
            told.append(str(error))
            raise

    monkeypatch.setattr(multi_node, "refused_together", refused_together)
    gpus = tuple(Gpu(index, "L4", f"GPU-{index}", 1, index) for index in (0, 1))
    monkeypatch.setattr(multi_node, "read_machine", lambda: Machine(gpus))
    save_config(config_from_values({**SETTINGS, "distributed_backend": "auto"}), config_file)
    text = refusal(capsys, "--config", config_file, "--check", "--processes-per-node=8")
    assert "each rank needs a GPU of its own and this machine has 2" in text
    assert told == [text]


@pytest.mark.parametrize("wait", ["nan", "inf", "-1"])
def test_a_time_that_nobody_can_wait_is_refused(config_file, capsys, wait):
    with pytest.raises(SystemExit):
        multi_node.main(["--config", str(config_file), f"--wait={wait}"])
    told = f"argument --wait: {wait} is not a time to wait: write a number of seconds, 0 or more\n"
    assert capsys.readouterr().err.endswith(told)


def test_one_machine_is_warned_of(config_file, capsys):
    assert multi_node.main(["--config", config_file, "--nodes", "1"]) == 0
    assert "Warning: num_nodes 1: these are the commands for one machine" in capsys.readouterr().err


def test_the_check_needs_no_torch():
    code = "import sys; from scripts import multi_node; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
    assert done.stdout == "False\n", done.stderr
