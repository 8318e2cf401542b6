import errno
import json
import os
import re
import subprocess
import sys
import zlib
from dataclasses import fields
from pathlib import Path

import pytest

from modules.config.errors import UserError
from modules.config.files import load_config
from modules.config.TrainConfig import TrainConfig
from modules.launch.command_text import Places
from modules.session.event_types import EVENT_TYPES, NOT_WRITTEN
from modules.session.EventCallbacks import EventCallbacks
from modules.session.events import EventWriter
from modules.session.following import is_complete
from modules.session.manifest import write_manifest
from modules.session.ModelRecord import ModelRecord
from modules.session.RunFolder import RunFolder
from modules.session.RunLock import RunLock, is_held
from modules.session.StepInfo import StepInfo
from modules.session.TrainCommands import COMMANDS

posix = pytest.mark.skipif(
    os.name == "nt", reason="Windows keeps the folder that a process works in, and takes halves of characters"
)
DOC = Path(__file__).parents[2] / "docs" / "run_folder.md"


@pytest.fixture
def run_folder(tmp_path):
    folder = RunFolder(tmp_path / "workspace" / "run")
    folder.create()
    return folder


def test_create_makes_every_folder_and_may_be_called_again(run_folder):
    run_folder.create()
    folders = ["backup", "commands", "events", "log", "models", "samples", "tensorboard"]
    assert sorted(os.listdir(run_folder.path)) == folders
    assert run_folder.event_path(3) == run_folder.path / "events" / "rank-3.jsonl"
    assert run_folder.log_path(3) == run_folder.path / "log" / "rank-3.log"
    assert run_folder.stacks_path(3) == run_folder.path / "log" / "rank-3.stacks"


def test_making_the_object_touches_no_disk(tmp_path):
    RunFolder(tmp_path / "run")
    assert os.listdir(tmp_path) == []


def test_the_path_survives_a_change_of_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = RunFolder("run")
    monkeypatch.chdir("/")
    assert folder.path == tmp_path / "run"


def test_what_file_managers_put_into_folders_is_no_run(run_folder):
    for name in (".DS_Store", "._model", "desktop.ini", "Thumbs.db"):
        (run_folder.models_dir / name).touch()
        (run_folder.backup_dir / name).touch()
    run_folder.refuse_earlier_run()
    (run_folder.models_dir / "model.safetensors").touch()
    with pytest.raises(UserError, match="holds a run already"):
        run_folder.refuse_earlier_run()


def test_on_windows_a_folder_must_not_be_named_as_a_device_or_a_stream(tmp_path, monkeypatch):
    RunFolder(tmp_path / "con")
    monkeypatch.setattr("modules.session.writable._ON_WINDOWS", True)
    with pytest.raises(UserError, match="Windows has no folders named 'con'; choose another name"):
        RunFolder(tmp_path / "con")


def test_create_sweeps_what_a_killed_run_left_but_not_in_foreign_folders(run_folder):
    (run_folder.path / "photos").mkdir()
    foreign = run_folder.path / "photos" / "a.tmp--0123abcd"
    stale = [
        run_folder.path / "exit.json.tmp--0123abcd",
        run_folder.backup_dir / "step-5.tmp--0123abcd",
        run_folder.samples_dir / "1.png.tmp--0123abcd",
    ]
    for path in [*stale, foreign]:
        path.touch()
    run_folder.create()
    assert not any(path.exists() for path in stale)
    assert foreign.exists()


@pytest.mark.parametrize("place", ["", "run", "run/backup"])
def test_a_file_in_the_way_is_explained_with_the_settings_name(tmp_path, place):
    blocker = tmp_path / "w" / place if place else tmp_path / "w"
    blocker.parent.mkdir(parents=True, exist_ok=True)
    blocker.write_text("")
    with pytest.raises(UserError, match="workspace_dir") as caught:
        RunFolder(tmp_path / "w" / "run").create()
    assert f"{blocker} is a file where a folder is needed" in str(caught.value)


