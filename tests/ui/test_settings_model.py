"""The settings model, without a display."""

import json
import subprocess
import sys

import pytest

from modules.config.describe import walk_settings
from modules.config.errors import ConfigError
from modules.config.files import config_from_values, load_config, save_config, to_values
from modules.config.presets import load_preset
from modules.config.setting_values import put_value, value_in
from modules.config.TrainConfig import TrainConfig
from modules.session.RunFolder import RunFolder
from modules.ui.models.ProblemList import ProblemList
from modules.ui.models.SettingsModel import SettingsModel


@pytest.fixture
def model() -> SettingsModel:
    return SettingsModel()


def test_the_first_start_loads_the_demo(model):
    assert model.preset_name == "demo"
    assert model.get("optimizer.learning_rate") == load_preset("demo")["optimizer"]["learning_rate"]
    assert ProblemList(model).all() == []
    assert model.modified_paths() == []


def test_typed_text_becomes_a_value(model):
    assert model.set("optimizer.learning_rate", "1e-4") is None
    assert model.get("optimizer.learning_rate") == 1e-4
    assert model.set("device_indexes", "0, 2") is None
    assert model.get("device_indexes") == [0, 2]
    assert model.set("max_steps", "") is None
    assert model.get("max_steps") is None


@pytest.mark.parametrize(
    ("path", "text", "sentence"),
    [
        ("optimizer.learning_rate", "3e-x", "Learning rate: '3e-x' is not a number."),
        ("optimizer.beta1", "1.2", "Beta 1: must be at least 0 and below 1."),
        ("epochs", "2.5", "Epochs: '2.5' is not a whole number."),
        ("epochs", "", "Epochs: it must not be empty."),
        ("epochs", "nan", "Epochs: 'nan' is not a number."),
        ("optimizer.learning_rate", "1e999", "Learning rate: '1e999' is too large."),
        ("optimizer.learning_rate", "1,5", "Learning rate: '1,5' is not a number."),
        ("device_indexes", "0, -1", "GPUs: each entry must be at least 0."),
        ("device_indexes", "None", "GPUs: none is chosen: tick at least one, or leave the field empty for all."),
        (
            "data.resolution",
            "1024,1024",
            "Resolution: '1024,1024' is a width and a height: give one number, 1024, the side of a square of as many "
            "pixels.",
        ),
        ("data.resolution", "1024 x 768", "give one number, 887, the side"),
        ("initial_port", "99999", "a port number from 1 to 65535"),
    ],
)
def test_refused_text_is_kept_beside_the_value_and_blocks(model, path, text, sentence):
    before = model.get(path)
    assert sentence in model.set(path, text)
    assert model.get(path) == before
    assert model.typed[path] == model.shown(path) == text
    assert sentence in ProblemList(model).error(path)
    assert [problem.path for problem in ProblemList(model).all() if problem.blocking] == [path]
    assert model.config() is None
    assert model.set(path, before) is None
    assert ProblemList(model).error(path) is None
    assert model.config() is not None


def test_refused_text_of_a_field_that_does_not_matter_blocks_nothing(model):
    model.set("lora.rank", "many")
    assert model.config() is None
    model.set("method", "full")
    assert not model.is_visible("lora.rank")
    assert model.config() is not None
    model.set("method", "lora")
    assert model.typed == {"lora.rank": "many"}
    assert model.config() is None


def test_every_setting_survives_saving_and_loading_and_is_undone(model, tmp_path):
    model.add("embeddings", {"placeholder": "new-word"})
    for info in walk_settings():
        if info.type != "list" and info.path != "config_version":
            path = info.path.replace("[]", ".0")
            before = model.get(path)
            other = another_value(info, before)
            assert model.set(path, other) is None, path
            assert model.get(path) != before
            assert model.undo(), path
            assert model.get(path) == before
            model.set(path, other)
    model.save(tmp_path / "settings.yaml")
    assert load_config(tmp_path / "settings.yaml") == model.config()


