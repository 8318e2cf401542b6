import json

import pytest

from modules.config.errors import UserError
from modules.session.backups import damage, go_back_to, list_backups, newest_usable
from modules.session.manifest import write_manifest
from modules.session.RunFolder import RunFolder
from tests.support.backup_files import state_of, write_backup


@pytest.fixture
def folder(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.create()
    for step in (5, 10, 20):
        write_backup(folder.backup_dir, step)
    return folder


def steps(folder):
    return [(info.step, info.is_aside) for info in list_backups(folder)]


# --- listing ----------------------------------------------------------------------------------------------------------


def test_the_latest_comes_first_and_strangers_are_passed_over(folder):
    (folder.backup_dir / "step-7.tmp-1-00000000").mkdir()
    (folder.backup_dir / "notes.txt").touch()
    (folder.backup_dir / "step-8").touch()
    assert steps(folder) == [(20, False), (10, False), (5, False)]
    assert list_backups(folder)[0].num_bytes > 20


def test_a_folder_without_backups_has_none(tmp_path):
    assert list_backups(RunFolder(tmp_path / "none")) == []


# --- checking ---------------------------------------------------------------------------------------------------------


def test_a_changed_byte_is_damage_that_only_a_full_look_finds(folder):
    newest = list_backups(folder)[0].path
    assert damage(newest) is None
    (newest / "model.safetensors").write_bytes(b"x" * 20)
    assert "model.safetensors" in damage(newest)
    assert damage(newest, contents=False) is None


def test_files_that_the_manifest_does_not_name_are_no_damage(folder):
    newest = list_backups(folder)[0].path
    for name in ("notes.safetensors", "._model.safetensors", ".DS_Store"):
        (newest / name).write_bytes(b"\0\5\26\7")
    assert damage(newest) is None


def test_a_manifest_that_lists_nothing_is_damage(folder):
    newest = list_backups(folder)[0].path
    (newest / "manifest.json").write_text('{"files": {}}')
    assert damage(newest) == "manifest.json does not list state.json"


@pytest.mark.parametrize("name", ["state.json", "model.safetensors", "optimizer.safetensors"])
def test_a_backup_that_was_written_without_an_essential_file_is_damaged(folder, name):
    assert damage(write_backup(folder.backup_dir, 30, without=(name,))) == f"manifest.json does not list {name}"


def test_the_average_is_essential_where_the_state_says_that_there_is_one(folder):
    path = write_backup(folder.backup_dir, 30, state_of(30, ema=True))
    assert damage(path) == "manifest.json does not list ema.safetensors"
    (path / "ema.safetensors").touch()
    write_manifest(path)
    assert damage(path) is None


def test_a_state_from_before_it_told_of_an_average_is_good(folder):
    state = state_of(30)
    del state["ema"]
    assert damage(write_backup(folder.backup_dir, 30, state)) is None


SENSELESS = {
    "not a table": [],
    "a negative step": state_of(-5),
    "a step that is not that of the folder": state_of(7),
    "a step that is text": {**state_of(30), "step": "30"},
    "a step that is a truth value": {**state_of(30), "step": True},
    "a step of a fraction": {**state_of(30), "step": 30.0},
    "no epoch": {name: value for name, value in state_of(30).items() if name != "epoch"},
    "a negative epoch": state_of(30, epoch=-1),
    "a step in the epoch of NaN": state_of(30, step_in_epoch=float("nan")),
    "a loss of NaN": state_of(30, smooth_loss=float("nan")),
    "an infinite loss": state_of(30, smooth_loss=float("inf")),
    "a factor of zero": state_of(30, learning_rate_factor=0.0),
    "no optimizer": state_of(30, optimizer=None),
    "an optimizer without groups": state_of(30, optimizer={"kind": "AdamW", "state": {}}),
    "NaN for the optimizer": state_of(30, optimizer={"kind": "A", "groups": [{"d": float("nan")}], "state": {}}),
    "no batch": state_of(30, run={"samples": "digest"}),
    "a batch of nothing": state_of(30, run={"global_batch": 0, "samples": "digest"}),
}


@pytest.mark.parametrize("state", SENSELESS.values(), ids=SENSELESS)
def test_a_state_that_makes_no_sense_is_damage(folder, state):
    problem = damage(write_backup(folder.backup_dir, 30, state))
    assert problem.startswith("state.json ")
    assert "\n" not in problem


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b"[" * 100_000])
def test_a_state_that_is_no_json_is_damage_and_no_crash(folder, text):
    path = write_backup(folder.backup_dir, 30)
    (path / "state.json").write_bytes(text)
    write_manifest(path)
    assert damage(path).startswith("state.json can't be read")


def test_the_newest_usable_backup_is_behind_the_damaged_and_those_put_aside(folder):
    assert newest_usable(folder).step == 20
    write_backup(folder.backup_dir, 30, without=("model.safetensors",))
    assert newest_usable(folder).step == 20
    go_back_to(folder, 10)
    assert newest_usable(folder).step == 10
    for info in list_backups(folder):
        (info.path / "manifest.json").unlink()
    assert newest_usable(folder) is None


# --- going back -------------------------------------------------------------------------------------------------------


def test_going_back_puts_the_later_ones_aside(folder):
    go_back_to(folder, 10)
    assert steps(folder) == [(20, True), (10, False), (5, False)]
    assert damage(list_backups(folder)[0].path) is None


def test_what_was_put_aside_can_be_chosen_again(folder):
    go_back_to(folder, 5)
    go_back_to(folder, 10)
    assert steps(folder) == [(20, True), (10, False), (5, False)]


def test_the_backup_that_a_run_has_made_since_is_the_one_that_is_chosen(folder):
    go_back_to(folder, 10)
    write_backup(folder.backup_dir, 20)
    go_back_to(folder, 20)
    assert steps(folder) == [(20, False), (20, True), (10, False), (5, False)]
    go_back_to(folder, 5)
    assert steps(folder) == [(20, True), (10, True), (5, False)]


@pytest.mark.parametrize("name", ["model.safetensors", "state.json"])
def test_a_damaged_one_is_refused_and_nothing_moves(folder, name):
    (folder.backup_dir / "step-000000010" / name).write_text(json.dumps(state_of(11)))
    with pytest.raises(UserError, match="step 10 is damaged"):
        go_back_to(folder, 10)
    assert steps(folder) == [(20, False), (10, False), (5, False)]


def test_one_that_is_gone_is_refused(folder):
    with pytest.raises(UserError, match="no backup of step 7"):
        go_back_to(folder, 7)
