"""The start page: the demo, one's own images, and what was used last."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from PIL import Image

from modules.config.files import config_from_values, load_config, save_config
from modules.config.presets import load_preset
from modules.config.TrainConfig import TrainConfig
from modules.session.RunLock import RunLock
from modules.session.RunSummary import RunSummary
from modules.ui import RunControl as run_control
from modules.ui.cards.DemoCard import DemoCard
from modules.ui.cards.OwnImagesCard import describe_images
from modules.ui.models.concept_preview import ConceptPictures
from modules.ui.tabs.HomeTab import HomeTab
from modules.ui.widgets.dialogs import set_size
from modules.ui.windows import RunSummaryWindow as summary_module
from tests.support.backup_files import write_backup
from tests.support.fake_nvml import FakeGpu, FakeNvml, put_gpus
from tests.ui.test_quick_start import make_run
from tests.ui.test_train_ui import texts_in


@pytest.fixture
def started(monkeypatch) -> list[tuple[TrainConfig, bool]]:
    """The settings of the runs that were started, and whether they were resumed; the check and the summary agree."""
    found: list[tuple[TrainConfig, bool]] = []

    def check_of(config, resume):
        found.append((config, resume))
        return SimpleNamespace(cancel=lambda: None)

    monkeypatch.setattr(run_control, "check_of", check_of)
    monkeypatch.setattr(run_control, "run_check", lambda check: RunSummary())
    monkeypatch.setattr(summary_module, "RunSummaryWindow", lambda app, text, start: start() or SimpleNamespace())
    monkeypatch.setattr(
        "modules.ui.models.RunModel.RunModel.start", lambda run, config, resume: found.append((config, resume))
    )
    return found


@pytest.fixture
def make_home(make_app, settle, tmp_path):
    """`make_home()`: the start page of a new window that has no saved state, completely built."""

    def make() -> HomeTab:
        app = make_app(tmp_path / "state")
        settle(app)
        return app.tabs["home"]

    return make


def test_the_first_start_shows_the_start_page_and_later_ones_the_tab_left(make_home, make_app, tmp_path):
    home = make_home()
    assert home.app.tab_bar.selected == "home" == next(iter(home.app.tab_bar.buttons))
    home.app.open_tab("dataset")
    home.app.destroy()
    assert make_app(tmp_path / "state").tab_bar.selected == "dataset"


def test_a_card_is_never_drawn_wider_than_it_stays(make_home, monkeypatch):
    widths = []

    class WatchedCard(DemoCard):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            self.bind("<Configure>", lambda event: widths.append(event.width), add="+")

    monkeypatch.setattr("modules.ui.tabs.HomeTab.DemoCard", WatchedCard)
    make_home()
    assert max(widths) <= widths[-1] + 1  # a pixel, for rounding


def test_the_demo_starts_with_its_own_settings_and_undo_brings_the_users_back(make_home, wait_for, started):
    home = make_home()
    app = home.app
    wait_for(app, lambda: len(home.demo.images.find_all()) == 8)
    app.settings.replace_parts("concepts", [{"path": "/cats"}])
    app.settings.set("model.base", "somebody/model")
    app.settings.set("epochs", "7")
    before = app.settings.values
    home.demo.start.invoke()
    assert "Undo restores yours" in app.message.cget("text")
    wait_for(app, lambda: len(started) == 2)
    assert started == [(config_from_values(load_preset("demo")), False)] * 2
    app.settings.undo()
    assert app.settings.values == before


def test_nothing_is_started_or_changed_during_a_run(make_home, started):
    home = make_home()
    app = home.app
    app.run.state.is_running = True
    app.run._show(app.run.state)
    assert {home.demo.start.cget("state"), home.own.start.cget("state")} == {"disabled"}
    app.settings.set("epochs", 7)
    app.start_preset("demo")
    assert app.settings.get("epochs") == 7
    assert started == []
    app.run.state.is_running = False
    app.run._show(app.run.state)
    assert {home.demo.start.cget("state"), home.own.start.cget("state")} == {"normal"}


def test_own_images_are_trained_from_nothing_with_four_choices(make_home, wait_for, started, monkeypatch, tmp_path):
    put_gpus(monkeypatch, FakeNvml([FakeGpu("RTX 4090", f"GPU-{number}") for number in (0, 1)]))
    home = make_home()
    app, own = home.app, home.own
    wait_for(app, lambda: app.devices.gpus and own.gpus.cget("values") == ["All 2", "One"])
    images = tmp_path / "cats"
    images.mkdir()
    for number in range(3):
        Image.new("RGB", (600 + number, 700)).save(images / f"{number}.png")
    (images / "0.txt").write_text("a cat")

    own.start.invoke()
    assert "Choose the folder of your images first" in app.message.cget("text")
    assert started == []
    own.form.fields["family"].editor._dropdown_callback("Stable Diffusion XL")
    base = own.form.fields["model.base"]
    base.entry.insert("end", "x")
    base.write("somebody/sdxl")
    base._leave()
    monkeypatch.setattr("modules.ui.cards.OwnImagesCard.ask_path", lambda *arguments, **options: str(images))
    own.choose.invoke()
    wait_for(app, lambda: "px" in own.folder_note.cget("text"))
    assert own.folder.cget("text") == str(images)
    assert own.folder_note.cget("text") == "3 images, 600 px and larger; 2 without a caption."
    wait_for(app, lambda: own.preset.get() == own.quick.suggested.label)
    memory = own.quick.suggested.memory
    assert own.gpus.get() == "All 2"
    own.use_preset("sdxl-lora, 12 GB GPU")
    own.gpus._command("One")
    assert own.preset.get() == "sdxl-lora, 12 GB GPU" != f"sdxl-lora, {memory} GB GPU"
    assert "Suggested for this machine" in own.preset_note.cget("text")
    own.start.invoke()
    wait_for(app, lambda: len(started) == 2)
    values = load_preset("sdxl-lora-12gb")
    values["model"]["base"] = "somebody/sdxl"
    values["concepts"] = [{"path": str(images)}]
    values.update(workspace_dir="workspace/cats", output={**values.get("output", {}), "name": "cats"})
    assert started == [(config_from_values(values), False)] * 2
    assert app.tab_bar.selected == "monitor"


def test_the_card_follows_changes_made_elsewhere(make_home, wait_for, tmp_path):
    home = make_home()
    app, own = home.app, home.own
    wait_for(app, lambda: own.preset.cget("values"))
    assert own.folder.cget("text") == "No folder chosen yet"
    app.settings.load_preset("sd3-lora")
    app.settings.replace_parts("concepts", [{"path": str(tmp_path / "gone")}])
    assert own.preset.cget("values")[0].startswith("sd3-lora")
    assert own.preset.get() == "sd3-lora"
    wait_for(app, lambda: own.folder_note.cget("text_color") == app.theme.error)
    assert "gone" in own.folder_note.cget("text")
    app.settings.add("concepts", {"path": "/dogs"})
    assert own.folder.cget("text") == "2 folders on the Dataset tab"
    own.choose.invoke()
    assert app.tab_bar.selected == "dataset"
    app.settings.set("family", "ovis_image")
    app.settings.set("method", "vae")
    app.open_tab("home")
    assert own.preset_note.cget("text").startswith("No preset for Autoencoder (VAE) on Ovis-Image")


def test_the_content_of_a_folder_in_words():
    assert describe_images(ConceptPictures(("a",), smallest_side=1024))[0] == "1 image, 1,024 px and larger."
    text = describe_images(ConceptPictures(("a", "b"), num_unreadable=3, smallest_side=5))[0]
    assert text == "2 images, 5 px and larger; 3 can't be read."
    assert describe_images(ConceptPictures())[0] == "No image in this folder: choose another."


@pytest.fixture
def runs(tmp_path):
    """Three runs beside the run folder of the demo; the settings of each are in it."""
    made = {}
    for name, status in (("done", "finished"), ("broken", "stopped"), ("going", "finished")):
        made[name] = make_run(tmp_path / "workspace" / name, status, step=4)
        values = {**load_preset("demo"), "epochs": len(name), "workspace_dir": "elsewhere"}
        save_config(config_from_values(values), made[name].config_path)
    write_backup(made["broken"].backup_dir, 4)
    made["going"].exit_path.unlink()
    with RunLock(made["going"].lock_path):
        yield made


def test_recent_runs_are_shown_followed_resumed_and_their_settings_loaded(
    make_home, wait_for, started, runs, monkeypatch
):
    home = make_home()
    app, buttons = home.app, home.recent.buttons
    app.run.attach(runs["done"].path)
    wait_for(app, lambda: app.run.state.exit is not None)
    done, broken, going = (str(runs[name].path) for name in ("done", "broken", "going"))
    wait_for(app, lambda: {(done, "Show"), (broken, "Resume"), (going, "Monitor")} <= set(buttons))
    assert {"done", "workspace/done", "workspace/broken"} <= set(texts_in(home.recent))

    buttons[done, "Load settings"].invoke()
    assert app.settings.get("epochs") == len("done")
    assert app.settings.get("workspace_dir") == done
    record = runs["done"].config_path.read_bytes()
    app.settings.set("epochs", 33)
    asked = []
    monkeypatch.setattr("modules.ui.TopBar.ask_path", lambda app, question: asked.append(question.name) or "")
    app.top_bar.save()
    assert asked == ["done.yaml"]
    assert app.top_bar.preset.cget("text") == "done  ▾"
    assert runs["done"].config_path.read_bytes() == record
    app.settings.undo()
    assert app.settings.undo()
    assert app.settings.preset_name == "demo"

    buttons[broken, "Resume"].invoke()
    wait_for(app, lambda: len(started) == 2)
    config, is_resumed = started[-1]
    assert (config.epochs, config.workspace_dir, is_resumed) == (len("broken"), broken, True)

    app.open_tab("home")
    buttons[going, "Monitor"].invoke()
    assert app.tab_bar.selected == "monitor"
    assert app.run.state.folder == runs["going"].path
    assert app.preferences.runs[:2] == [going, done]


def test_a_run_folder_that_vanishes_is_dropped(make_home, wait_for, runs):
    home = make_home()
    done = str(runs["done"].path)
    home.app.preferences.runs = [done]
    wait_for(home.app, lambda: (done, "Show") in home.recent.buttons)
    show = home.recent.buttons[done, "Show"]
    home.app.run.state.folder = None
    runs["done"].path.rename(runs["done"].path.with_name("moved").parent.parent / "away")
    show.invoke()
    assert "is not the folder of a run" in home.app.message.cget("text")
    home.recent._view.invalidate()
    wait_for(home.app, lambda: (done, "Show") not in home.recent.buttons)
    assert done not in home.app.preferences.runs  # the one that is training may have been found meanwhile


def test_only_a_model_that_is_large_is_said_to_take_long_on_the_cpu(make_home, wait_for):
    home = make_home()
    wait_for(home.app, lambda: home.own._are_presets_read)
    choice = home.own.quick.suggested
    for size, is_said in ((5_740_000, False), (7 * 2**30, True), (None, True)):  # None: on the Hub
        home.app.devices.take_base(size)
        assert ("takes very long" in home.own._preset_text(choice, choice)) == is_said


def test_the_age_and_the_step_of_runs_change_without_drawing_the_list_anew(make_home, wait_for, runs):
    home = make_home()
    done = str(runs["done"].path)
    wait_for(home.app, lambda: (done, "Show") in home.recent.buttons)
    recent, button = home.recent, home.recent.buttons[done, "Show"]
    later = tuple(replace(run, text="finished yesterday") for run in recent._shown.runs)
    recent._show(replace(recent._shown, runs=later))
    assert recent.buttons[done, "Show"] is button  # with its focus
    assert button.winfo_exists()
    assert recent._lines[done][1].cget("text") == "finished yesterday"


def test_a_settings_file_is_opened(make_home, wait_for, tmp_path):
    save_config(TrainConfig(epochs=11), tmp_path / "mine.yaml")
    home = make_home()
    home.app.open_settings(str(tmp_path / "mine.yaml"))
    home.app.settings.load_preset("demo")
    home.recent._view.invalidate()
    wait_for(home.app, lambda: (str(tmp_path / "mine.yaml"), "Open") in home.recent.buttons)
    home.recent.buttons[str(tmp_path / "mine.yaml"), "Open"].invoke()
    assert home.app.settings.config() == load_config(tmp_path / "mine.yaml")


def test_in_a_narrow_window_the_cards_are_below_each_other(make_home, settle):
    home = make_home()
    cards = (home.demo, home.own, home.recent)
    assert len({card.winfo_y() for card in cards}) == 1
    set_size(home.app, "1000x700", (860, 540))
    settle(home.app)
    assert len({card.winfo_x() for card in cards}) == 1
    assert [card.winfo_y() for card in cards] == sorted({card.winfo_y() for card in cards})
    home.app.preferences.runs = ["/a/run"]  # whoever has trained wants to go on
    set_size(home.app, "990x700", (860, 540))
    settle(home.app)
    assert home.own.winfo_y() < home.recent.winfo_y() < home.demo.winfo_y()