def another_value(info, value):
    if info.type == "bool":
        return not value
    if info.type == "choice":
        return next(choice for choice in info.choices if choice != value)
    if info.type in ("list[int]", "list[float]"):
        return [*value, 12 if info.le == 12 else 64]
    if info.type == "list[str]":
        return [*value, "a, b.safetensors"]
    if info.type == "str":
        return "12399" if info.path == "initial_port" else f"{value}x"
    if info.type == "int":
        return 64 if value is None else value - 1 if info.le == value else value + 1
    low = info.ge if info.ge is not None else info.gt
    high = info.le if info.le is not None else info.lt
    if low is None:
        return (high or 0.0) - 1 / 3
    return low + ((high if high is not None else low + 1) - low) / 3


def test_undo_takes_a_typed_word_back_at_once_and_redo_brings_it_again(model):
    before = model.get("output.name")
    for text in ("c", "ca", "cat"):
        model.set("output.name", text)
    model.set("epochs", "7")
    assert model.undo()
    assert model.get("output.name") == "cat"
    assert model.undo()
    assert model.get("output.name") == before
    assert not model.undo()
    assert model.redo()
    assert model.redo()
    assert (model.get("output.name"), model.get("epochs")) == ("cat", 7)
    assert not model.redo()


def test_what_is_typed_after_a_save_is_undone_to_what_was_saved(model, tmp_path):
    model.set("seed", "1")
    model.save(tmp_path / "mine.yaml")
    model.set("seed", "12")
    model.undo()
    assert (model.get("seed"), model.modified_paths()) == (1, [])


def test_undo_brings_refused_text_back_with_its_sentence(model):
    model.set("epochs", "x1")
    sentence = ProblemList(model).error("epochs")
    model.set("epochs", 3)
    model.undo()
    assert model.typed == {"epochs": "x1"}
    assert ProblemList(model).error("epochs") == sentence


def test_loading_a_preset_is_undone_as_one(model):
    model.load_preset("sdxl-lora")
    assert (model.get("family"), model.preset_name) == ("sdxl", "sdxl-lora")
    assert model.modified_paths() == []
    model.undo()
    assert (model.get("family"), model.preset_name) == ("sd15", "demo")


def test_nothing_of_the_untouched_demo_is_kept_when_a_preset_is_chosen(model):
    assert model.load_preset("sd15-lora") == []
    assert model.values == to_values(config_from_values(load_preset("sd15-lora")))
    assert model.modified_paths() == []


def test_a_preset_keeps_the_data_and_places_that_the_person_has_put_in(model):
    model.add("concepts", {"path": "my images"})
    model.set("workspace_dir", "my run")
    model.set("output.name", "cat")
    model.set("sampling.samples.0.prompt", "a cat")
    model.set("model.base", "my model")
    model.set("optimizer.learning_rate", 1.0)
    model.set("sampling.every", 7.0)
    before = model.values
    kept = model.load_preset("sd15-lora")
    assert kept == ["workspace_dir", "model.base", "concepts", "sampling.samples", "output.name"]
    assert model.modified_paths() == kept
    assert model.preset_value("workspace_dir") == "workspace/run"
    expected = to_values(config_from_values(load_preset("sd15-lora")))
    for path in kept:
        put_value(expected, path, value_in(before, path))
    assert model.values == expected
    assert model.load_preset("sd15-full") == kept  # relative to the preset in between, too
    for _ in range(2):
        assert model.undo()
    assert (model.values, model.preset_name) == (before, "demo")