def test_a_folder_without_permission_is_explained(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    with pytest.raises(UserError, match=r"workspace_dir .*no permission to write.*choose another folder"):
        RunFolder(tmp_path / "run").create()


@pytest.mark.parametrize("path", ["", "  "])
def test_an_empty_path_is_refused(path):
    with pytest.raises(UserError, match="workspace_dir is empty"):
        RunFolder(path)


@pytest.mark.parametrize("name", ["a\0b", pytest.param("a\ud800b", marks=posix)])
def test_an_impossible_path_is_explained(tmp_path, name):
    with pytest.raises(UserError, match=r"workspace_dir .*a\\.*b.* no path can have: choose another folder"):
        RunFolder(str(tmp_path / name))


@posix
def test_a_working_folder_that_is_gone_is_said_where_a_path_starts_from_it(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    for start in (lambda: RunFolder("workspace/run"), lambda: Places("run.yaml")):
        with pytest.raises(UserError, match=r"folder in which Chorus was started no longer exists: .*another one"):
            start()
    assert RunFolder(tmp_path / "run").path == tmp_path / "run"


def test_the_frozen_config_is_the_config(run_folder):
    config = TrainConfig(seed=7)
    run_folder.freeze_config(config)
    assert load_config(run_folder.config_path) == config


def test_free_space_is_known_before_the_folder_exists(tmp_path):
    assert RunFolder(tmp_path / "a" / "b").free_bytes() > 0


def test_the_exit_record_comes_back(run_folder):
    run_folder.write_exit("failed", rank=1, text="out of memory", loss=float("nan"), log=run_folder.log_path(1))
    record = run_folder.read_exit()
    assert record.pop("time") > 0
    assert record == {
        "status": "failed",
        "rank": 1,
        "text": "out of memory",
        "loss": None,
        "log": str(run_folder.log_path(1)),
    }


def test_a_running_run_has_no_exit_record(run_folder, tmp_path):
    assert run_folder.read_exit() is None
    assert RunFolder(tmp_path / "none").read_exit() is None


@pytest.mark.parametrize("text", ["", "{", "[]", "\xff"])
def test_a_damaged_exit_record_is_none(run_folder, text):
    run_folder.exit_path.write_bytes(text.encode("latin-1"))
    assert run_folder.read_exit() is None


def test_a_new_run_forgets_how_the_last_one_ended(run_folder):
    run_folder.write_exit("finished")
    run_folder.clear_exit()
    run_folder.clear_exit()
    assert run_folder.read_exit() is None


def test_a_run_holds_its_folder_and_forgets_how_the_last_one_ended(run_folder):
    run_folder.write_exit("finished")
    with run_folder.held():
        assert run_folder.read_exit() is None
        assert is_held(run_folder.lock_path)
        with pytest.raises(UserError, match="in use by another run"), run_folder.held():
            pass
    assert not is_held(run_folder.lock_path)


def test_who_is_refused_a_folder_in_use_leaves_what_its_run_is_writing(run_folder):
    of_another_machine = run_folder.backup_dir / "step-5.tmp-99999999-0123abcd"
    of_another_machine.mkdir()
    with run_folder.held():
        run_folder.create()
        assert of_another_machine.exists()
    run_folder.create()
    assert not of_another_machine.exists()


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(errno.ENOSPC, "full"), "its disk is full; free some space there, or choose another folder."),
        (PermissionError(errno.EACCES, "denied"), "there is no permission to write in it; choose another folder."),
        (OSError(errno.EROFS, "Read-only file system"), "Read-only file system; choose another folder."),
    ],
    ids=["full", "of another user", "read-only"],
)
def test_a_folder_that_can_not_be_held_is_refused_in_one_sentence(error, told, run_folder, monkeypatch):
    def refuse(*arguments):
        raise error

    monkeypatch.setattr(RunLock, "__enter__", refuse)
    with pytest.raises(UserError) as caught, run_folder.held():
        pass
    assert str(caught.value) == f"workspace_dir {str(run_folder.path)!r} can't be used: {told}"


def test_an_error_of_the_run_itself_is_not_taken_for_one_of_its_folder(run_folder):
    with pytest.raises(OSError, match="of the run"), run_folder.held():
        raise OSError("of the run")


@pytest.fixture
def fill_disk(monkeypatch):
    """A function that fills the disk, so that only existing files can be overwritten."""

    def refuse(path, obj):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    return lambda: monkeypatch.setattr("modules.session.RunFolder.write_json", refuse)


