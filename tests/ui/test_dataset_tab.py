"""The dataset tab, the window of a concept, their previews, and the dataset check."""

import json
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from modules.config.clips import clip_rule
from modules.config.ConceptConfig import ConceptConfig
from modules.config.DataConfig import DataConfig
from modules.config.EmbeddingConfig import EmbeddingConfig
from modules.config.errors import UserError
from modules.config.files import config_from_values
from modules.config.presets import ROOT
from modules.config.TrainConfig import TrainConfig
from modules.data.buckets import assign_buckets
from modules.data.CaptionSource import CaptionSource
from modules.data.concepts import captions, scan
from modules.data.crops import cropped
from modules.data.image_views import augmentation_of, with_views
from modules.data.images import adjust_colors, fit_image, load_image
from modules.data.ImageSettings import Crop, ImageSetting, ImageSettings, settings_file
from modules.machine.Machine import read_machine
from modules.ui.cards.ConceptCards import BAR_HEIGHT, ConceptCards
from modules.ui.models.concept_preview import (
    ConceptPictures,
    find_pictures,
    preview_captions,
    preview_looks,
    samples_per_epoch,
)
from modules.ui.models.DataCheck import DataCheck, DataReport, _read_report
from modules.ui.models.decoding import PictureKey, decode_pictures
from modules.ui.models.picture_count import count_key, count_pictures
from modules.ui.widgets.form import find_field
from modules.ui.window_system import wheel_events
from modules.ui.windows.DatasetWindow import DatasetWindow
from modules.ui.windows.HealthWindow import HealthWindow
from tests.support.fake_nvml import eight_gpus, put_gpus
from tests.support.videos import number_of, write_video
from tests.support.waiting import wait_until


@pytest.fixture
def folder(tmp_path) -> Path:
    """Six images, five of them with captions of three tags, and a damaged one."""
    path = tmp_path / "foxes"
    path.mkdir()
    for number in range(6):
        picture = Image.effect_mandelbrot((96, 64), (-2.2 + number / 10, -1.4, 0.9, 1.4), 40).convert("RGB")
        picture.save(path / f"{number}.png")
        if number:
            (path / f"{number}.txt").write_text("fox, red, snow", encoding="utf-8")
    (path / "broken.jpg").write_bytes(b"no image")
    return path


def config_of(folder: Path, **settings) -> TrainConfig:
    concept = {"path": str(folder), **settings}
    return config_from_values({"concepts": [concept], "data": {"resolution": 64, "bucket_step": 8}})


# --- previews, without a display --------------------------------------------------------------------------------------


def test_the_counts_of_a_concept_name_what_is_missing_and_damaged(folder):
    found = find_pictures(ConceptConfig(path=str(folder)), 0)
    assert (len(found.paths), found.num_without_caption, found.num_unreadable) == (6, 1, 1)


def test_a_disabled_concept_is_looked_at_too(folder):
    assert len(find_pictures(ConceptConfig(path=str(folder), enabled=False), 3).paths) == 6


def test_a_folder_that_is_gone_is_told_with_the_concepts_number():
    assert find_pictures(ConceptConfig(path="/no/such/folder"), 2).error.startswith("concepts.2.path")


def test_videos_are_counted_with_their_clips_and_shown_by_their_first_frame(folder):
    concept = ConceptConfig(path=str(folder))
    write_video(folder / "walk.mp4", 40)
    assert find_pictures(concept, 0).content == "6 images"
    config = replace(config_of(folder), family="wan21", data=DataConfig(frames=9, clips="chunks", bucket_step=8))
    found = find_pictures(concept, 0, rule=clip_rule(config))
    assert found.content == "6 images, 1 video (4 clips)"
    assert found.num_samples == 10
    assert count_pictures(config, lambda: True) == (10, ())
    assert count_key(config) != count_key(replace(config, data=DataConfig(frames=9)))
    video = next(path for path in found.paths if path.endswith(".mp4"))
    ((_, thumbnail),) = decode_pictures([PictureKey(video, 32, 32)])
    assert thumbnail.size == (32, 24)
    assert number_of(thumbnail) == 0
    assert preview_looks(config, 0, video, 64)[0].image.size == (64, 48)


def test_the_preview_of_a_video_shows_the_caption_of_each_clip_if_they_differ(folder):
    video = str(write_video(folder / "walk.mp4", 27))
    config = replace(config_of(folder), family="wan21", data=DataConfig(frames=9, clips="chunks", bucket_step=8))
    (folder / "walk.txt").write_text("[0:00 - 0:00.5] it starts")
    assert preview_captions(config, 0, video) == [
        "[0:00 - 0:00.56] it starts",
        "[0:00.56 - 0:01.12] (no caption)",
        "[0:01.12 - 0:01.69] (no caption)",
    ]
    (folder / "walk.txt").write_text("a walk")
    assert preview_captions(config, 0, video) == ["a walk"]


