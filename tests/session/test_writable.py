"""Folders that can't be written to are reported by their setting's name, without writing anything."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from modules.config.errors import UserError
from modules.session.RunFolder import RunFolder
from modules.session.writable import check_writable

posix = pytest.mark.skipif(os.name == "nt", reason="Windows has other limits and rights")


def refusal(folder: Path) -> str:
    with pytest.raises(UserError) as caught:
        check_writable("cache_dir", folder)
    text = str(caught.value)
    assert text.startswith(f"cache_dir {str(folder)!r} can't be used: ")
    assert text.endswith("; choose another folder.")
    return text.removeprefix(f"cache_dir {str(folder)!r} can't be used: ")


@pytest.mark.parametrize("path", ["", "new", "new/and/deep"])
def test_a_folder_that_is_there_or_can_be_made_is_fine_and_is_not_made(path, tmp_path):
    check_writable("cache_dir", tmp_path / path)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("path", ["file", "file/run", "file/deep/run"])
def test_a_file_in_the_way_is_named(path, tmp_path):
    (tmp_path / "file").touch()
    assert refusal(tmp_path / path).startswith(f"{tmp_path / 'file'} is a file where a folder is needed")


@posix
@pytest.mark.parametrize("path", ["x" * 300, "new/" + "x" * 300, "ü" * 200, "/".join(["x" * 200] * 40)])
def test_a_name_or_a_path_that_is_too_long_is_refused(path, tmp_path):
    assert refusal(tmp_path / path).startswith("File name too long")


@posix
def test_a_folder_without_permission_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != str(tmp_path))  # as root can write everywhere
    assert refusal(tmp_path / "run").startswith("there is no permission to write in it")


@posix
def test_a_folder_that_may_not_be_looked_into_is_refused(tmp_path, monkeypatch):
    look = os.stat

    def refuse(path, **options):
        if str(path).startswith(str(tmp_path / "locked")):
            raise PermissionError(13, "Permission denied", str(path))
        return look(path, **options)

    monkeypatch.setattr(os, "stat", refuse)
    assert refusal(tmp_path / "locked" / "run").startswith("there is no permission to write in it")


@pytest.mark.parametrize("folder", ["", " ", "a\0b"])
def test_what_can_be_no_path_is_refused(folder):
    with pytest.raises(UserError, match=r"^cache_dir "):
        check_writable("cache_dir", folder)


@pytest.mark.parametrize("place", ["run", "run/backup"])
def test_a_run_folder_tells_before_it_is_made_what_would_be_in_its_way(place, tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.check()
    assert os.listdir(tmp_path) == []
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).touch()
    for attempt in (folder.check, folder.create):
        with pytest.raises(UserError) as caught:
            attempt()
        assert str(caught.value) == (
            f"workspace_dir {str(tmp_path / 'run')!r} can't be used: {tmp_path / place} is a file where a folder is "
            "needed; choose another folder."
        )
