"""The background checks of devices and base model, whichever tab is shown."""

import socket

import pytest
from PIL import Image

from modules.config.TrainConfig import TrainConfig
from modules.session.RunFolder import RunFolder
from modules.session.RunLock import RunLock
from modules.ui.models.BackgroundChecks import first_free_port
from modules.ui.models.picture_count import count_key, count_pictures
from modules.ui.widgets.form import find_field
from tests.support.fake_nvml import eight_gpus, put_gpus
from tests.support.ports import free_port


def blocked(app, path: str) -> str:
    return app.problems.error(path) or ""


def test_a_backend_that_this_machine_has_not_is_warned_of_on_any_tab(app, wait_for):
    app.settings.set("enable_multi_gpu", True)
    app.settings.set("distributed_backend", "nccl")
    wait_for(app, lambda: "gloo" in (app.problems.warning("distributed_backend") or ""))
    assert list(app.tabs) == ["tools"]
    app.settings.set("distributed_backend", "gloo")
    wait_for(app, lambda: not app.problems.warning("distributed_backend"))


def test_a_device_that_is_not_there_is_refused_on_any_tab(make_app, wait_for, monkeypatch):
    put_gpus(monkeypatch, eight_gpus())
    app = make_app(tab="tools")
    app.settings.set("device_indexes", "0, 9")
    wait_for(app, lambda: blocked(app, "device_indexes"))
    assert "9" in blocked(app, "device_indexes")


def test_a_base_model_that_is_gone_is_told_at_the_start(make_app, tmp_path, wait_for):
    first = make_app(tmp_path / "state")
    first.settings.set("model.base", str(tmp_path / "gone"))
    first.destroy()
    app = make_app(tmp_path / "state")
    wait_for(app, lambda: blocked(app, "model.base"))
    assert list(app.tabs) == ["home"]
    (tmp_path / "model.safetensors").write_bytes(b"")
    app.settings.set("model.base", str(tmp_path / "model.safetensors"))
    assert not blocked(app, "model.base")
    wait_for(app, lambda: app.checks.base_text == "A file of 0 B.")


def test_the_model_tab_says_what_the_base_is(app, wait_for):
    tab = app.open_tab("model")
    wait_for(app, lambda: tab.page.cards and tab.found.cget("text").startswith("A diffusers folder"))


def test_what_was_found_at_a_base_is_not_said_of_the_next_one(app, wait_for):
    tab = app.open_tab("model")
    wait_for(app, lambda: tab.page.cards and tab.found.cget("text"))
    app.settings.set("model.base", "somebody/else")
    assert tab.found.cget("text") == ""


def test_a_base_model_that_comes_later_is_found(make_app, tmp_path, wait_for, monkeypatch):
    monkeypatch.setattr("modules.ui.models.BackgroundChecks.REFRESH_SECONDS", 0.05)
    app = make_app(tab="tools")
    path = tmp_path / "model.safetensors"
    app.settings.set("model.base", str(path))
    wait_for(app, lambda: blocked(app, "model.base"))
    path.write_bytes(b"")
    wait_for(app, lambda: not blocked(app, "model.base"))
    assert app.checks.base_text == "A file of 0 B."


@pytest.fixture
def busy_port():
    with socket.create_server(("127.0.0.1", free_port())) as server:
        yield server


def use_port(app, port: int, **values) -> None:
    for path, value in {"initial_port": str(port), "enable_multi_gpu": True, "num_nodes": 2, **values}.items():
        app.settings.set(path, value)


def test_a_port_in_use_is_told_and_the_next_free_one_is_a_click_away(app, busy_port, wait_for, monkeypatch):
    monkeypatch.setattr("modules.ui.models.BackgroundChecks.first_free_port", first_free_port)
    port = busy_port.getsockname()[1]
    use_port(app, port)
    wait_for(app, lambda: app.problems.at("initial_port"))
    [problem] = app.problems.at("initial_port")
    free = int(problem.remedy.values["initial_port"])
    assert free > port
    assert problem.message.startswith(f"Port {port} is in use")
    field = find_field(app.open_tab("multi-GPU"), "initial_port")
    wait_for(app, lambda: field._remedy is not None and field._remedy.winfo_ismapped())
    assert field._remedy.cget("text") == f"Set to {free}"
    field._remedy.invoke()
    assert app.settings.get("initial_port") == str(free)
    wait_for(app, lambda: not app.problems.at("initial_port"))
    wait_for(app, lambda: not field._remedy.winfo_ismapped())