def test_a_preset_of_another_family_keeps_no_base_model_and_one_of_another_method_no_embeddings(model):
    model.load_preset("sd15-embedding")
    model.set("model.base", "my model")
    model.set("embeddings.0.placeholder", "my-dog")
    assert model.load_preset("sdxl-embedding") == ["embeddings"]
    assert model.get("embeddings.0.placeholder") == "my-dog"
    assert model.modified_paths() == ["embeddings.0.placeholder"]
    assert model.get("model.base") == load_preset("sdxl-embedding")["model"]["base"]
    assert model.load_preset("sdxl-lora") == []
    assert model.get("embeddings") == []


def test_a_preset_keeps_data_and_places_of_the_file_before(model, tmp_path):
    mine = {"workspace_dir": "my run", "concepts": [{"path": "my images"}], "epochs": 7}
    save_config(config_from_values(mine), tmp_path / "mine.yaml")
    model.load_file(tmp_path / "mine.yaml")
    assert model.load_preset("sd15-lora") == ["workspace_dir", "concepts"]
    assert model.get("concepts.0.path") == "my images"
    assert model.get("epochs") == load_preset("sd15-lora").get("epochs", TrainConfig().epochs)


def test_what_is_kept_and_the_same_in_the_preset_is_no_change(model):
    model.set("workspace_dir", "workspace/run")
    assert model.load_preset("sd15-lora") == []
    assert model.get("workspace_dir") == "workspace/run"


def test_what_was_typed_and_refused_in_a_kept_list_stays_in_it(model):
    model.set("concepts.1.repeats", "many")
    model.set("epochs", "x")
    assert model.load_preset("sd15-lora") == ["concepts"]
    assert model.typed == {"concepts.1.repeats": "many"}
    model.undo()
    assert model.typed == {"concepts.1.repeats": "many", "epochs": "x"}


def test_what_a_preset_would_change_is_what_it_changes(model):
    model.set("concepts.0.path", "my images")
    model.set("concepts.1.repeats", "many")
    model.set("epochs", 3)
    changes = {path: (now, then) for path, now, then in model.compare_preset("sdxl-lora")}
    assert changes["epochs"] == (3, 100)
    assert not [path for path in changes if path.startswith("concepts")]
    before = {path: model.get(path) for path in changes}
    model.load_preset("sdxl-lora")
    assert {path: (before[path], model.get(path)) for path in changes if path != "sampling.samples"} == {
        path: change for path, change in changes.items() if path != "sampling.samples"
    }
    with pytest.raises(ConfigError, match="unknown preset"):
        model.compare_preset("sdxl")


def test_a_file_that_is_opened_replaces_everything(model, tmp_path):
    save_config(config_from_values(load_preset("sd15-lora")), tmp_path / "a.yaml")
    model.set("workspace_dir", "my run")
    model.load_file(tmp_path / "a.yaml")
    assert (model.get("workspace_dir"), model.modified_paths()) == ("workspace/run", [])


def test_the_file_that_the_settings_are_of_is_undone_with_them(model, tmp_path):
    files = [tmp_path / name for name in ("a.yaml", "b.yaml")]
    for number, path in enumerate(files, start=1):
        save_config(config_from_values({"epochs": number}), path)
        model.load_file(path)
    assert model.source_file == str(files[1])
    model.undo()
    assert (model.source_file, model.preset_name, model.get("epochs")) == (str(files[0]), "a.yaml", 1)
    model.redo()
    model.load_preset("sd15-lora")
    assert model.source_file == ""
    model.undo()
    assert (model.source_file, model.get("epochs")) == (str(files[1]), 2)


@pytest.mark.parametrize("record", ["config_path", "resume_config_path"])
def test_settings_of_a_run_are_a_copy_that_can_not_be_saved_to_its_record(record, tmp_path):
    run = RunFolder(tmp_path / "cat-2")
    run.create()
    run.event_path(0).touch()
    file = getattr(run, record)
    save_config(config_from_values({"epochs": 3}), file)
    model = SettingsModel(tmp_path / "state.json")
    model.load_file(file)
    assert (model.preset_name, model.source_file, model.source_run) == ("cat-2", "", str(run.path))
    model.set("epochs", 4)
    with pytest.raises(ConfigError, match="records the settings of the run cat-2"):
        model.save(file)
    model.pending_save()()
    assert SettingsModel(tmp_path / "state.json").source_run == str(run.path)
    model.save(tmp_path / "mine.yaml")
    assert (model.source_file, model.source_run) == (str(tmp_path / "mine.yaml"), "")
    assert load_config(file).epochs == 3


