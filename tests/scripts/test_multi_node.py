from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from modules.config.errors import UserError
from modules.config.files import config_from_values, save_config
from modules.config.presets import ROOT
from modules.session.command_text import Places, bash_line, node_commands, powershell_script
from modules.session.devices import Gpu
from scripts import multi_node

SCRIPT = str(ROOT / "scripts" / "multi_node.py")
END_SECONDS = 60.0
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
    lines = [f"# node 0 (10.0.0.1)\n{bash_line(commands[0])}", f"# node 1\n{bash_line(commands[1])}"]
    assert written(capsys, "--config", config_file, "--shell", "bash") == "\n\n".join(lines) + "\n"
    file = powershell_script(commands)
    assert written(capsys, "--config", config_file, "--shell", "powershell", "--script") == file + "\n"


def test_every_option_reaches_the_commands(config_file, capsys):
    options = ["--nodes=3", "--processes-per-node=4", "--master-addr=10.0.0.9", "--master-port=29511", "--resume"]
    places = ["--interface=eth7", "--python=/opt/my python", "--chorus=/opt/chorus", "--folder=/work folder"]
    text = written(capsys, "--config", config_file, "--shell=bash", *options, *places)
    words = shlex.split(text.splitlines()[-1])
    assert words[:5] == ["cd", "--", "/work folder", "&&", "/opt/my python"]
    assert {"--nnodes=3", "--node-rank=2", "--nproc-per-node=4", "--master-addr=10.0.0.9"} <= set(words)
    assert {"--master-port=29511", "GLOO_SOCKET_IFNAME=eth7", "/opt/chorus/scripts/train.py", "--resume"} <= set(words)
    assert "torch.distributed.run" not in written(capsys, "--config", config_file, "--no-torchrun")


def test_what_has_no_command_is_refused_in_one_sentence(config_file, capsys, tmp_path):
    assert "num_nodes" in refusal(capsys, "--config", config_file, "--nodes", "none")
    assert "node_rank 2 with num_nodes 2" in refusal(capsys, "--config", config_file, "--check", "--node-rank", "2")
    assert "is not a whole path" in refusal(capsys, "--config", config_file, "--folder", "work")
    assert "nothing.yaml" in refusal(capsys, "--config", str(tmp_path / "nothing.yaml"))


def test_a_check_looks_at_this_machines_own_part_before_it_waits(config_file, capsys, monkeypatch):
    for address in ("localhost", "127.0.1.1"):
        text = refusal(capsys, "--config", config_file, "--check", f"--master-addr={address}")
        assert text.startswith(f"master_addr '{address}' with num_nodes 2: the other machines can't find machine 0")
    told = []

    @contextlib.contextmanager
    def refused_together(config, tell):
        try:
            yield
        except UserError as error:
            told.append(str(error))
            raise

    monkeypatch.setattr(multi_node, "refused_together", refused_together)
    gpus = [Gpu(index, "L4", f"GPU-{index}", 1, index) for index in (0, 1)]
    monkeypatch.setattr(multi_node, "list_gpus", lambda: gpus)
    save_config(config_from_values({**SETTINGS, "distributed_backend": "auto"}), config_file)
    text = refusal(capsys, "--config", config_file, "--check", "--processes-per-node=8")
    assert "each rank needs a GPU of its own and this machine has 2" in text
    assert told == [text]


def test_one_machine_is_warned_of(config_file, capsys):
    assert multi_node.main(["--config", config_file, "--nodes", "1"]) == 0
    assert "Warning: num_nodes 1: these are the commands for one machine" in capsys.readouterr().err


def test_the_check_needs_no_torch():
    code = "import sys; from scripts import multi_node; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout == "False\n", done.stderr


# --- two hosts --------------------------------------------------------------------------------------------------------


def check(host, config_file: Path | str, node_rank: int, port: int, *options: str) -> subprocess.Popen:
    arguments = [f"--config={config_file}", f"--node-rank={node_rank}", f"--master-port={port}", *options]
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return host.popen([sys.executable, SCRIPT, "--check", *arguments], env=os.environ, **output)


def ends(*nodes: subprocess.Popen) -> list[tuple[int, str, str]]:
    """(exit code, stdout, stderr) of each."""
    outputs = [node.communicate(timeout=END_SECONDS) for node in nodes]
    return [(node.returncode, *output) for node, output in zip(nodes, outputs, strict=True)]


@pytest.mark.slow
def test_each_mistake_is_one_plain_sentence_on_both_hosts(two_hosts, config_file, tmp_path):
    """All at once, each at a port of its own, for the wrong address takes a while to be given up."""
    first, second = two_hosts
    address, wrong = f"--master-addr={first.address}", "--master-addr=10.99.0.1"
    other_settings = tmp_path / "other.yaml"
    save_config(config_from_values({**SETTINGS, "seed": 7}), other_settings)
    busy = first.popen(
        [sys.executable, "-c", "import socket; s = socket.create_server(('', 29502)); print(flush=True); s.accept()"],
        stdout=subprocess.PIPE,
    )
    busy.stdout.readline()
    leader = check(first, config_file, 0, 29503, address)
    leader.stdout.readline()  # it listens: else the second one finds nobody, and says something else
    pairs = {
        "address": [check(host, config_file, rank, 29501, wrong) for rank, host in enumerate(two_hosts)],
        "port": [check(host, config_file, rank, 29502, address) for rank, host in enumerate(two_hosts)],
        "rank": [leader, check(second, config_file, 0, 29503, address)],
        "settings": [check(first, config_file, 0, 29504, address), check(second, other_settings, 1, 29504, address)],
        "nothing": [check(host, config_file, rank, 29505, address) for rank, host in enumerate(two_hosts)],
    }
    ended = {name: ends(*nodes) for name, nodes in pairs.items()}
    busy.kill()
    busy.stdout.close()

    for code, out, _ in ended.pop("nothing"):
        assert code == 0
        assert f"Node 1: {second.address}\n2 nodes, alike: settings, Chorus, Python " in out
    sentences = {}
    for name, nodes in ended.items():
        assert [code for code, *_ in nodes] == [2, 2], nodes
        assert [err.count("\n") for *_, err in nodes] == [1, 1], nodes
        sentences[name] = [err for *_, err in nodes]
    assert "is not an address of this machine, which is node 0" in sentences["address"][0]
    assert "Node 0 can't be reached at 10.99.0.1:29501 from here" in sentences["address"][1]
    waited = [int(seconds) for seconds in re.findall(r"waiting for node 0 \((\d+) s\)", ended["address"][1][1])]
    assert waited[-1] < 25
    assert "initial_port 29502 is busy here" in sentences["port"][0]
    assert "Something else than node 0's check answers" in sentences["port"][1]
    for name, sentence in {"rank": "node_rank 0 was given twice", "settings": "other settings (seed)"}.items():
        assert sentence in sentences[name][0]
        assert sentences[name][0] == sentences[name][1]
    assert [host.pids() for host in two_hosts] == [[], []]
