"""Two machines train together with the documented commands, or say why not; simulated by network namespaces."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from modules.config.files import save_config
from modules.config.TrainConfig import TrainConfig
from modules.launch.command_text import Command, Places, bash_line, node_commands
from modules.session.events import read_events
from modules.session.run_token import make_token_file, token_path
from tests.support import rank_scenarios
from tests.support.network_namespaces import Host
from tests.support.waiting import PATIENCE_SECONDS
from tests.trainer.conftest import SIZES

pytestmark = pytest.mark.slow

STEPS = 8  # more than two epochs
# From when both nodes of a pair have said a line to the end of each: what the machine decides, how long Python imports,
# is over then. The longest is an address at which there is nobody, given up after some 20 s by the clock, however fast
# the machine; a node that waits for the other in vain does so for 600 s.
MISTAKE_SECONDS = 60.0
OTHER_PROGRAM = """
import socket, sys
server = socket.create_server(("", int(sys.argv[1])))
print(flush=True)
while True:
    server.accept()[0].close()
"""
# mounts the host's own folder at the common path, for this command only
OWN_DISK = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'


@pytest.fixture
def run_on_both(two_hosts) -> Callable[..., list[str]]:
    """Returns a function that runs the command of each node on its host and returns their output.

    disk: where each finds a folder of its own.
    """

    def run(config: TrainConfig, config_file: Path, disk: Path) -> list[str]:
        commands = node_commands(config, 1, Places(str(config_file), sys.executable, folder=str(config_file.parent)))
        processes = []
        for host, command in zip(two_hosts, commands, strict=True):
            own = disk.with_name(f"disk-{command.node_rank}")
            in_own = ["unshare", "-m", "sh", "-c", OWN_DISK, "sh", str(own), str(disk)]
            argv = [*in_own, "bash", "-c", bash_line(command)]
            output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
            processes.append(host.popen(argv, env=without_gpus(os.environ), cwd="/", **output))
        outputs = [process.communicate(timeout=PATIENCE_SECONDS)[0] for process in processes]
        assert [process.returncode for process in processes] == [0, 0], "\n".join(outputs)
        assert [host.pids() for host in two_hosts] == [[], []]
        return outputs

    return run


@pytest.fixture
def config(make_config, two_hosts) -> TrainConfig:
    changes = ("batch_size=4", "batch_size_mode=global", f"max_steps={STEPS}", "distributed_backend=gloo")
    machines = ("enable_multi_gpu=true", "num_nodes=2", "world_size=1", f"master_addr={two_hosts[0].address}")
    return make_config(*changes, *machines)


def without_gpus(env: Mapping[str, str]) -> dict[str, str]:
    return {**{name: value for name, value in env.items() if not name.endswith("_IFNAME")}, "CUDA_VISIBLE_DEVICES": ""}


def losses(run_folder: Path, rank: int) -> list[float]:
    records, _ = read_events(run_folder / "events" / f"rank-{rank}.jsonl", 0)
    return [record.event.loss for record in records if record.event.type == "step"]


def cached(cache_dir: Path, rank: int) -> int:
    return sum(len(files) for *_, files in os.walk(cache_dir / f"rank-{rank}" / "latents"))


def test_two_hosts_without_a_shared_disk_give_the_losses_of_one(config, run_on_both, config_file, two_ranks, tmp_path):
    """data/test_caching_on_ranks.py has nodes that share one, test_ranks.py what ranks that share one give."""
    on_one_host, _ = two_ranks.run(
        rank_scenarios.train, config=config_file(replace(config, workspace_dir=str(tmp_path / "one")))
    )
    expected = pytest.approx(on_one_host["losses"], rel=1e-5)
    assert len(on_one_host["losses"]) == STEPS

    disk = tmp_path / "disk"
    disk.mkdir()
    apart = replace(config, workspace_dir=str(disk / "run"), cache_dir=str(disk / "cache"))
    for node in (0, 1):
        (tmp_path / f"disk-{node}").mkdir()
        save_config(apart, tmp_path / f"disk-{node}" / "run.yaml")
    make_token_file(tmp_path / "disk-0" / "run.yaml.token")
    shutil.copy(tmp_path / "disk-0" / "run.yaml.token", tmp_path / "disk-1")
    for output in run_on_both(apart, disk / "run.yaml", disk):
        assert "2 nodes, alike: settings, Chorus, Python " in output
        assert "CHORUS_TOKEN is not set" not in output
    assert list(disk.iterdir()) == []
    for node in (0, 1):
        own = tmp_path / f"disk-{node}"
        assert losses(own / "run", node) == expected
        assert cached(own / "cache", node) == len(SIZES)  # without the other's cache, it encodes everything
        assert len(list((own / "run" / "models").iterdir())) == (node == 0)


class Node:
    """The command of a node running on a host, with the times of its first output line and of its end."""

    def __init__(self, host: Host, command: Command, output: Path):
        self._output = output
        with output.open("wb") as file:
            argv = ["bash", "-c", bash_line(command)]
            options = {"stdout": file, "stderr": subprocess.STDOUT}
            self.process = host.popen(argv, env=without_gpus(os.environ), cwd="/", **options)
        self.spoke = self.ended = None

    @property
    def lines(self) -> list[str]:
        return self._output.read_text(encoding="utf-8").splitlines()

    def look(self) -> bool:
        """Whether it has ended; call it repeatedly, because it also records the times."""
        now = time.monotonic()
        if self.ended is None and self.process.poll() is not None:
            self.ended = now
        if self.spoke is None and self.lines:  # checked after its end, when all output is there
            self.spoke = now
        return self.ended is not None


def wait_for(condition: Callable[[Node], object], nodes: Sequence[Node]) -> None:
    """Waits until the condition holds for all nodes; checks every node each time."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while unlike := [node for node in nodes if not condition(node)]:
        assert time.monotonic() < deadline, [node.lines for node in unlike]
        time.sleep(0.05)


