"""The window for several machines."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading
from dataclasses import replace

import pytest

from modules.config.errors import UserError
from modules.launch.node_check import check_nodes
from modules.ui.widgets import dialogs
from modules.ui.windows.MultiNodeWindow import MultiNodeWindow
from tests.support.fake_nvml import eight_gpus, put_gpus
from tests.support.ports import free_port
from tests.support.waiting import PATIENCE_SECONDS


@pytest.fixture
def app(shared_app):
    return shared_app


@pytest.fixture
def port():
    return free_port()


@pytest.fixture(autouse=True)
def gpus(monkeypatch):
    """Eight GPUs, installed before the window opens and queries them."""
    put_gpus(monkeypatch, eight_gpus())


@pytest.fixture
def open_window(app, wait_for, port):
    def make(**settings):
        defaults = {
            **{"enable_multi_gpu": True, "distributed_backend": "auto", "use_torchrun": True, "num_nodes": 2},
            **{"world_size": 4, "device_indexes": [0, 1, 2, 3], "master_addr": "127.0.0.1", "initial_port": str(port)},
        }
        for path, value in {**defaults, **settings}.items():
            assert app.settings.set(path, value) is None
        window = MultiNodeWindow(app)
        wait_for(app, lambda: app.devices.machine is not None and window.winfo_viewable())
        return window

    return make


def shown(window):
    return window.commands.box.get("1.0", "end-1c")


def change(window, app, wait_for, name, value):
    """Enter a text as if typed."""
    entry = window.entries[name]
    entry.delete(0, "end")
    entry.insert(0, value)
    window.show()


def test_the_command_of_each_machine_is_copied_alone_and_the_window_itself_says_so(open_window, app, wait_for):
    window = open_window()
    card = window.commands
    assert [button.cget("text") for button in card.node_buttons] == ["Copy node 0", "Copy node 1"]
    assert card.node_buttons[0].winfo_rooty() < card.box.winfo_rooty()  # in sight also in a low window
    card.node_buttons[1].invoke()
    wait_for(app, lambda: card._note.cget("text").startswith("Copied the command of node 1."))
    window.show()  # as after any look at the machine
    assert card._note.cget("text").startswith("Copied the command of node 1.")
    copied = app.clipboard_get()
    assert "--node-rank=1" in copied
    assert "--node-rank=0" not in copied
    app.settings.set("num_nodes", 3)
    assert len(card.node_buttons) == 3
    app.settings.set("num_nodes", 1)
    assert card.node_buttons == []


def test_each_machine_has_its_command(open_window, app, port):
    text = shown(open_window())
    assert text.count("torch.distributed.run") == 2
    assert "# node 0 (127.0.0.1)\n" in text
    assert text.count("scripts/multi_node.py --check") == 2
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
    assert app.launch.places.interface == "eth0"  # also in the tab's command


def test_the_settings_file_follows_the_run_folder_until_it_is_named(open_window, app, wait_for, tmp_path):
    window = open_window()
    app.settings.set("workspace_dir", str(tmp_path / "other"))
    wait_for(app, lambda: window.entries["config_path"].get() == f"{tmp_path / 'other'}.yaml")
    change(window, app, wait_for, "config_path", "/shared/run.yaml")
    app.settings.set("workspace_dir", str(tmp_path / "third"))
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
    done = subprocess.run(
        ["bash", "-eu"], input=app.clipboard_get(), capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
    assert done.returncode == 0, done.stderr
    ranks = [line for line in done.stdout.splitlines() if "node-rank" in line]
    assert ranks == ["--node-rank=0", "--node-rank=0", "--node-rank=1", "--node-rank=1"]  # for each check and its run
    assert done.stdout.splitlines().count("--master-addr=`touch X`") == 4
    assert not list(tmp_path.rglob("X"))


def test_settings_for_a_folder_of_other_machines_are_written_here(open_window, app, wait_for, tmp_path):
    window = open_window(workspace_dir=str(tmp_path / "run"))
    change(window, app, wait_for, "config_path", "/nowhere here/run.yaml")
    window.commands.copy()
    wait_for(app, lambda: "/nowhere here/" in window.commands._note.cget("text"))
    assert (tmp_path / "run.yaml").exists()
    settings, token = tmp_path / "run.yaml", tmp_path / "run.yaml.token"
    assert (
        f"Copy {settings} to /nowhere here/run.yaml on every machine, and {token} to /nowhere here/"
        in window.commands._note.cget("text")
    )


def test_a_file_that_was_named_is_not_overwritten(open_window, app, wait_for, tmp_path):
    (tmp_path / "mine.yaml").write_text("epochs: 3\n")
    window = open_window()
    change(window, app, wait_for, "config_path", str(tmp_path / "mine.yaml"))
    window.commands.copy()
    wait_for(app, lambda: "stays as it is" in window.commands._note.cget("text"))
    assert (tmp_path / "mine.yaml").read_text() == "epochs: 3\n"


class OtherNode(threading.Thread):
    """The check on another machine with the same settings."""

    def __init__(self, config, **changes):
        super().__init__(daemon=True)
        self.told, self.refusal = [], ""
        self._config = replace(config, **changes)
        self.start()

    def run(self):
        try:
            self.told += check_nodes(self._config, self.told.append)
        except UserError as error:
            self.refusal = str(error)


def test_node_0_waits_until_all_others_have_come(open_window, app, wait_for, port):
    window = open_window()
    window.check.button.invoke()
    wait_for(app, lambda: "Waiting for node 1 (" in window.check.note.cget("text"))
    other = OtherNode(app.settings.config(), node_rank=1)
    wait_for(app, lambda: not window.check.is_checking)
    other.join(20)
    text = window.check.note.cget("text")
    assert "✓ Node 1: 127.0.0.1" in text
    assert "✓ 2 nodes, alike: settings, Chorus, Python " in text
    socket.create_server(("", port)).close()  # the port is free for the training


def test_the_others_compare_themselves_with_node_0(open_window, app, wait_for):
    window = open_window(node_rank=1)
    window.check.toggle()
    wait_for(app, lambda: "Waiting for node 0 (" in window.check.note.cget("text"))
    other = OtherNode(app.settings.config(), node_rank=0, seed=7)
    wait_for(app, lambda: not window.check.is_checking)
    other.join(20)
    assert window.check.note.cget("text") == f"✕ {other.refusal}"
    assert "has other settings (seed)" in other.refusal


def test_a_busy_port_is_told_with_a_free_one(open_window, app, wait_for, port):
    window = open_window()
    with socket.create_server(("", port)):
        window.check.toggle()
        wait_for(app, lambda: not window.check.is_checking)
    assert f"✕ initial_port {port} is busy here" in window.check.note.cget("text")
    assert "such as" in window.check.note.cget("text")


def test_one_machine_alone_has_nothing_to_check(open_window):
    window = open_window(num_nodes=1)
    window.check.button.invoke()
    assert not window.check.is_checking
    assert window.check.note.cget("text") == "Raise the number of machines first."


def test_a_check_that_waits_can_be_stopped_and_ends_with_the_window(open_window, app, wait_for, port):
    window = open_window()
    for end in (window.check.toggle, window.hide, window.destroy):
        window.check.toggle()
        wait_for(app, lambda: "Waiting" in window.check.note.cget("text"))
        end()
        wait_for(app, lambda: is_free(port))
    app.update()


def test_a_closed_window_is_hidden_and_shows_the_settings_of_the_day_when_it_is_opened_again(app, wait_for):
    app.settings.set("enable_multi_gpu", True)
    window = dialogs.open_window(app, MultiNodeWindow)
    wait_for(app, lambda: app.devices.machine is not None and window.winfo_viewable())
    window.hide()
    wait_for(app, lambda: not window.winfo_viewable())
    app.settings.set("num_nodes", "3")
    assert "# node 2" not in shown(window)  # not updated while hidden
    assert dialogs.open_window(app, MultiNodeWindow) is window
    assert "# node 2" in shown(window)


def is_free(port):
    try:
        socket.create_server(("", port)).close()
    except OSError:
        return False
    return True


def test_it_opens_from_the_training_tab_and_the_multi_gpu_tab_once(open_window, app, wait_for):
    tab = app.open_tab("multi-GPU")
    wait_for(app, lambda: tab.is_built)
    tab.open_nodes()
    tab.open_nodes()
    app.open_tab("training")._configure_nodes()
    app.update()
    windows = [child for child in app.winfo_children() if isinstance(child, MultiNodeWindow)]
    assert len(windows) == 1
