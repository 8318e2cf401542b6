import pytest

from modules.config.describe import walk_settings
from modules.config.files import config_from_values, save_config
from modules.session.backups import stopped_at_once
from modules.session.crash_report import crash_report, suggestion
from modules.session.out_of_memory import ADVICE
from modules.session.RunFolder import RunFolder
from tests.support.backup_files import write_backup

KINDS = ("killed", "hung", "ended", "lost", "error")


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path / "run")


@pytest.mark.parametrize("record", [*({"kind": kind} for kind in KINDS), {"text": "CUDA out of memory"}])
def test_what_to_do_names_the_backup_that_a_resume_goes_on_from(folder, record):
    write_backup(folder.backup_dir, 40)
    write_backup(folder.backup_dir, 60, without=("optimizer.safetensors",))  # unusable
    assert "esume from the backup of step 40" in suggestion(record, folder)


@pytest.mark.parametrize("record", [*({"kind": kind} for kind in KINDS), {"text": "CUDA out of memory"}])
def test_what_to_do_names_no_backup_where_there_is_none(folder, record):
    assert "tart again; there is no backup to resume from" in suggestion(record, folder)


def test_a_mistake_in_the_settings_is_changed_before_the_run_starts_again(folder):
    assert suggestion({"kind": "user_error"}, folder) == "Fix what the message names and start again."


@pytest.mark.parametrize("text", ADVICE)
def test_advice_that_is_in_the_message_is_not_given_twice(folder, text):
    record = {"kind": "out_of_memory", "text": text}
    assert suggestion(record, folder).startswith("Do what the message says, then start again")


def test_the_report_says_what_to_do(folder):
    folder.create()
    write_backup(folder.backup_dir, 40)
    folder.write_exit("failed", rank=0, kind="killed", text="Rank 0 was killed")
    assert "then resume from the backup of step 40." in crash_report(folder.path)


def test_the_report_tells_the_settings_that_a_failure_depends_on_and_nothing_that_a_person_wrote(folder):
    folder.create()
    values = {"batch_size": 3, "model": {"base": "secret place"}, "sampling": {"samples": [{"prompt": "secret"}]}}
    save_config(config_from_values(values), folder.config_path)
    report = crash_report(folder.path)
    assert "batch_size: 3" in report
    assert "model.mixed_precision: no" in report
    assert "secret" not in report
    texts = [info.path for info in walk_settings() if info.in_crash_report and info.type in ("str", "list")]
    assert texts == []


def test_a_run_that_ends_at_once_says_which_backup_is_there(folder):
    assert stopped_at_once(folder) == "Stopped at once; there is no backup to resume from"
    write_backup(folder.backup_dir, 40)
    assert stopped_at_once(folder) == "Stopped at once; the last backup is of step 40"