def test_another_rate_of_frame_folders_counts_their_clips_again(folder):
    config = replace(config_of(folder), family="wan21", data=DataConfig(frames=9))
    faster = replace(config, concepts=[replace(config.concepts[0], frame_folders_fps=24)])
    assert count_key(config) != count_key(faster)


def test_the_balance_is_that_of_the_training(folder):
    one = ConceptConfig(path="a", repeats=2)
    assert samples_per_epoch([one, ConceptConfig(path="b")], [10, 20]) == [20, 20]
    assert samples_per_epoch([one, replace(one, share=0.75)], [10, 10]) == pytest.approx([20, 60])
    assert samples_per_epoch([one, ConceptConfig(path="b", regularisation=True)], [10, 5]) == pytest.approx([20, 20])
    assert samples_per_epoch([one, replace(one, enabled=False)], [10, 10]) == [20, 0]
    assert samples_per_epoch([replace(one, validation=True)], [10]) == [0]
    assert samples_per_epoch([], []) == []


@pytest.mark.parametrize("crop", [None, Crop(3, 5, 24, 16)])
def test_the_previewed_looks_are_those_of_the_training(folder, crop):
    augmentation = {"flip": True, "rotation": 10.0, "hue": 0.1, "crop_jitter": True}
    config = config_of(folder, augmentation=augmentation)
    path = str(folder / "3.png")
    settings = ImageSettings({"3.png": ImageSetting(crop=crop)})
    Path(settings_file(str(folder))).write_bytes(settings.to_bytes())
    shown = preview_looks(config, 0, path, 64)
    assert len(shown) == 1 + config.data.augmentation_variants

    dataset, resolution = with_views(scan(config.concepts), config.data, config.seed)
    data = config.data
    buckets = assign_buckets(
        dataset.widths, dataset.heights, resolution, data.bucket_step, data.max_aspect, data.bucketing
    )
    trained = []
    for sample in [sample for sample, name in enumerate(dataset.paths) if name == path]:
        look, shape = augmentation_of(dataset, sample), buckets.shapes[buckets.index[sample]]
        trained.append(adjust_colors(fit_image(cropped(dataset, sample, load_image(path)), *shape, look), look))
    assert f"{trained[0].width} x {trained[0].height}" in shown[1].title
    for look, image in zip(shown[1:], trained, strict=True):
        image.thumbnail((64, 64), Image.Resampling.LANCZOS, reducing_gap=2.0)
        assert look.image.tobytes() == image.tobytes()


def test_without_augmentation_there_is_one_look(folder):
    assert len(preview_looks(config_of(folder), 0, str(folder / "1.png"), 64)) == 1


def test_the_previewed_captions_are_those_of_the_training(folder):
    config = config_of(folder, shuffle_tags=True, keep_tags=1, tag_dropout=0.2)
    path = str(folder / "2.png")
    shown = preview_captions(config, 0, path)
    assert len(shown) > 1
    assert all(text.startswith("fox") for text in shown)

    dataset = scan(config.concepts)
    source = CaptionSource(dataset, captions(dataset), config.seed, config.data.caption_variants)
    assert set(shown) <= set(source.all_texts())


def test_the_previewed_captions_hold_the_words_to_be_learnt(folder):
    config = replace(config_of(folder, tag_dropout=1.0), method="embedding", embeddings=[EmbeddingConfig("fox")])
    (text,) = preview_captions(config, 0, str(folder / "2.png"))
    assert "fox" in text


def test_a_picture_without_a_caption_is_shown_with_none(folder):
    assert preview_captions(config_of(folder), 0, str(folder / "0.png")) == [""]


def test_the_preview_of_a_damaged_picture_says_so(folder):
    with pytest.raises(UserError, match=r"broken\.jpg"):
        preview_looks(config_of(folder), 0, str(folder / "broken.jpg"), 64)


def test_the_check_of_the_data_finds_what_the_script_finds(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    config = config_of(folder)
    report = DataCheck(config).run()
    assert report.num_pictures == 6
    kinds = {finding.kind: finding for finding in report.findings}
    assert kinds["unreadable"].paths == (str(folder / "broken.jpg"),)
    assert kinds["missing_caption"].count == 1


def test_the_check_shows_names_on_one_line_and_keeps_the_paths():
    name = "a\x1b[2J\n\u202eb.png"
    finding = {"kind": "small", "level": "warning", "message": f"1 is small: {name}", "count": 1, "paths": [name]}
    report = _read_report(json.dumps({"can_train": True, "num_pictures": 1, "findings": [finding]}).encode())
    assert report.findings[0].message == r"1 is small: a\x1b[2J\n\u202eb.png"
    assert report.findings[0].paths == (name,)


def test_a_cancelled_check_gives_nothing(folder):
    check = DataCheck(config_of(folder))
    check.cancel()
    assert check.run() is None


def test_what_the_window_imports_for_the_data_is_free_of_torch():
    code = (
        "import sys, json, modules.ui.models.concept_preview, modules.ui.models.decoding, modules.ui.models.DataCheck, "
        "modules.ui.models.SampleTable, modules.ui.models.noise_preview; print(json.dumps(sorted(sys.modules)))"
    )
    output = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True).stdout
    assert not {"torch", "diffusers", "transformers", "matplotlib", "tkinter"} & set(json.loads(output))