def test_the_exit_record_has_its_place_on_a_disk_that_is_full(run_folder, fill_disk):
    run_folder.clear_exit()
    fill_disk()
    run_folder.write_exit("failed", rank=1, text="no space")
    assert run_folder.read_exit()["text"] == "no space"
    assert run_folder.exit_path.stat().st_size < 200
    assert not run_folder.reserve_path.exists()


def test_the_place_that_is_kept_is_really_taken(run_folder):
    run_folder.clear_exit()
    content = run_folder.reserve_path.read_bytes()
    assert len(content) >= 8192
    assert len(zlib.compress(content)) >= len(content)  # on a compressing disk it would reserve less


def test_a_run_that_has_ended_keeps_no_place(run_folder):
    run_folder.clear_exit()
    run_folder.write_exit("finished")
    assert not run_folder.reserve_path.exists()


def test_without_a_place_a_full_disk_is_told(run_folder, fill_disk):
    fill_disk()
    with pytest.raises(OSError, match="No space left"):
        run_folder.write_exit("finished")


def test_what_a_rank_has_noted_for_the_end_is_in_the_record_whoever_writes_it(run_folder, fill_disk):
    run_folder.clear_exit()
    kept = run_folder.reserve_path.stat().st_size
    fill_disk()
    run_folder.note_end("The model is elsewhere.", elsewhere=[run_folder.path / "x"])
    assert run_folder.read_exit() is None
    assert 16_000 < run_folder.reserve_path.stat().st_size < kept - 32_000  # the rest is for the events that report it
    RunFolder(run_folder.path).write_exit("stopped", rank=0, text="Stopped.")
    record = run_folder.read_exit()
    assert (record["status"], record["text"]) == ("stopped", "Stopped. The model is elsewhere.")
    assert record["elsewhere"] == [str(run_folder.path / "x")]


def test_a_note_alone_is_the_text_and_is_kept_without_a_place_too(run_folder):
    run_folder.note_end("The model is elsewhere.")
    run_folder.write_exit("finished", rank=0)
    assert run_folder.read_exit()["text"] == "The model is elsewhere."


def test_a_note_that_was_torn_or_is_of_an_earlier_run_does_not_matter(run_folder):
    run_folder.clear_exit()
    run_folder.note_end("earlier")
    run_folder.clear_exit()
    run_folder.write_exit("finished")
    assert "text" not in run_folder.read_exit()
    run_folder.reserve_path.write_bytes(b'{"text": "to')
    run_folder.write_exit("finished")
    assert "text" not in run_folder.read_exit()


@pytest.mark.parametrize(
    ("kind", "is_done"), [("finished", True), ("stopped", False), ("intermediate", False), (None, True)]
)
def test_only_a_run_that_has_saved_its_finished_model_is_complete(run_folder, kind, is_done):
    """kind: of the model of the last step; None: in a run of a version that recorded none."""
    model = run_folder.models_dir / "cat.safetensors"
    model.touch()
    saved = {"type": "saved", "path": str(model), "step": 8}
    events = ({"time": 1.0, "rank": 0, **event} for event in (saved, {"type": "finished", "step": 8}))
    run_folder.event_path(0).write_text("".join(json.dumps(event) + "\n" for event in events))
    if kind is not None:
        record = ModelRecord(run_folder.model_record_path, run_folder.models_dir)
        record.claim("cat", 8, kind)
        record.complete("cat")
    assert is_complete(run_folder, 8) is is_done
    assert not is_complete(run_folder, 9)


@pytest.mark.parametrize("text", ["", "[]", '{"models": []}', '{"models": {"cat": {"step": "8"}}}', "\0\0"])
def test_a_damaged_record_of_the_models_means_that_none_is_the_runs_own(run_folder, text):
    (run_folder.models_dir / "cat.safetensors").touch()
    run_folder.model_record_path.write_text(text)
    record = ModelRecord(run_folder.model_record_path, run_folder.models_dir)
    assert record.owned_step("cat") is None
    assert record.last_files() == set()
    record.claim("cat", 9, "finished")
    assert record.owned_step("cat") == 9


