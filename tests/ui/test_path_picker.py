"""The desktop's dialogs for paths."""

from __future__ import annotations

import os
import sys

import pytest

from modules.ui.models.path_picker import PathQuestion, pick, picker_command
from modules.ui.widgets.dialogs import ask_path

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere Tk's dialogs are the system's")


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """`programs(name, script)` puts a shell script on an otherwise empty PATH."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("XDG_CURRENT_DESKTOP", raising=False)

    def add(name: str, script: str = "") -> None:
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)

    return add


@linux_only
def test_the_program_is_that_of_the_desktop(programs, monkeypatch):
    question = PathQuestion("folder", "Images")
    assert picker_command(question) is None
    programs("kdialog")
    assert picker_command(question)[0] == "kdialog"
    programs("zenity")
    assert picker_command(question)[0] == "zenity"
    monkeypatch.setenv("XDG_CURRENT_DESKTOP", "KDE")
    assert picker_command(question)[0] == "kdialog"
    monkeypatch.setattr(sys, "platform", "win32")
    assert picker_command(question) is None


@linux_only
def test_it_begins_in_the_nearest_folder_that_exists(programs, tmp_path, monkeypatch):
    programs("zenity")
    (tmp_path / "images").mkdir()
    question = PathQuestion("folder", "Images", str(tmp_path / "images" / "gone" / "deeper"))
    assert f"--filename={tmp_path}/images/" in picker_command(question)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert f"--filename={tmp_path}/" in picker_command(PathQuestion("folder", "Images"))


@linux_only
def test_types_and_names_reach_both_programs(programs, tmp_path):
    question = PathQuestion("new_file", "Save", str(tmp_path), "a.yaml", [("Settings", "*.yaml *.json")])
    programs("kdialog")
    kdialog = ["kdialog", "--title", "Save", "--getsavefilename", f"{tmp_path}/a.yaml", "Settings (*.yaml *.json)"]
    assert picker_command(question) == kdialog
    programs("zenity")
    assert {"--save", f"--filename={tmp_path}/a.yaml", "--file-filter=Settings | *.yaml *.json"} <= set(
        picker_command(question)
    )


@pytest.mark.parametrize(("script", "answer"), [("echo '/a b'", "/a b"), ("exit 1", ""), ("exit 255", None)])
@linux_only
def test_the_answer_of_a_program(programs, script, answer):
    programs("zenity", script)
    assert pick(["zenity"]) == answer
    assert pick(["no such program"]) is None


@linux_only
def test_a_path_is_asked_with_the_desktops_dialog(app, programs, tmp_path):
    programs("zenity", f"echo {tmp_path}/new")
    assert ask_path(app, PathQuestion("new_file", "Save", name="a.yaml")) == f"{tmp_path}/new.yaml"
    assert not app.is_asking
    assert app.tk.call("tk", "busy", "status", app.root) == 0


def test_tks_dialog_is_asked_where_the_program_fails(app, programs, monkeypatch):
    programs("zenity", "exit 255")
    asked = {}
    monkeypatch.setattr("modules.ui.widgets.dialogs.filedialog.askdirectory", lambda **options: asked.update(options))
    assert ask_path(app, PathQuestion("folder", "Images", os.sep)) == ""
    assert (asked["title"], asked["initialdir"]) == ("Images", os.sep)