# --- the tab ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def app(shared_app):
    return shared_app


@pytest.fixture
def tab(app, folder, wait_for, settle):
    """As it opens with two concepts, of which none is chosen."""
    concepts = [{"path": str(folder)}, {"path": str(folder), "name": "again", "repeats": 3}]
    app.settings.replace_parts("concepts", concepts)
    made = app.open_tab("dataset")
    if made._window is not None:
        made._window.hide()
    made.filter._drop()
    made.cards.forget_pictures()
    made.cards.choose(None)
    made.page._parent_canvas.yview_moveto(0)
    paths = [str(folder)] * 2
    wait_for(app, lambda: [card.concept.path for card in made.cards.cards if card.found] == paths)
    settle(app)
    return made


def texts(canvas) -> str:
    return "\n".join(canvas.itemcget(item, "text") for item in canvas.find_all() if canvas.type(item) == "text")


def press(app, tab, key: str) -> None:
    tab.cards.canvas.focus_force()
    app.update()
    tab.cards.canvas.event_generate(key)
    app.update()


def test_cards_show_counts_and_the_share_of_an_epoch(app, tab, wait_for):
    wait_for(app, lambda: "18 samples an epoch, 75%" in texts(tab.cards.canvas))
    shown = texts(tab.cards.canvas)
    assert "6 images, 1 without a caption, 1 can't be read" in shown
    assert "6 samples an epoch, 25%" in shown
    assert tab._summary.cget("text") == "2 of 2 concepts enabled, 24 samples an epoch"
    wait_for(app, lambda: len(tab.cards._photos) >= 4)


def test_the_balance_follows_the_settings(app, tab):
    app.settings.set("concepts.1.repeats", "1")
    app.update()
    assert texts(tab.cards.canvas).count("6 samples an epoch, 50%") == 2


def test_space_disables_the_chosen_concept(app, tab):
    tab.cards.choose(0)
    press(app, tab, "<space>")
    assert app.settings.get("concepts.0.enabled") is False
    assert "not trained" in texts(tab.cards.canvas)


def test_a_click_on_the_box_enables_and_disables(app, tab):
    x, y = tab.cards.corner_of(1)
    tab.cards.canvas.event_generate("<Button-1>", x=x + 20, y=y + 20)
    app.update()
    assert app.settings.get("concepts.1.enabled") is False
    tab.cards.canvas.event_generate("<Button-1>", x=x + 200, y=y + 60)
    app.update()
    assert app.settings.get("concepts.1.enabled") is False


def test_a_folder_is_added_and_chosen(app, tab, tmp_path, wait_for):
    other = tmp_path / "birds"
    other.mkdir()
    tab.add_folder(str(other))
    wait_for(app, lambda: tab.cards.cards[2].found is not None)
    app.update()
    assert tab.cards.chosen == 2
    assert tab._form.paths[0] == "concepts.2.name"
    assert "contains no images" in texts(tab.cards.canvas)


def test_a_duplicate_stands_behind_the_concept(app, tab):
    tab.cards.choose(0)
    app.settings.set("concepts.0.name", "first")
    tab.duplicate(0)
    app.update()
    assert [concept.name for concept in app.settings.get("concepts")] == ["first", "first", "again"]
    assert tab.cards.chosen == 1
    app.settings.undo()
    assert [concept.name for concept in app.settings.get("concepts")] == ["first", "again"]


def test_delete_removes_the_chosen_concept_and_undo_brings_it_back(app, tab):
    tab.cards.choose(1)
    press(app, tab, "<Delete>")
    assert len(app.settings.get("concepts")) == 1
    assert tab.cards.chosen is None
    assert tab._form is None
    app.settings.undo()
    app.update()
    assert len(tab.cards.cards) == 2


def test_undo_of_an_added_concept_takes_its_form_away(app, tab, folder):
    tab.add_folder(str(folder))
    app.update()
    app.settings.undo()
    app.update()
    assert tab._form is None


def test_a_problem_of_a_concept_opens_its_form(app, tab):
    app.settings.set("concepts.1.repeats", "many")
    app.flash("concepts.1.repeats")
    app.update()
    assert tab.cards.chosen == 1
    assert tab._form.fields["concepts.1.repeats"].is_shown


