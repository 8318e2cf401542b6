"""What the process above the ranks does before it starts them."""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import replace

import pytest

from modules.config.errors import UserError
from modules.config.files import config_from_values
from modules.session.FolderCommands import send_command
from modules.session.node_check import check_nodes
from modules.session.ports import next_free_port
from modules.session.RunFolder import RunFolder
from modules.trainer.supervise import supervise_training


@pytest.fixture
def config(tmp_path):
    """Of node 0 of two."""
    port = next_free_port(10_000 + os.getpid() * 10 % 20_000)
    machines = {"enable_multi_gpu": True, "num_nodes": 2, "world_size": 1, "master_addr": "127.0.0.1"}
    settings = {"model": {"base": "base"}, "concepts": [{"path": "pictures"}], "distributed_backend": "gloo"}
    folders = {"workspace_dir": str(tmp_path / "run"), "initial_port": str(port)}
    return config_from_values({**settings, **machines, **folders})


def test_a_run_that_waits_for_other_machines_can_be_stopped(config):
    folder = RunFolder(config.workspace_dir)

    def stop_when_it_waits() -> None:
        path = folder.supervisor_event_path
        while not path.exists() or '"waiting for node 1 (' not in path.read_text(encoding="utf-8"):
            time.sleep(0.01)
        send_command(folder, "stop")

    threading.Thread(target=stop_when_it_waits, daemon=True).start()
    assert supervise_training(config, 1) == 130
    assert json.loads(folder.exit_path.read_bytes())["status"] == "stopped"
    assert list(folder.commands_dir.iterdir()) == []


def test_what_one_machine_refuses_before_the_meeting_ends_the_others_too(config, tmp_path):
    (tmp_path / "run" / "models").mkdir(parents=True)
    (tmp_path / "run" / "models" / "model.safetensors").touch()
    told: list[str] = []

    def meet() -> None:
        try:
            check_nodes(replace(config, node_rank=1), lambda text: None)
        except UserError as error:
            told.append(str(error))

    other = threading.Thread(target=meet, daemon=True)
    other.start()
    with pytest.raises(UserError, match="holds a run already") as refused:
        supervise_training(config, 1)
    other.join(60)
    assert told == [f"Node 0 can't train: {refused.value}"]