def test_a_state_of_an_earlier_version_does_not_save_to_the_record_of_a_run_either(tmp_path):
    run = RunFolder(tmp_path / "cat-2")
    run.create()
    run.event_path(0).touch()
    model = SettingsModel(tmp_path / "state.json")
    model.pending_save()()
    state = json.loads((tmp_path / "state.json").read_text())
    del state["source_run"]
    state |= {"source_file": str(run.config_path), "preset_name": "config.yaml"}
    (tmp_path / "state.json").write_text(json.dumps(state))
    again = SettingsModel(tmp_path / "state.json")
    assert (again.preset_name, again.source_file, again.source_run) == ("cat-2", "", str(run.path))


def test_a_preset_after_the_settings_of_a_run_keeps_its_data(model, tmp_path):
    run = RunFolder(tmp_path / "cat-2")
    run.create()
    run.event_path(0).touch()
    save_config(config_from_values({"concepts": [{"path": "/cats"}]}), run.config_path)
    model.load_file(run.config_path)
    model.load_preset("sd15-lora")
    assert model.get("concepts.0.path") == "/cats"
    assert model.is_preset


def test_what_was_loaded_before_another_file_was_saved_is_still_of_its_own_file(model, tmp_path):
    for number, name in enumerate(("a.yaml", "b.yaml"), start=1):
        save_config(config_from_values({"epochs": number}), tmp_path / name)
        model.load_file(tmp_path / name)
    model.set("epochs", 3)
    model.save(tmp_path / "c.yaml")
    model.undo()
    assert (model.source_file, model.modified_paths()) == (str(tmp_path / "c.yaml"), ["epochs"])
    model.undo()
    assert (model.source_file, model.preset_name) == (str(tmp_path / "a.yaml"), "a.yaml")
    assert (model.get("epochs"), model.modified_paths()) == (1, [])
    model.redo()
    model.redo()
    assert (model.get("epochs"), model.source_file) == (3, str(tmp_path / "c.yaml"))


def test_a_part_that_the_preset_does_not_have_stays_when_it_is_to_go_back_to_it(model):
    model.add("concepts", {"path": "more"})
    assert model.differs_from_preset("concepts.2.path")
    assert not model.is_in_preset("concepts.2.path")
    assert model.is_in_preset("concepts.1.path")
    model.reset_to_preset(["concepts.2.path"])
    assert model.get("concepts.2.path") == "more"
    model.set("concepts.1.path", "other")
    model.load_preset("demo")
    model.remove("concepts", 1)
    model.reset_to_preset(["concepts.1.path"])  # from a list of changes opened earlier
    assert len(model.get("concepts")) == 2


def test_changes_are_counted_from_the_preset_in_the_order_of_the_form(model):
    model.set("optimizer.learning_rate", 1.0)
    model.set("epochs", 3)
    model.add("concepts", {"path": "more"})
    assert model.modified_paths() == ["epochs", "concepts", "optimizer.learning_rate"]
    assert model.preset_value("epochs") == load_preset("demo")["epochs"]
    model.reset_to_preset(["epochs", "concepts"])
    assert model.modified_paths() == ["optimizer.learning_rate"]


def test_saving_makes_the_file_what_changes_are_counted_from(model, tmp_path):
    model.set("epochs", 3)
    model.save(tmp_path / "mine.yaml")
    assert (model.preset_name, model.modified_paths()) == ("mine.yaml", [])
    model.undo()
    assert (model.preset_name, model.modified_paths()) == ("mine.yaml", ["epochs"])