def test_refresh_sees_new_pictures(app, tab, folder, wait_for):
    Image.new("RGB", (64, 64)).save(folder / "new.png")
    tab.refresh()
    wait_for(app, lambda: tab.cards.cards[0].found is not None and len(tab.cards.cards[0].found.paths) == 7)


def test_a_card_shows_sound_images_in_place_of_truncated_ones(app, tab, folder, wait_for):
    first = sorted(folder.glob("*.png"))[0]
    first.write_bytes(first.read_bytes()[:200])
    tab.refresh()
    wait_for(app, lambda: tab.cards.cards[0].found is not None and str(first) in tab.cards._damaged)
    wait_for(app, lambda: not tab.cards._is_loading)
    assert len(tab.cards.cards[0].found.paths) == 6  # its header can be read
    assert "truncated" not in texts(tab.cards.canvas)
    for path in folder.glob("*.png"):
        path.write_bytes(path.read_bytes()[:200])
    tab.refresh()
    wait_for(app, lambda: "truncated" in texts(tab.cards.canvas))


def test_a_run_that_is_moved_into_the_data_is_left_out_of_the_card(app, tab, folder, wait_for):
    (folder / "run" / "samples").mkdir(parents=True)
    Image.new("RGB", (64, 64)).save(folder / "run" / "samples" / "0.png")
    app.settings.set("workspace_dir", str(folder / "run"))
    wait_for(app, lambda: tab.cards.cards[0].found is not None and tab.cards.cards[0].found.num_of_runs == 1)
    assert len(tab.cards.cards[0].found.paths) == 6


def test_a_folder_that_fails_keeps_no_other_from_being_read(app, tab, folder, wait_for, faults, monkeypatch):
    def fail_at_first(concept, number, *others):
        if number == 0:
            raise RuntimeError("broken")
        return find_pictures(concept, number)

    monkeypatch.setattr("modules.ui.tabs.DatasetTab.find_pictures", fail_at_first)
    app.settings.set("concepts.1.include_subfolders", False)
    tab.refresh()
    wait_for(app, lambda: all(card.found for card in tab.cards.cards))
    assert [card.found.error for card in tab.cards.cards] == ["Concept 1: Folder can't be read.", ""]
    assert [str(error) for error in faults] == ["broken"]
    faults.clear()


class SlowSearch:
    """A fake find_pictures that never ends for the path "slow". started, given_up: the paths so far."""

    def __init__(self):
        self.started, self.given_up = [], []

    def __call__(self, concept, number, is_wanted, *others):
        self.started.append(concept.path)
        if concept.path == "slow":
            wait_until(lambda: not is_wanted())
            self.given_up.append(concept.path)
        return ConceptPictures(error=f"looked at {concept.path}")


def test_a_path_is_looked_at_when_the_typing_has_stopped_and_keeps_no_other_waiting(app, tab, wait_for, monkeypatch):
    search = SlowSearch()
    monkeypatch.setattr(app.checks.places, "look", lambda: None)  # or "slow" is read once more: no folder
    monkeypatch.setattr("modules.ui.tabs.DatasetTab.find_pictures", search)
    monkeypatch.setattr("modules.ui.tabs.DatasetTab.TYPING_MS", 3_600_000)
    for path in ("s", "sl", "slo", "slow"):
        app.settings.set("concepts.0.path", path)
        app.update()
    wait_for(app, lambda: tab.cards.cards[0].concept.path == "slow")
    assert search.started == []
    tab._read_in(0)
    wait_for(app, lambda: search.started)
    monkeypatch.setattr("modules.ui.tabs.DatasetTab.TYPING_MS", 5)
    app.settings.set("concepts.0.path", "fast")
    wait_for(app, lambda: tab.cards.cards[0].found == ConceptPictures(error="looked at fast"))
    wait_for(app, lambda: search.given_up)
    assert search.started == ["slow", "fast"]


def test_the_window_of_a_concept_looks_at_a_path_when_the_typing_has_stopped(app, window, wait_for, monkeypatch):
    search = SlowSearch()
    monkeypatch.setattr(
        app.checks.places, "look", lambda: None
    )  # or that "slow" is no folder is told, and it is read anew
    monkeypatch.setattr("modules.ui.tabs.DatasetTab.TYPING_MS", 3_600_000)
    monkeypatch.setattr("modules.ui.windows.ConceptWindow.find_pictures", search)
    monkeypatch.setattr("modules.ui.windows.ConceptWindow.TYPING_MS", 3_600_000)
    for path in ("s", "sl", "slo"):
        app.settings.set("concepts.0.path", path)
        app.update()
    assert window._state.cget("text") == "Reading the images…"
    monkeypatch.setattr("modules.ui.windows.ConceptWindow.TYPING_MS", 5)
    app.settings.set("concepts.0.path", "slow")
    wait_for(app, lambda: search.started)
    app.settings.set("concepts.0.path", "fast")
    wait_for(app, lambda: window._state.cget("text") == "looked at fast")
    app.settings.set("concepts.0.path", "slow")
    wait_for(app, lambda: search.started[2:])
    window.hide()
    wait_for(app, lambda: len(search.given_up) == 2)
    assert search.started == ["slow", "fast", "slow"]


