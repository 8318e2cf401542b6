"""What the process above the ranks does before it starts them."""

from __future__ import annotations

import json
import socket
import threading
import time

from modules.config.files import config_from_values
from modules.session.FolderCommands import send_command
from modules.session.RunFolder import RunFolder
from modules.trainer.supervise import supervise_training


def test_a_run_that_waits_for_other_machines_can_be_stopped(tmp_path):
    with socket.create_server(("", 0)) as probe:
        port = probe.getsockname()[1]
    machines = {"enable_multi_gpu": True, "num_nodes": 2, "world_size": 1, "master_addr": "127.0.0.1"}
    settings = {"model": {"base": "base"}, "concepts": [{"path": "pictures"}], "distributed_backend": "gloo"}
    folder = RunFolder(tmp_path / "run")
    config = config_from_values(
        {**settings, **machines, "workspace_dir": str(folder.path), "initial_port": str(port)}
    )

    def stop_when_it_waits() -> None:
        path = folder.supervisor_event_path
        while not path.exists() or '"waiting for node 1 (0 s)"' not in path.read_text(encoding="utf-8"):
            time.sleep(0.01)
        send_command(folder, "stop")

    threading.Thread(target=stop_when_it_waits, daemon=True).start()
    assert supervise_training(config, 1) == 130
    assert json.loads(folder.exit_path.read_bytes())["status"] == "stopped"
    assert list(folder.commands_dir.iterdir()) == []