def test_what_is_refused_is_not_saved(model, tmp_path):
    model.set("epochs", "x")
    with pytest.raises(ConfigError, match="can't be saved: Epochs"):
        model.save(tmp_path / "mine.yaml")
    assert not (tmp_path / "mine.yaml").exists()


def test_a_file_from_a_newer_version_changes_nothing(model, tmp_path):
    (tmp_path / "new.yaml").write_text("config_version: 99\nepochs: 3\n")
    before = model.values
    with pytest.raises(ConfigError, match="newer than this Chorus understands"):
        model.load_file(tmp_path / "new.yaml")
    assert model.values == before
    assert not model.undo()


def test_parts_come_go_and_move_with_what_was_typed_in_them(model):
    count = len(model.get("sampling.samples"))
    index = model.add("sampling.samples", {"prompt": "last"})
    assert index == count
    model.set(f"sampling.samples.{index}.steps", "few")
    model.move("sampling.samples", index, 0)
    assert model.get("sampling.samples.0.prompt") == "last"
    assert model.typed == {"sampling.samples.0.steps": "few"}
    model.remove("sampling.samples", 1)
    assert len(model.get("sampling.samples")) == count
    model.remove("sampling.samples", 0)
    assert model.typed == {}
    model.undo()
    assert model.typed == {"sampling.samples.0.steps": "few"}


def test_a_part_with_wrong_values_is_refused_whole(model):
    before = model.values
    with pytest.raises(ConfigError, match="repeats"):
        model.add("concepts", {"repeats": -1})
    assert model.values == before


def test_listeners_hear_what_has_changed(model):
    heard = []
    stop = model.subscribe(heard.append)
    model.set("epochs", 3)
    model.set("epochs", 3)
    assert heard == [{"epochs"}]
    model.undo()
    assert heard[1] == {"epochs"}
    model.add("concepts", {"path": "p"})
    assert {"concepts", "concepts.2.path"} <= heard[2]
    stop()
    model.set("epochs", 4)
    assert len(heard) == 3


def test_several_values_are_set_in_one_step_of_undo_and_replace_refused_input(model):
    model.set("batch_size", "many")
    model.set_many({"batch_size": 1, "gradient_accumulation_steps": 4})
    assert (model.get("batch_size"), model.get("gradient_accumulation_steps")) == (1, 4)
    assert model.refused_input() == {}
    model.undo()
    assert model.get("gradient_accumulation_steps") == 1
    assert model.shown("batch_size") == "many"


def test_the_last_state_comes_back_with_what_was_refused(tmp_path):
    path = tmp_path / "state" / "settings.json"
    model = SettingsModel(path)
    assert not model.restored
    model.load_preset("sd15-lora")
    model.set("epochs", 3)
    model.set("lora.rank", "many")
    model.pending_save()()
    assert model.pending_save() is None
    again = SettingsModel(path)
    assert again.restored
    assert again.typed == {"lora.rank": "many"}
    assert again.modified_paths() == model.modified_paths() == ["epochs", "lora.rank"]
    assert (again.preset_name, again.values) == ("sd15-lora", model.values)
    assert ProblemList(again).error("lora.rank") == ProblemList(model).error("lora.rank")


def test_the_file_of_the_last_settings_comes_back_and_a_state_without_one_has_none(tmp_path):
    path = tmp_path / "settings.json"
    model = SettingsModel(path)
    model.save(tmp_path / "mine.yaml")
    model.pending_save()()
    assert SettingsModel(path).source_file == str(tmp_path / "mine.yaml")
    state = json.loads(path.read_text())
    del state["source_file"]
    path.write_text(json.dumps(state))
    again = SettingsModel(path)
    assert (again.restored, again.source_file) == (True, "")