def test_a_port_that_is_left_is_free_again(make_app, busy_port, wait_for, monkeypatch):
    monkeypatch.setattr("modules.ui.models.BackgroundChecks.REFRESH_SECONDS", 0.05)
    app = make_app(tab="tools")
    monkeypatch.setattr("modules.ui.models.BackgroundChecks.first_free_port", first_free_port)
    use_port(app, busy_port.getsockname()[1])
    wait_for(app, lambda: app.problems.error("initial_port"))
    busy_port.close()
    wait_for(app, lambda: not app.problems.error("initial_port"))


@pytest.mark.parametrize("values", [{"num_nodes": 1}, {"node_rank": 1}, {"enable_multi_gpu": False}])
def test_a_port_that_need_not_be_free_is_not_looked_at(app, monkeypatch, values):
    use_port(app, 12399, **values)
    looked: list[int] = []
    monkeypatch.setattr("modules.ui.models.BackgroundChecks.first_free_port", lambda port: looked.append(port) or port)
    app.settings.set("initial_port", 12398)
    app.update()
    assert app.checks._wanted_port() is None
    assert not looked


def test_a_missing_folder_of_images_is_counted_and_goes_when_it_is_there(make_app, tmp_path, wait_for, monkeypatch):
    monkeypatch.setattr("modules.ui.models.BackgroundChecks.REFRESH_SECONDS", 0.05)
    monkeypatch.setattr("modules.ui.models.BackgroundChecks.COUNT_MS", 10)
    app = make_app(tab="tools")
    folder = tmp_path / "images"
    app.settings.set("concepts.0.path", str(folder))
    wait_for(app, lambda: app.problems.error("concepts.0.path"))
    assert app.problems.error("concepts.0.path").startswith(f"Concept 1: Folder {folder}: does not exist")
    assert app.bottom_bar.problems.cget("text") == "1 problem"
    app.bottom_bar.problems.invoke()
    cards = app.tabs["dataset"].cards
    wait_for(app, lambda: cards.cards and cards.cards[0].found is not None and cards.cards[0].found.error)
    folder.mkdir()
    Image.new("RGB", (64, 64)).save(folder / "a.png")
    wait_for(app, lambda: not app.problems.error("concepts.0.path"))
    wait_for(app, lambda: cards.cards[0].counts.startswith("1 image"))


@pytest.fixture
def quick_app(make_app, monkeypatch):
    """A window that looks again without delay at what may change outside it."""
    monkeypatch.setattr("modules.ui.models.BackgroundChecks.REFRESH_SECONDS", 0.05)
    monkeypatch.setattr("modules.ui.models.BackgroundChecks.COUNT_MS", 10)
    return make_app(tab="tools")


@pytest.mark.parametrize("is_enabled", [True, False])
def test_a_folder_that_is_moved_away_and_back_is_told_by_the_problems_and_its_card(
    quick_app, tmp_path, wait_for, is_enabled
):
    app, folder = quick_app, tmp_path / "images"
    folder.mkdir()
    Image.new("RGB", (64, 64)).save(folder / "a.png")
    app.settings.set("concepts.0.path", str(folder))
    app.settings.set("concepts.0.enabled", is_enabled)
    cards = app.open_tab("dataset").cards
    wait_for(app, lambda: cards.cards and cards.cards[0].counts.startswith("1 image"))
    wait_for(app, lambda: not app.problems.error("concepts.0.path"))
    for _ in range(2):
        folder.rename(tmp_path / "elsewhere")
        wait_for(app, lambda: cards.cards[0].found is not None and "does not exist" in cards.cards[0].found.error)
        wait_for(app, lambda: not is_enabled or "does not exist" in blocked(app, "concepts.0.path"))
        assert len(app.problems.at("concepts.0.path")) == is_enabled
        (tmp_path / "elsewhere").rename(folder)
        wait_for(app, lambda: cards.cards[0].counts.startswith("1 image"))
        wait_for(app, lambda: not app.problems.error("concepts.0.path"))


def test_a_folder_that_goes_before_the_first_look_at_it_is_told_too(quick_app, tmp_path, wait_for):
    app, folder, told = quick_app, tmp_path / "images", []
    app.checks.places.subscribe(told.append)
    app.settings.set("concepts.0.enabled", False)  # so that it is no problem
    app.settings.set("concepts.0.path", str(folder))
    wait_for(app, lambda: app.checks.places.state("concepts.0.path") == "missing")
    assert {"concepts.0.path"} in told