def test_each_mistake_is_one_sentence_on_both_hosts_within_seconds(config, two_hosts, config_file, tmp_path):
    """All cases run at once, each on its own port, because giving up on a wrong address takes a while."""
    first, second = two_hosts
    settings, other_settings = Path(config_file(config)), tmp_path / "other.yaml"
    save_config(replace(config, seed=config.seed + 1), other_settings)
    make_token_file(token_path(str(settings)))
    shutil.copy(token_path(str(settings)), token_path(str(other_settings)))

    def start(host: Host, port: int, node_rank: int, file: Path = settings, address: str = first.address) -> Node:
        own = replace(config, initial_port=str(port), master_addr=address)
        commands = node_commands(own, 1, Places(str(file), sys.executable, folder=str(tmp_path)))
        return Node(host, commands[node_rank], tmp_path / f"{port}-{host.address}.txt")

    busy = first.popen([sys.executable, "-c", OTHER_PROGRAM, "29502"], stdout=subprocess.PIPE)
    busy.stdout.readline()
    leader = start(first, 29503, 0)
    wait_for(lambda node: node.lines, [leader])  # otherwise the second node finds no listener
    unlike = "Node 1 (10.77.0.2) has other settings (seed): bring it to what node 0 has, and start all again."
    given_twice = "node_rank 0 was given twice, to the machine that has master_addr and to 10.77.0.2: "
    mistakes = {
        "wrong address": (
            [start(host, 29501, rank, address="10.99.0.1") for rank, host in enumerate(two_hosts)],
            ["master_addr '10.99.0.1' is not an address of this machine, which is node 0: ", "Node 0 can't be reached"],
        ),
        "busy port": (
            [start(host, 29502, rank) for rank, host in enumerate(two_hosts)],
            ["initial_port 29502 is busy here ", "Something other than node 0's check answers at 10.77.0.1:29502: "],
        ),
        "node 0 twice": ([leader, start(second, 29503, 0)], [given_twice, given_twice]),
        "node 1 twice": (
            [start(host, 29504, 1) for host in two_hosts],
            [
                "master_addr '10.77.0.1' is this machine itself, which is node 1, and nothing listens there: ",
                "The machine that has master_addr, 10.77.0.1, was started as node 1: ",
            ],
        ),
        "other settings": (
            [start(first, 29505, 0), start(second, 29505, 1, other_settings)],
            [unlike, unlike],
        ),
    }
    wait_for(Node.look, [node for nodes, _ in mistakes.values() for node in nodes])
    busy.kill()
    busy.wait()
    busy.stdout.close()
    assert [host.pids() for host in two_hosts] == [[], []]

    for nodes, sentences in mistakes.values():
        both_spoke = max(node.spoke for node in nodes)
        for node, sentence in zip(nodes, sentences, strict=True):
            *waiting, last = node.lines
            assert all(line.startswith("waiting for node ") for line in waiting), node.lines
            assert last.startswith(sentence)
            assert node.process.returncode == 2
            assert node.ended - both_spoke < MISTAKE_SECONDS, node.lines
