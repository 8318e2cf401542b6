"""Two machines train together by the commands that are written for them; here they are network namespaces."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from modules.config.files import save_config
from modules.config.TrainConfig import TrainConfig
from modules.session.command_text import Places, bash_line, node_commands
from modules.session.events import read_events
from tests.support import rank_scenarios
from tests.trainer.conftest import SIZES

pytestmark = pytest.mark.slow

STEPS = 20
RUN_SECONDS = 120.0
# mounts what is the host's own where all hosts look for it, for this command alone
OWN_DISK = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'


@pytest.fixture
def run_on_both(two_hosts) -> Callable[..., list[str]]:
    """A function that runs the command of each node on a host, as it would be pasted; gives what they wrote.

    disk: where each finds a folder of its own, if they share none.
    """

    def run(config: TrainConfig, config_file: Path, disk: Path | None = None) -> list[str]:
        commands = node_commands(config, 1, Places(str(config_file), sys.executable, folder=str(config_file.parent)))
        processes = []
        for host, command in zip(two_hosts, commands, strict=True):
            argv = ["bash", "-c", bash_line(command)]
            if disk is not None:
                own = disk.with_name(f"disk-{command.node_rank}")
                argv = ["unshare", "-m", "sh", "-c", OWN_DISK, "sh", str(own), str(disk), *argv]
            output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
            processes.append(host.popen(argv, env=without_gpus(os.environ), cwd="/", **output))
        outputs = [process.communicate(timeout=RUN_SECONDS)[0] for process in processes]
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
    events, _ = read_events(run_folder / "events" / f"rank-{rank}.jsonl", 0)
    return [event["loss"] for event in events if event["type"] == "step"]


def cached(cache_dir: Path, rank: int) -> int:
    return sum(len(files) for *_, files in os.walk(cache_dir / f"rank-{rank}" / "latents"))


def test_two_hosts_give_the_losses_of_one_with_and_without_a_shared_disk(
    config, run_on_both, config_file, two_ranks, tmp_path
):
    on_one_host, _ = two_ranks.run(
        rank_scenarios.train, config=config_file(replace(config, workspace_dir=str(tmp_path / "one")))
    )
    expected = pytest.approx(on_one_host["losses"], rel=1e-5)
    assert len(on_one_host["losses"]) == STEPS

    shared = replace(config, workspace_dir=str(tmp_path / "shared"), cache_dir=str(tmp_path / "shared-cache"))
    outputs = run_on_both(shared, Path(config_file(shared)))
    for output in outputs:
        assert "2 nodes, alike: settings, Chorus, Python " in output
    assert [losses(tmp_path / "shared", rank) for rank in (0, 1)] == [expected, expected]
    assert sum(cached(tmp_path / "shared-cache", rank) for rank in (0, 1)) == len(SIZES)  # each encodes its share

    disk = tmp_path / "disk"
    disk.mkdir()
    apart = replace(config, workspace_dir=str(disk / "run"), cache_dir=str(disk / "cache"))
    for node in (0, 1):
        (tmp_path / f"disk-{node}").mkdir()
        save_config(apart, tmp_path / f"disk-{node}" / "run.yaml")
    run_on_both(apart, disk / "run.yaml", disk)
    assert list(disk.iterdir()) == []
    for node in (0, 1):
        own = tmp_path / f"disk-{node}"
        assert losses(own / "run", node) == expected
        assert cached(own / "cache", node) == len(SIZES)  # what it does not see of the other's it encodes itself
        assert len(list((own / "run" / "models").iterdir())) == (node == 0)