def test_images_that_are_all_removed_from_a_folder_are_missed(quick_app, tmp_path, wait_for):
    app, folder = quick_app, tmp_path / "images"
    folder.mkdir()
    Image.new("RGB", (64, 64)).save(folder / "a.png")
    app.settings.set("concepts.0.path", str(folder))
    app.settings.set("concepts.1.enabled", False)
    wait_for(app, lambda: app.devices.num_samples == 1)
    wait_for(app, lambda: app.checks.places.state("concepts.0.path") == "folder")
    (folder / "a.png").unlink()
    wait_for(app, lambda: blocked(app, "concepts.0.path") or blocked(app, "concepts"))


def test_a_base_model_that_goes_and_comes_back_is_told(quick_app, tmp_path, wait_for):
    app, path = quick_app, tmp_path / "model.safetensors"
    path.write_bytes(b"")
    app.settings.set("model.base", str(path))
    wait_for(app, lambda: app.checks.base_text == "A file of 0 B.")
    wait_for(app, lambda: app.checks.places.state("model.base") == "file")
    path.rename(tmp_path / "gone")
    wait_for(app, lambda: blocked(app, "model.base"))
    (tmp_path / "gone").rename(path)
    wait_for(app, lambda: not blocked(app, "model.base"))


@pytest.mark.parametrize(
    ("setting", "method", "is_folder"),
    [
        ("model.vae", "lora", False),
        ("model.config_folder", "lora", True),
        ("model.denoiser", "lora", False),
        ("model.training_adapter", "lora", False),
        ("lora.start_from", "lora", False),
        ("concepts.0.mask_folder", "lora", True),
    ],
)
def test_any_file_or_folder_that_a_setting_names_is_missed_while_it_is_gone(
    quick_app, tmp_path, wait_for, setting, method, is_folder
):
    app, place = quick_app, tmp_path / "part.safetensors"
    place.mkdir() if is_folder else place.write_bytes(b"")
    app.settings.set_many({"method": method, "loss.masked_training": True, setting: str(place)})
    wait_for(app, lambda: app.checks.places.state(setting) in ("file", "empty folder"))
    assert not blocked(app, setting)
    place.rename(tmp_path / "gone")
    wait_for(app, lambda: "does not exist" in blocked(app, setting))
    (tmp_path / "gone").rename(place)
    wait_for(app, lambda: not blocked(app, setting))
    place.rename(tmp_path / "gone")
    wait_for(app, lambda: blocked(app, setting))
    app.settings.reset(setting)
    wait_for(app, lambda: not blocked(app, setting))


def test_a_setting_without_effect_and_a_folder_to_be_made_need_not_be_there(quick_app, tmp_path, wait_for):
    app = quick_app
    values = {"method": "full", "lora.start_from": "gone", "workspace_dir": str(tmp_path / "new")}
    app.settings.set_many({**values, "model.vae": str(tmp_path / "gone")})
    wait_for(app, lambda: blocked(app, "model.vae"))
    assert {one.path for one in app.problems.all() if "does not exist" in one.message} == {"model.vae"}


def test_of_a_list_of_files_the_missing_one_is_told_and_a_name_on_the_hub_is_no_missing_file(
    quick_app, tmp_path, wait_for
):
    app, gone = quick_app, tmp_path / "gone.safetensors"
    encoders = ["somebody/model/t5xxl.safetensors", str(gone)]
    app.settings.set_many({"method": "lora", "model.vae": "somebody/vae", "model.text_encoders": encoders})
    wait_for(app, lambda: str(gone) in blocked(app, "model.text_encoders"))
    assert {one.path for one in app.problems.all() if "does not exist" in one.message} == {"model.text_encoders"}
    gone.write_bytes(b"")
    wait_for(app, lambda: not blocked(app, "model.text_encoders"))


def test_folders_are_not_read_again_while_nothing_happens_to_them(app, counts, wait_for):
    app.settings.set("concepts.0.repeats", 7)
    wait_for(app, lambda: app.devices.num_samples == 7)
    news = []
    app.checks.places.subscribe(news.append)
    for _ in range(2):
        app.checks.places.look()
        wait_for(app, lambda: not app.checks.places._is_looking)
    assert app.checks.places.state("concepts.0.path") == "folder"
    assert (news, len(counts)) == ([], 1)