def test_the_session_room_never_imports_torch_or_tk():
    modules = [f"modules.session.{path.stem}" for path in (DOC.parents[1] / "modules" / "session").glob("[!_]*.py")]
    assert len(modules) >= 10
    heavy = "{'torch', 'diffusers', 'transformers', 'tkinter'}"
    code = f"import sys, {', '.join(modules)}; print(*sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def examples(kind: str = "") -> list[dict]:
    """The JSON examples of kind `kind` on the page."""
    return [json.loads(text) for text in re.findall(rf"```json{kind}\n(.*?)\n```", DOC.read_text("utf-8"))]


def test_the_page_has_an_example_of_every_event_with_the_fields_that_are_written(tmp_path):
    info = StepInfo(1, 2, 10, 0.5, 0.25, 1e-4, 8, 2.0, 0.1, {}, 0.1, "cuda:0", 1, 2)
    with EventWriter(tmp_path / "e.jsonl", 0) as writer:
        callbacks = EventCallbacks(writer)
        callbacks.on_started(1.5)
        callbacks.on_status("a")
        callbacks.on_waiting("a")
        callbacks.on_progress("a", 1, 2)
        callbacks.on_step(info)
        callbacks.on_validation(1, 2, 0.5, 0.25)
        callbacks.on_sample("a", "b", 1)
        callbacks.on_samples("a", 1)
        callbacks.on_backup("a", 1)
        callbacks.on_saved("a", 1)
        callbacks.on_warning("a")
        callbacks.on_failed("a")
        callbacks.on_finished(1)
    lines = map(json.loads, (tmp_path / "e.jsonl").read_text(encoding="utf-8").splitlines())
    written = {event["type"]: event for event in lines}
    shown = {event["type"]: event for event in examples()}
    assert set(shown) == set(EVENT_TYPES)
    for name, event in shown.items():
        assert list(event) == list(written[name])
        for field, value in event.items():
            assert type(value) is type(written[name][field]), (name, field)


def test_the_page_explains_every_field():
    page = DOC.read_text("utf-8")
    for event in examples():
        for field in event:
            assert f"`{field}`" in page


def test_the_page_explains_every_field_of_a_step_that_is_written():
    in_table = set(re.findall(r"^\| `(\w+)` \|", DOC.read_text("utf-8").split("### step")[1].split("###")[0], re.M))
    assert in_table == {field.name for field in fields(StepInfo) if field.metadata != NOT_WRITTEN}


def test_the_examples_of_the_exit_record_can_be_written(run_folder):
    for example in examples(" exit"):
        run_folder.write_exit(**{key: value for key, value in example.items() if key != "time"})
        assert list(run_folder.read_exit()) == list(example)


def test_the_example_of_the_manifest_is_what_is_written(tmp_path):
    (tmp_path / "state.json").write_text("{}")
    write_manifest(tmp_path)
    assert examples(" manifest") == [json.loads((tmp_path / "manifest.json").read_text())]


def test_the_example_of_the_models_is_what_is_written(run_folder):
    (example,) = examples(" models")
    ((name, entry),) = example["models"].items()
    record = ModelRecord(run_folder.model_record_path, run_folder.models_dir)
    record.claim(name, entry["step"], entry["kind"])
    for file, facts in entry["files"].items():
        (run_folder.models_dir / file).write_bytes(bytes(facts["size"]))
        os.utime(run_folder.models_dir / file, (facts["time"], facts["time"]))
    record.complete(name)
    assert json.loads(run_folder.model_record_path.read_bytes()) == example


def test_the_page_lists_the_commands_and_the_parts_of_the_folder(run_folder):
    page = DOC.read_text("utf-8")
    assert re.findall(r"^\| `(\w+)` \|", page.split("## Commands")[1], re.M) == list(COMMANDS)
    listed = re.findall(r"^\| `([\w./-]+)` \|", page.split("## Events")[0], re.M)
    names = {name.split("/")[0] for name in listed}
    assert names == set(os.listdir(run_folder.path)) | {
        "config.yaml", "exit.json", "exit.reserve", "loggers.json", "marks.json", "metrics.csv", "models.json",
        "run.lock", "samples_left.json", "wandb",
    }  # fmt: skip