def test_a_card_whose_concept_has_just_gone_does_nothing(app, tab):
    tab.cards.choose(1)
    app.settings.remove("concepts", 1)
    before = app.settings.values
    for act in (tab.toggle, tab.edit, tab.duplicate, tab.remove, lambda number: tab.move(number, -1)):
        act(1)
    assert app.settings.values == before
    assert tab._window is None or tab._window.number is None


def test_what_was_read_before_a_refresh_is_read_again(app, tab, folder, wait_for, monkeypatch):
    has_read, is_refreshed = threading.Event(), threading.Event()

    def find_slowly(*concept):
        found = find_pictures(*concept)
        has_read.set()
        assert is_refreshed.wait(120)
        return found

    monkeypatch.setattr("modules.ui.tabs.DatasetTab.find_pictures", find_slowly)
    tab.refresh()
    wait_for(app, has_read.is_set)
    Image.new("RGB", (64, 64)).save(folder / "new.png")
    tab.refresh()
    is_refreshed.set()
    wait_for(app, lambda: all(card.found and len(card.found.paths) == 7 for card in tab.cards.cards))


def test_many_concepts_are_read_one_after_the_other(app, tab, tmp_path, wait_for):
    for number in range(30):
        app.settings.add("concepts", {"path": str(tmp_path / f"missing{number}")})
    wait_for(app, lambda: len(tab.cards.cards) == 32 and all(card.found for card in tab.cards.cards))
    assert sum(bool(card.found.error) for card in tab.cards.cards) == 30
    assert texts(tab.cards.canvas).count("does not exist") < 30  # the others are not visible


def add_missing(app, count: int) -> None:
    concepts = [{"path": f"missing{number}"} for number in range(count)]
    app.settings.replace_parts("concepts", [*app.settings.values["concepts"], *concepts])


def scroll_down(app, canvas, settle) -> None:
    names = wheel_events(canvas)
    canvas.event_generate(names[-1], x=50, y=50, **({} if len(names) == 2 else {"delta": -120}))
    settle(app)


def test_a_selected_card_has_the_only_frame(app, tab, settle):
    canvas, theme = tab.cards.canvas, app.theme
    settle(app)
    assert canvas.cget("highlightcolor") == theme.now(theme.focus)
    tab.cards.choose(0)
    settle(app)
    assert canvas.cget("highlightcolor") == theme.now(theme.card)