def test_a_state_is_to_be_saved_until_it_is_on_the_disk(tmp_path):
    model = SettingsModel(tmp_path / "settings.json")
    in_a_thread, at_the_end = model.pending_save(), model.pending_save()
    at_the_end()
    in_a_thread()
    assert SettingsModel(tmp_path / "settings.json").restored
    assert model.pending_save() is None
    model.set("epochs", 3)
    (tmp_path / "settings.json").unlink()
    (tmp_path / "settings.json").mkdir()
    with pytest.raises(OSError):
        model.pending_save()()
    (tmp_path / "settings.json").rmdir()
    model.pending_save()()
    assert SettingsModel(tmp_path / "settings.json").get("epochs") == 3


def test_a_state_that_is_written_late_does_not_replace_a_newer_one(tmp_path):
    model = SettingsModel(tmp_path / "settings.json")
    early = model.pending_save()
    model.set("epochs", 3)
    model.pending_save()()
    early()
    assert SettingsModel(tmp_path / "settings.json").get("epochs") == 3


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"values": {}}', '{"values": 3, "typed": []}'])
def test_a_damaged_last_state_gives_the_demo_and_says_so(tmp_path, text):
    path = tmp_path / "settings.json"
    path.write_text(text)
    model = SettingsModel(path)
    assert (model.restored, model.preset_name) == (False, "demo")
    assert "demo is loaded instead" in model.notice
    model.pending_save()()
    assert (tmp_path / "settings.unreadable.json").read_text() == text
    assert "settings.unreadable.json" in model.notice


def test_a_last_state_of_a_newer_version_gives_the_demo_and_says_so(tmp_path):
    path = tmp_path / "settings.json"
    model = SettingsModel(path)
    model.pending_save()()
    state = json.loads(path.read_text())
    state["values"]["config_version"] = 99
    path.write_text(json.dumps(state))
    again = SettingsModel(path)
    assert again.preset_name == "demo"
    assert "newer than this Chorus" in again.notice
    again.pending_save()()
    assert json.loads((tmp_path / "settings.unreadable.json").read_text()) == state
    assert "settings.unreadable.json" in again.notice
    assert SettingsModel(path).notice == ""


def test_a_last_state_that_can_not_be_moved_is_not_said_to_be(tmp_path, monkeypatch):
    def refuse(*paths):
        raise PermissionError("no")

    (tmp_path / "settings.json").write_text("{")
    monkeypatch.setattr("os.replace", refuse)
    assert "unreadable.json" not in SettingsModel(tmp_path / "settings.json").notice


def test_a_run_gets_a_copy_that_later_changes_leave_alone(model):
    config = model.config()
    model.set("epochs", 3)
    model.set("concepts.0.path", "elsewhere")
    assert to_values(config) == to_values(SettingsModel().config())


def test_a_setting_for_several_text_encoders_is_hidden_where_there_is_one(model):
    assert not model.is_visible("text_encoder.only")
    model.set("family", "sdxl")
    assert model.is_visible("text_encoder.only")


def test_the_models_of_the_window_load_neither_tk_nor_torch():
    code = (
        "import sys; import modules.ui.models.SettingsModel, modules.ui.models.RunModel;"
        "unwanted = {'torch', 'diffusers', 'transformers', 'matplotlib', 'tkinter', 'customtkinter'};"
        "print(sorted(unwanted & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_state_to_be_kept_is_taken_anew_only_after_a_change(tmp_path, monkeypatch):
    model, taken = SettingsModel(tmp_path / "settings.json"), []
    snapshot = SettingsModel._snapshot
    monkeypatch.setattr(SettingsModel, "_snapshot", lambda self: taken.append(1) or snapshot(self))
    model.pending_save()()
    assert [model.pending_save() for _ in range(3)] == [None] * 3
    assert len(taken) == 1
    model.set("epochs", 7)
    model.pending_save()()
    assert SettingsModel(tmp_path / "settings.json").get("epochs") == 7
