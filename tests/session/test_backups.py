import pytest

from modules.config.errors import UserError
from modules.session.backups import damage, go_back_to, list_backups
from modules.session.manifest import write_manifest
from modules.session.RunFolder import RunFolder


@pytest.fixture
def folder(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.create()
    for step in (5, 10, 20):
        add(folder, step)
    return folder


def add(folder, step):
    path = folder.backup_dir / f"step-{step:09d}"
    path.mkdir()
    (path / "model.safetensors").write_bytes(bytes(step))
    write_manifest(path)
    return path


def steps(folder):
    return [(info.step, info.is_aside) for info in list_backups(folder)]


def test_the_latest_comes_first_and_strangers_are_passed_over(folder):
    (folder.backup_dir / "step-7.tmp-1-00000000").mkdir()
    (folder.backup_dir / "notes.txt").touch()
    (folder.backup_dir / "step-8").touch()
    assert steps(folder) == [(20, False), (10, False), (5, False)]
    assert list_backups(folder)[0].num_bytes > 20


def test_a_folder_without_backups_has_none(tmp_path):
    assert list_backups(RunFolder(tmp_path / "none")) == []


def test_a_changed_byte_is_damage(folder):
    newest = list_backups(folder)[0]
    assert damage(newest) is None
    (newest.path / "model.safetensors").write_bytes(b"x" * 20)
    assert "model.safetensors" in damage(newest)


def test_going_back_puts_the_later_ones_aside(folder):
    go_back_to(folder, 10)
    assert steps(folder) == [(20, True), (10, False), (5, False)]


def test_what_was_put_aside_can_be_chosen_again(folder):
    go_back_to(folder, 5)
    go_back_to(folder, 10)
    assert steps(folder) == [(20, True), (10, False), (5, False)]


def test_the_backup_that_a_run_has_made_since_is_the_one_that_is_chosen(folder):
    go_back_to(folder, 10)
    add(folder, 20)
    go_back_to(folder, 20)
    assert steps(folder) == [(20, False), (20, True), (10, False), (5, False)]
    go_back_to(folder, 5)
    assert steps(folder) == [(20, True), (10, True), (5, False)]


def test_a_damaged_one_is_refused_and_nothing_moves(folder):
    (folder.backup_dir / "step-000000010" / "model.safetensors").unlink()
    with pytest.raises(UserError, match="step 10 is damaged"):
        go_back_to(folder, 10)
    assert steps(folder) == [(20, False), (10, False), (5, False)]


def test_one_that_is_gone_is_refused(folder):
    with pytest.raises(UserError, match="no backup of step 7"):
        go_back_to(folder, 7)