def test_few_cards_are_seen_whole_above_the_settings(app, tab, settle):
    border = 2 * int(tab.cards.canvas.cget("highlightthickness"))
    rows = -(-2 // tab.cards.num_columns())
    assert tab.cards.canvas.winfo_height() == rows * tab.cards.cell_size()[1] + border
    assert not tab.cards._down.winfo_ismapped()
    assert not tab.filter.winfo_ismapped()


def test_many_cards_scroll_in_their_half_of_the_tab_and_the_settings_below_stay_in_sight(app, tab, settle):
    add_missing(app, 40)
    settle(app)
    cards, canvas, settings = tab.cards, tab.cards.canvas, tab._side
    assert canvas.winfo_height() <= max(cards.cell_size()[1], tab.winfo_height() / 2) + 10
    assert canvas.winfo_rooty() + canvas.winfo_height() <= settings.winfo_rooty()
    assert settings.winfo_rooty() < tab.winfo_rooty() + tab.winfo_height()
    assert cards._down.winfo_ismapped()
    bottom_of_bar = cards._down.winfo_rooty() + cards._down.winfo_height()
    assert bottom_of_bar <= tab.page._scrollbar.winfo_rooty()  # never two side by side
    before = settings.winfo_rooty()
    scroll_down(app, canvas, settle)
    assert cards._offset[1] > 0
    assert settings.winfo_rooty() == before
    assert "missing39" not in texts(canvas)
    cards.choose(41)
    settle(app)
    assert "missing39" in texts(canvas)
    press(app, tab, "<Home>")
    assert (cards.chosen, cards._offset[1]) == (0, 0)


def test_the_wheel_over_cards_that_are_all_in_sight_scrolls_the_settings(app, tab, settle):
    tab.cards.choose(0)
    app.set_show_all(True)
    settle(app)
    scroll_down(app, tab.cards.canvas, settle)
    assert tab.page._parent_canvas.yview()[0] > 0


def test_a_folder_that_is_counted_repaints_only_its_own_card(app, tab, folder, settle, monkeypatch):
    drawn, draw_cell = [], ConceptCards.draw_cell
    monkeypatch.setattr(
        ConceptCards, "draw_cell", lambda self, number, *at: drawn.append(number) or draw_cell(self, number, *at)
    )
    first = tab.cards.cards[0].found
    settle(app)
    drawn.clear()
    for number in (1, 1, 0):
        tab.cards.show_card(number, replace(tab.cards.cards[number], found=replace(first, num_unreadable=2)))
        app.update_idletasks()
    assert drawn == [1, 1, 0]
    assert texts(tab.cards.canvas).count("2 can't be read") == 2
    assert texts(tab.cards.canvas).count("samples an epoch") == 2  # nothing is drawn twice


def test_a_hundred_concepts_need_no_more_widgets_and_drawn_cards_than_are_in_sight(
    app, tab, wait_for, settle, monkeypatch
):
    def num_widgets() -> int:
        return len(
            app.tk.splitlist(
                app.tk.eval(
                    "proc all w {set l [list $w]; foreach c [winfo children $w] "
                    "{lappend l {*}[all $c]}; return $l}; all ."
                )
            )
        )

    add_missing(app, 18)
    settle(app)
    before, shown, drawn = num_widgets(), [], []
    show, draw_cell = ConceptCards.show, ConceptCards.draw_cell
    monkeypatch.setattr(
        "modules.ui.tabs.DatasetTab.find_pictures", lambda *concept: ConceptPictures(("a.png",), num_samples=1)
    )
    monkeypatch.setattr(ConceptCards, "show", lambda self, cards: shown.append(1) or show(self, cards))
    monkeypatch.setattr(
        ConceptCards, "draw_cell", lambda self, number, *at: drawn.append(number) or draw_cell(self, number, *at)
    )
    add_missing(app, 100)
    wait_for(app, lambda: len(tab.cards.cards) == 120 and all(card.found for card in tab.cards.cards))
    settle(app)
    assert num_widgets() == before
    assert len(shown) <= 20  # when added, when all are read, and when a check ends: not for each concept
    assert len(set(drawn)) <= 20
    assert len(tab.cards._items) <= 20


def test_the_samples_of_an_epoch_are_told_when_all_folders_are_read(app, tab, folder, wait_for, monkeypatch):
    is_read = threading.Event()
    monkeypatch.setattr(
        "modules.ui.tabs.DatasetTab.find_pictures", lambda *concept: is_read.wait(120) and find_pictures(*concept)
    )
    app.settings.add("concepts", {"path": str(folder / "..")})
    wait_for(app, lambda: "Reading the images" in texts(tab.cards.canvas))
    assert "samples an epoch" not in texts(tab.cards.canvas)
    assert "sample" not in tab._summary.cget("text")
    is_read.set()
    wait_for(app, lambda: texts(tab.cards.canvas).count("samples an epoch") == 3)
    assert "samples an epoch" in tab._summary.cget("text")


def type_filter(app, tab, text: str) -> None:
    tab.filter.entry.focus_force()
    app.update()
    tab.filter.entry.delete(0, "end")
    tab.filter.entry.insert(0, text)
    tab.filter.entry._entry.event_generate("<KeyRelease>", keysym="p")
    app.update()


def test_many_concepts_are_filtered_by_name_or_folder(app, tab, settle):
    add_missing(app, 30)
    settle(app)
    assert tab.filter.winfo_ismapped()
    type_filter(app, tab, "SSING2")
    assert tab.filter._count.cget("text") == "11 of 32 shown"
    assert "missing2\n" in texts(tab.cards.canvas)
    assert "missing1" not in texts(tab.cards.canvas)
    press(app, tab, "<Home>")
    press(app, tab, "<Right>")
    assert tab.cards.chosen == 2 + 20
    assert tab._form.paths[0] == "concepts.22.name"
    press(app, tab, "<Delete>")
    assert len(app.settings.get("concepts")) == 31
    assert tab.filter._count.cget("text") == "10 of 31 shown"
    type_filter(app, tab, "nothing like this")
    assert "No concept has this" in texts(tab.cards.canvas)
    type_filter(app, tab, "")
    assert tab.filter._count.cget("text") == ""


def test_a_concept_that_the_filter_hides_is_chosen_no_more_and_shown_again_when_it_is_led_to(app, tab, settle):
    add_missing(app, 30)
    settle(app)
    tab.cards.choose(5)
    type_filter(app, tab, "again")
    assert (tab.cards.chosen, tab._form) == (None, None)
    press(app, tab, "<Delete>")
    assert len(app.settings.get("concepts")) == 32
    app.flash("concepts.7.repeats")
    settle(app)
    assert (tab.cards.chosen, tab.filter.entry.get()) == (7, "")
    assert "missing5" in texts(tab.cards.canvas)


def test_the_chosen_concept_stays_while_its_name_no_longer_passes_the_filter(app, tab, settle):
    add_missing(app, 30)
    settle(app)
    type_filter(app, tab, "again")
    tab.cards.choose(1)
    app.settings.set("concepts.1.name", "birds")
    app.settings.set("concepts.1.path", "elsewhere")
    app.update()
    assert tab.cards.chosen == 1
    assert "birds" in texts(tab.cards.canvas)


def test_a_single_concept_shows_its_settings_at_once(make_app, folder, settle):
    app = make_app(tab="tools")
    app.settings.replace_parts("concepts", [{"path": str(folder)}])
    tab = app.open_tab("dataset")
    settle(app)
    assert tab.chosen_part == 0


def test_a_problem_of_all_images_leads_to_its_field_beside_the_concepts(make_app, settle):
    app = make_app(tab="tools")
    app.flash("data.resolution")
    settle(app)
    assert app.tab_bar.selected == "dataset"
    assert app.focus_get() is find_field(app.tabs["dataset"], "data.resolution").entry._entry


@pytest.mark.parametrize("name", ["data", "concepts"])
def test_the_tab_is_in_front_if_one_of_the_two_it_was_made_of_had_been(make_app, tmp_path, name):
    (tmp_path / "window.json").write_text(json.dumps({"tab": name}), encoding="utf-8")
    assert make_app(tmp_path).tab_bar.selected == "dataset"


# --- the windows ------------------------------------------------------------------------------------------------------


@pytest.fixture
def window(app, tab, wait_for):
    tab.edit(0)
    wait_for(app, lambda: len(tab._window.thumbnails.paths) == 6)
    wait_for(app, lambda: tab._window.looks._looks)
    return tab._window


def test_the_window_of_a_concept_has_all_its_settings(app, window):
    from modules.config.describe import part_paths

    shown = [path for card in window._cards for path in card.form.paths]
    assert sorted(shown) == sorted(part_paths("concepts", 0))


def test_the_preview_follows_the_augmentation(app, window, wait_for):
    assert len(window.looks._looks) == 1
    app.settings.set("concepts.0.augmentation.flip", True)
    wait_for(app, lambda: len(window.looks._looks) == 1 + app.settings.get("data.augmentation_variants"))


def test_the_preview_follows_the_captions(app, window, wait_for):
    window.thumbnails.choose(1)
    app.settings.set("concepts.0.shuffle_tags", True)
    wait_for(app, lambda: "snow, red, fox" in window.captions.get("1.0", "end"))


def test_the_preview_follows_the_chosen_picture(app, window, wait_for):
    window.thumbnails.choose(0)
    wait_for(app, lambda: "(no caption)" in window.captions.get("1.0", "end"))
    window.thumbnails.choose(2)
    wait_for(app, lambda: "fox, red, snow" in window.captions.get("1.0", "end"))


def test_the_window_of_a_concept_counts_what_is_missing_and_damaged_as_its_card_does(app, window, wait_for):
    wait_for(app, lambda: window._state.cget("text") == "6 images, 1 without a caption, 1 can't be read")


def test_a_folder_that_goes_is_told_in_the_window(app, window, tmp_path, wait_for):
    app.settings.set("concepts.0.path", str(tmp_path / "gone"))
    wait_for(app, lambda: "does not exist" in window._state.cget("text"))
    assert not window.thumbnails.paths


def test_the_window_closes_when_concepts_come_or_go(app, window):
    app.settings.remove("concepts", 0)
    app.update()
    assert window.state() == "withdrawn"
    assert window._cards == []


def test_the_window_is_used_again(app, tab, window, wait_for):
    window.hide()
    tab.edit(1)
    wait_for(app, lambda: window.looks._looks)
    assert window.title() == "Concept: again"
    assert window.state() == "normal"


def test_the_check_shows_what_it_found_and_its_pictures(app, tab, folder, wait_for):
    tab.check_data()
    health = find_health(app)
    wait_for(app, lambda: health.report is not None)
    app.update()
    messages = [health.tree.item(item, "values")[1] for item in health.tree.get_children()]
    assert any("can't be read" in message for message in messages)
    number = next(n for n, finding in enumerate(health.report.findings) if finding.kind == "missing_caption")
    health.tree.selection_set(str(number))
    app.update()
    assert [Path(path).name for path in health.thumbnails.paths] == ["0.png", "0.png"]
    health.show_button.invoke()
    (dataset,) = (child for child in app.winfo_children() if type(child) is DatasetWindow)
    wait_for(app, lambda: [dataset.view.items[n].path for n in dataset.view.shown] == list(health.thumbnails.paths))


def test_the_check_counts_all_gpus_where_none_is_named(app, tab, monkeypatch):
    seen = []

    class Check:
        def __init__(self, config, num_ranks, decode):
            seen.append(num_ranks)
            self.run, self.cancel = lambda: DataReport(True, 0, ()), lambda: None

    monkeypatch.setattr("modules.ui.windows.HealthWindow.DataCheck", Check)
    put_gpus(monkeypatch, eight_gpus())
    app.devices.take_machine(read_machine())
    app.settings.set("enable_multi_gpu", True)
    tab.check_data()
    assert seen == [8]


def test_a_check_that_is_closed_and_opened_again_is_made_anew(app, tab, wait_for, monkeypatch):
    checks = []

    class Check:
        def __init__(self, *arguments):
            checks.append(self)
            self.is_cancelled, self.end = False, threading.Event()

        def run(self) -> DataReport | None:
            self.end.wait(120)
            return None if self.is_cancelled else DataReport(True, 7, ())

        def cancel(self) -> None:
            self.is_cancelled = True

    monkeypatch.setattr("modules.ui.windows.HealthWindow.DataCheck", Check)
    tab.check_data()
    tab.check_data()
    assert len(checks) == 1
    find_health(app).hide()
    tab.check_data()
    assert len(checks) == 2
    seen = []
    app.in_background(lambda: checks[0].end.set(), seen.append)
    wait_for(app, lambda: seen)
    assert find_health(app)._state.cget("text").startswith("Checking")
    checks[1].end.set()
    wait_for(app, lambda: find_health(app).report is not None)
    assert "7 images" in find_health(app)._state.cget("text")


def test_a_check_of_settings_that_are_refused_says_so(app, tab):
    app.settings.set("concepts.0.repeats", "many")
    tab.check_data()
    app.update()
    assert "fix it first" in find_health(app)._state.cget("text")


def test_a_long_sentence_about_a_failed_check_is_seen_whole(app, tab, wait_for, monkeypatch):
    sentence = "a folder that is not there, " * 20

    def fail(*arguments):
        raise UserError(sentence)

    monkeypatch.setattr("modules.ui.windows.HealthWindow.DataCheck.run", fail)
    tab.check_data()
    health = find_health(app)
    state = health._state
    wait_for(app, lambda: state.cget("text") == sentence)

    def is_whole() -> bool:
        inside = health.winfo_rootx() <= state.winfo_rootx()
        inside = inside and state.winfo_rootx() + state.winfo_reqwidth() <= health.winfo_rootx() + health.winfo_width()
        return inside and state.winfo_height() >= state.winfo_reqheight() > 1

    wait_for(app, is_whole)


def find_health(app) -> HealthWindow:
    return next(child for child in app.winfo_children() if isinstance(child, HealthWindow))


# --- the order --------------------------------------------------------------------------------------------------------


def test_alt_up_and_down_change_the_order_and_undo_takes_it_back(app, tab):
    tab.cards.choose(1)
    press(app, tab, "<Alt-Up>")
    assert names_in(app) == ["again", ""]
    assert tab.cards.chosen == 0
    assert tab._form.paths[0] == "concepts.0.name"
    press(app, tab, "<Alt-Up>")  # at the end of the list
    assert names_in(app) == ["again", ""]
    press(app, tab, "<Alt-Down>")
    assert names_in(app) == ["", "again"]
    assert tab.cards.chosen == 1
    app.settings.undo()
    app.update()
    assert names_in(app) == ["again", ""]


def names_in(app) -> list[str]:
    return [concept.name for concept in app.settings.get("concepts")]


def test_the_buttons_move_the_chosen_concept(app, tab):
    tab.cards.choose(0)
    buttons = {button.cget("text"): button for button in tab._on_chosen}
    buttons["Move down"].invoke()
    assert names_in(app) == ["again", ""]
    buttons["Move up"].invoke()
    assert names_in(app) == ["", "again"]


@pytest.mark.parametrize("width", [800, 300, 130])
def test_counts_and_balance_are_whole_and_inside_of_a_card_of_any_width(app, tab, settle, width):
    cards = tab.cards
    cards.canvas.configure(width=width)
    cards.grid_propagate(True)
    cards.grid(sticky="nw")
    settle(app)
    assert width <= cards.canvas.winfo_width() < width + 20
    _, height = cards.cell_size()
    canvas = cards.canvas
    items = [item for item in canvas.find_all() if canvas.type(item) == "text"]
    assert "6 images, 1 without a caption, 1 can't be read" in texts(canvas)
    ends = [canvas.bbox(item)[3] for item in items if "samples an epoch" in canvas.itemcget(item, "text")]
    assert ends
    assert max(ends[:1]) < cards.corner_of(0)[1] + height - app.theme.scaled(BAR_HEIGHT)