def test_each_missing_folder_is_a_problem_of_its_own(tmp_path):
    config = TrainConfig(concepts=[{"path": str(tmp_path / name)} for name in "ab"])
    _, problems = count_pictures(config, lambda: True)
    assert [problem.path for problem in problems] == ["concepts.0.path", "concepts.1.path"]


def test_a_folder_that_another_run_uses_is_told_with_the_next_free_one(app, tmp_path, wait_for):
    folder = RunFolder(tmp_path / "runs" / "run")
    folder.create()
    (tmp_path / "runs" / "run-2").mkdir()
    with RunLock(folder.lock_path):
        app.settings.set("workspace_dir", str(folder.path))
        wait_for(app, lambda: app.problems.at("workspace_dir"))
        [problem] = app.problems.at("workspace_dir")
        assert problem.blocking
        assert problem.remedy.text == "Use run-3"
        app.problems.apply(problem.remedy)
        wait_for(app, lambda: not app.problems.at("workspace_dir"))
        assert app.settings.get("workspace_dir") == str(tmp_path / "runs" / "run-3")


@pytest.fixture
def counts(app, monkeypatch):
    """The settings for which images were counted; the fake count is the first concept's repeats."""
    made = []

    def count(config, is_wanted):
        made.append(config)
        return int(config.concepts[0].repeats), ()

    monkeypatch.setattr("modules.ui.models.BackgroundChecks.count_pictures", count)
    monkeypatch.setattr("modules.ui.models.BackgroundChecks.COUNT_MS", 10)
    return made


def test_an_epoch_that_is_smaller_than_a_step_is_told_on_any_tab_until_it_is_larger(app, counts, wait_for):
    app.settings.set("concepts.0.repeats", 7)
    app.settings.set("batch_size", 32)
    wait_for(app, lambda: "7 samples < 32" in (app.problems.warning("batch_size") or ""))
    assert list(app.tabs) == ["tools"]
    app.settings.set("concepts.0.repeats", 1000)
    wait_for(app, lambda: not app.problems.warning("batch_size"))


def test_pictures_are_counted_once_for_all_that_is_typed_and_not_for_what_does_not_matter(app, counts, wait_for):
    wait_for(app, lambda: app.devices.num_samples is not None)
    counts.clear()
    for repeats in (1, 10, 100):
        app.settings.set("concepts.0.repeats", repeats)
    wait_for(app, lambda: app.devices.num_samples == 100)
    app.settings.set("concepts.0.prompt", "a cat")
    app.settings.set("epochs", 3)
    app.checks._count()
    app.settings.set("concepts.0.repeats", 5)
    wait_for(app, lambda: app.devices.num_samples == 5)
    assert [config.concepts[0].repeats for config in counts] == [100, 5]


def test_a_count_that_a_change_has_overtaken_is_given_up_as_is_that_of_a_closed_window(app, monkeypatch):
    jobs = []
    monkeypatch.setattr(app.checks, "_measure", lambda config: None)  # which may need a job of its own
    monkeypatch.setattr(app, "in_background", lambda work, then: jobs.append((work, then)))
    monkeypatch.setattr("modules.ui.models.BackgroundChecks.count_pictures", lambda config, is_wanted: is_wanted)
    for repeats in (2, 3):
        app.settings.set("concepts.0.repeats", repeats)
        app.checks._count()
    (first, take_first), (second, take_second) = jobs
    assert (first()(), second()()) == (False, True)
    take_second((30, ()))
    take_first((20, ()))
    assert app.devices.num_samples == 30
    app.destroy()
    assert not second()()


def test_pictures_are_counted_anew_for_each_setting_on_which_their_number_depends():
    def key(**changes):
        share = changes.pop("validation_share", 0.0)
        concept = {"path": "pictures", **changes}
        return count_key(TrainConfig(concepts=[concept], data={"validation_share": share}))

    same = key()
    others = {"path": "others", "enabled": False, "repeats": 2.0, "share": 0.5, "regularisation": True}
    others |= {"validation": True, "include": "a*", "exclude": "a*", "include_subfolders": False, "captions": "table"}
    for name, value in {**others, "validation_share": 0.1}.items():
        assert key(**{name: value}) != same, name
    assert key(prompt="a cat", name="cats") == same


def test_pictures_that_can_not_be_counted_have_no_number(tmp_path):
    config = TrainConfig(concepts=[{"path": str(tmp_path / "gone")}])
    assert count_pictures(config, lambda: True)[0] is None
