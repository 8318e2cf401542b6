"""The window for several machines."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys

import pytest

from modules.session.node_check import NodeAnswerer, describe_node
from modules.ui.MultiNodeWindow import MultiNodeWindow
from tests.support.fake_nvml import eight_gpus


@pytest.fixture
def port():
    with socket.create_server(("", 0)) as probe:
        return probe.getsockname()[1]


@pytest.fixture
def open_window(app, wait_for, monkeypatch, port):
    monkeypatch.setitem(sys.modules, "pynvml", eight_gpus())

    def make(**settings):
        defaults = {
            **{"enable_multi_gpu": True, "distributed_backend": "auto", "use_torchrun": True, "num_nodes": 2},
            **{"world_size": 4, "device_indexes": [0, 1, 2, 3], "master_addr": "127.0.0.1", "initial_port": str(port)},
        }
        for path, value in {**defaults, **settings}.items():
            assert app.settings.set(path, value) is None
        window = MultiNodeWindow(app)
        wait_for(app, lambda: app.devices.machine is not None and window._waiting is None)
        return window

    return make


def shown(window):
    return window.commands.box.get("1.0", "end-1c")


def change(window, app, wait_for, name, value):
    """As if it were typed."""
    entry = window.entries[name]
    entry.delete(0, "end")
    entry.insert(0, value)
    window._soon()
    wait_for(app, lambda: window._waiting is None)


def test_each_machine_has_its_command(open_window, app, port):
    text = shown(open_window())
    assert text.count("torch.distributed.run") == 2
    assert "# machine 0 (127.0.0.1)\n" in text
    for number in (0, 1):
        assert f"--node-rank={number} --nproc-per-node=4 --master-addr=127.0.0.1 --master-port={port}" in text


def test_the_commands_follow_settings_and_folders(open_window, app, wait_for):
    window = open_window()
    app.settings.set("num_nodes", "3")
    change(window, app, wait_for, "interface", "eth0")
    change(window, app, wait_for, "python", "/opt/my venv/bin/python")
    text = shown(window)
    assert text.count("NCCL_SOCKET_IFNAME=eth0") == 3
    assert text.count("'/opt/my venv/bin/python' -m") == 3
    assert app.launch.places.interface == "eth0"  # the tab's command has it too


def test_the_settings_file_follows_the_run_folder_until_it_is_named(open_window, app, wait_for, tmp_path):
    window = open_window()
    app.settings.set("workspace_dir", str(tmp_path / "other"))
    wait_for(app, lambda: window.entries["config_path"].get() == f"{tmp_path / 'other'}.yaml")
    change(window, app, wait_for, "config_path", "/shared/run.yaml")
    app.settings.set("workspace_dir", str(tmp_path / "third"))
    wait_for(app, lambda: window._waiting is None)
    assert "--config=/shared/run.yaml" in shown(window)


@pytest.mark.parametrize(
    ("name", "value", "word"),
    [("chorus", "~/chorus", "whole path"), ("python", "", "empty"), ("folder", "work", "whole path")],
)
def test_a_folder_that_can_not_be_in_a_command_is_said_there(name, value, word, open_window, app, wait_for):
    window = open_window()
    change(window, app, wait_for, name, value)
    assert shown(window) == ""
    assert word in window.commands._note.cget("text")
    assert window.entries[name].get() == value


@pytest.mark.skipif(shutil.which("bash") is None or os.name == "nt", reason="no bash")
def test_the_commands_run_in_bash_as_they_are(open_window, app, wait_for, tmp_path):
    recorder = tmp_path / "it's; touch X" / "python $(touch X)"
    recorder.parent.mkdir()
    recorder.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    recorder.chmod(0o755)
    window = open_window(master_addr="`touch X`")
    change(window, app, wait_for, "python", str(recorder))
    change(window, app, wait_for, "interface", "$(touch X)")
    app.clipboard_clear()
    app.clipboard_append("")
    window.commands.copy()
    wait_for(app, app.clipboard_get)
    done = subprocess.run(["bash", "-eu"], input=app.clipboard_get(), capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if "node-rank" in line] == ["--node-rank=0", "--node-rank=1"]
    assert done.stdout.splitlines().count("--master-addr=`touch X`") == 2
    assert not list(tmp_path.rglob("X"))


def test_settings_for_a_folder_of_other_machines_are_written_here(open_window, app, wait_for, tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(app, "show_message", lambda text, kind="info": told.append(text))
    window = open_window(workspace_dir=str(tmp_path / "run"))
    change(window, app, wait_for, "config_path", "/nowhere here/run.yaml")
    window.commands.copy()
    wait_for(app, lambda: told)
    assert (tmp_path / "run.yaml").exists()
    assert f"Copy {tmp_path / 'run.yaml'} to /nowhere here/run.yaml on every machine." in told[0]


def test_a_file_that_was_named_is_not_overwritten(open_window, app, wait_for, tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(app, "show_message", lambda text, kind="info": told.append(text))
    (tmp_path / "mine.yaml").write_text("epochs: 3\n")
    window = open_window()
    change(window, app, wait_for, "config_path", str(tmp_path / "mine.yaml"))
    window.commands.copy()
    wait_for(app, lambda: told)
    assert (tmp_path / "mine.yaml").read_text() == "epochs: 3\n"
    assert "stays as it is" in told[0]


def test_machine_0_answers_until_all_others_have_asked(open_window, app, wait_for, port):
    window = open_window()
    window.check.button.invoke()
    wait_for(app, lambda: "Waiting for the others (0 of 1" in window.check.note.cget("text"))
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        assert json.loads(connection.makefile().read())["mark"]
    wait_for(app, lambda: not window.check.is_checking)
    assert "✓ All others have asked: 127.0.0.1" in window.check.note.cget("text")
    socket.create_server(("", port)).close()  # the training can have it


def test_the_others_compare_themselves_with_machine_0(open_window, app, wait_for, port):
    window = open_window(node_rank=1)
    window.check.toggle()
    wait_for(app, lambda: "Waiting for machine 0 at 127.0.0.1" in window.check.note.cget("text"))
    own = describe_node(app.settings.config())
    answerer = NodeAnswerer({**own, "torch": "1.0"}, port)
    answerer.start()
    wait_for(app, lambda: not window.check.is_checking)
    answerer.close()
    text = window.check.note.cget("text")
    assert "✓ Settings: the same" in text
    assert "✕ torch:" in text


def test_a_busy_port_is_told_with_a_free_one(open_window, app, wait_for, port):
    window = open_window()
    with socket.create_server(("", port)):
        window.check.toggle()
        wait_for(app, lambda: not window.check.is_checking)
    assert f"✕ initial_port {port} is busy" in window.check.note.cget("text")
    assert "is free" in window.check.note.cget("text")


def test_a_check_that_waits_can_be_stopped_and_ends_with_the_window(open_window, app, wait_for, port):
    window = open_window()
    for end in (window.check.toggle, window.destroy):
        window.check.toggle()
        wait_for(app, lambda: "Waiting" in window.check.note.cget("text"))
        end()
        socket.create_server(("", port)).close()
    app.update()


def test_it_opens_from_the_training_tab_and_the_multi_gpu_tab(open_window, app, wait_for):
    tab = app.open_tab("multi-GPU")
    wait_for(app, lambda: tab.is_built)
    tab.open_nodes()
    first = tab._nodes
    tab.open_nodes()
    assert tab._nodes is first
    app.open_tab("training")._configure_nodes()
    app.update()
    windows = [child for child in app.winfo_children() if isinstance(child, MultiNodeWindow)]
    assert len(windows) == 2
