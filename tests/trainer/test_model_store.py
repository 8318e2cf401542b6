"""The names of saved models, and that a model replaces nothing but the run's own of the same step."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from modules.session.RunFolder import RunFolder
from modules.trainer.ModelStore import ModelStore

# what `save` writes beside a model's name: files of two formats and experts, a diffusers folder, a file of both kinds
KINDS = {
    "lora": (".safetensors", "_kohya.safetensors"),
    "experts": (".safetensors", "_transformer_2.safetensors", "_kohya.safetensors", "_kohya_transformer_2.safetensors"),
    "folder": ("/unet/weights.safetensors", "/model_index.json"),
    "both": ("/unet/weights.safetensors", ".safetensors"),
    "averages": (".safetensors", "_ema.safetensors", "_ema_kohya.safetensors"),
    "words": ("/cat.safetensors", "/dog.safetensors"),
}


class Run:
    """A run that saves models of the given kind, made of `text`."""

    def __init__(self, path: Path, kind: str, keep: int | None = None):
        self.folder = RunFolder(path)
        self.folder.create()
        self.endings = KINDS[kind]
        self.warnings: list[str] = []
        self.store = ModelStore(self.folder, lambda path, step: None, self.warnings.append, keep)

    def save(self, text: str):
        def write(name: str, folder: Path) -> list[Path]:
            paths = []
            for ending in self.endings:
                path = folder / (name + ending)
                if path.parent.name == name and len(path.relative_to(folder).parts) > 1 and "unet" in ending:
                    path.parent.mkdir(parents=True)  # as `new_folder`, refuses one that exists
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
                paths.append(path)
            return paths

        return write

    def during(self, text: str, step: int) -> None:
        self.store.write(self.save(text), "cat", step)

    def end(self, text: str, step: int, finished: bool) -> None:
        final = self.store.final_save(self.save(text), "cat", step, 0, finished)
        assert final.write(final.destination)[1] is None

    def has(self, name: str, text: str) -> bool:
        return all((self.folder.models_dir / (name + ending)).read_text() == text for ending in self.endings)

    def names(self) -> set[str]:
        files = (path for path in self.folder.models_dir.rglob("*") if path.is_file())
        return {path.relative_to(self.folder.models_dir).as_posix() for path in files}

    def expected(self, *names: str) -> set[str]:
        return {name + ending for name in names for ending in self.endings}


@pytest.fixture(params=KINDS)
def kind(request) -> str:
    return request.param


def test_the_finished_model_has_the_plain_name_and_every_other_its_step(kind, tmp_path):
    run = Run(tmp_path / "run", kind)
    run.during("at 4", 4)
    run.end("at 5", 5, finished=False)
    run.during("at 8", 8)
    run.end("at 9", 9, finished=True)
    assert run.names() == run.expected("cat-step000004", "cat-step000005", "cat-step000008", "cat")
    assert run.has("cat", "at 9")
    assert run.has("cat-step000005", "at 5")
    assert run.warnings == []


def test_a_model_that_the_run_saves_again_at_the_same_step_replaces_its_own(kind, tmp_path):
    for text in ("first", "again"):
        run = Run(tmp_path / "run", kind)  # as after a kill and a resume
        run.during(text, 4)
        run.end(text, 9, finished=True)
    assert run.names() == run.expected("cat-step000004", "cat")
    assert run.has("cat", "again")
    assert run.has("cat-step000004", "again")


def test_a_run_that_was_killed_while_it_saved_a_model_completes_it(kind, tmp_path):
    run = Run(tmp_path / "run", kind)

    def die(name: str, folder: Path) -> list[Path]:
        run.save("half")(name, folder)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.store.write(die, "cat", 4)
    resumed = Run(tmp_path / "run", kind)
    resumed.during("whole", 4)
    assert resumed.names() == resumed.expected("cat-step000004")
    assert resumed.has("cat-step000004", "whole")


def test_files_of_an_earlier_version_stay_and_the_number_is_said(kind, tmp_path):
    run = Run(tmp_path / "run", kind)
    for name in ("cat", "cat-step000004"):  # without a record
        run.save("of an earlier version")(name, run.folder.models_dir)
    run.during("new", 4)
    run.end("new", 9, finished=True)
    assert run.names() == run.expected("cat", "cat-2", "cat-step000004", "cat-step000004-2")
    assert run.has("cat", "of an earlier version")
    assert run.has("cat-2", "new")
    assert [text.rpartition(" ")[2] for text in run.warnings] == ["cat-step000004-2.", "cat-2."]


def test_a_model_of_the_run_that_somebody_has_changed_stays(kind, tmp_path):
    run = Run(tmp_path / "run", kind)
    run.end("trained", 9, finished=True)
    changed = run.folder.models_dir / ("cat" + run.endings[-1])
    changed.write_text("changed by hand")
    run.end("trained", 9, finished=True)
    assert changed.read_text() == "changed by hand"
    assert run.has("cat-2", "trained")


def test_a_folder_that_two_runs_share_through_a_link_keeps_the_models_of_both(tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "models").symlink_to(shared, target_is_directory=True)
        run = Run(tmp_path / name, "lora")
        run.end(name, 9, finished=True)
    assert run.names() == run.expected("cat", "cat-2")
    assert run.has("cat", "one")


def test_a_model_that_ended_a_run_is_not_among_those_that_make_room_for_later_ones(kind, tmp_path):
    run = Run(tmp_path / "run", kind, keep=1)
    run.during("at 2", 2)
    run.end("at 3", 3, finished=False)
    run.end("at 4", 4, finished=True)
    run.during("at 6", 6)
    run.during("at 8", 8)
    run.end("at 9", 9, finished=True)
    assert run.names() == run.expected("cat-step000003", "cat-step000004", "cat-step000008", "cat")
    assert run.has("cat-step000004", "at 4")


def test_a_model_that_can_not_be_written_again_leaves_the_one_before(tmp_path):
    run = Run(tmp_path / "run", "folder")
    run.during("whole", 4)

    def fail(name: str, folder: Path) -> list[Path]:
        (folder / name).mkdir()
        raise OSError(errno.ENOSPC, "No space left on device")

    run.store.write(fail, "cat", 4)
    assert run.has("cat-step000004", "whole")
    assert len(run.warnings) == 1
