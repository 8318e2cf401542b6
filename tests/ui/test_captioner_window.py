"""The window in which a model writes captions, over the dataset window, with a server on this machine."""

import tkinter
from pathlib import Path

import pytest
from PIL import Image

from modules.annotators.captioner_kinds import KINDS, TAGGER
from modules.ui.models.AnnotatorRun import Result
from modules.ui.models.CaptionerChoices import CaptionerChoices
from modules.ui.windows import CaptionerWindow
from tests.support.caption_script import use_caption_script
from tests.support.chat_server import ChatServerStandIn
from tests.support.pictures import captions_in, write_pictures
from tests.ui.test_layout import find_faults

NAMES = ("wide", "high")
KEY = "a-key-that-nobody-may-read"


@pytest.fixture
def server():
    stand_in = ChatServerStandIn()
    with stand_in.running():
        yield stand_in


@pytest.fixture
def images(tmp_path, monkeypatch) -> Path:
    use_caption_script(tmp_path, monkeypatch)
    return write_pictures(tmp_path / "images", [(64, 64)] * 5, captions=["", "", "", "", "my own"])


@pytest.fixture
def dataset(request, make_app, tmp_path, images, show_dataset):
    """The dataset window; that of a window that keeps its state where the parameter says so."""
    if getattr(request, "param", ""):
        return show_dataset(make_app(tmp_path / "window", tab="tools"), images)
    app = request.getfixturevalue("shared_app")
    app.preferences.captioner = {}
    return show_dataset(app, images)


@pytest.fixture
def window(dataset, server, wait_for):
    dataset.caption.buttons["captioner"].invoke()
    made = dataset.caption.captioner.window
    made.source.set(CaptionerWindow.SERVER)
    made.address.insert(0, server.address)
    made.key.insert(0, KEY)
    made.show_rows()
    return made


@pytest.mark.parametrize("dataset", ["keeps its state"], indirect=True)
def test_a_preview_stands_beside_its_images_and_the_key_stays_in_its_field(window, dataset, images, wait_for, tmp_path):
    app = window.app
    assert "on this machine, and nowhere else" in window.note.cget("text")
    window.panel.buttons["preview"].invoke()
    assert window.panel.buttons["start"].cget("text") == "Cancel"
    wait_for(app, lambda: window.panel.run is None)
    assert window.panel.state.cget("text") == "A preview: nothing was written."
    assert ["64 x 64" in text.cget("text") for text in window.previews.texts] == [True] * 3
    wait_for(app, lambda: all(picture.cget("image") is not None for picture in window.previews.pictures))
    assert captions_in(images) == ["my own"]
    assert app.preferences.captioner["address"] == window.address.get()
    app.destroy()
    kept = [path for path in tmp_path.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]
    assert (tmp_path / "window" / "window.json").is_file()
    assert kept == []


def test_captions_appear_as_they_are_written_and_all_are_taken_back(window, dataset, images, server, wait_for):
    app = window.app
    server.limit = 2
    window.panel.buttons["start"].invoke()
    wait_for(app, lambda: "64 x 64" in dataset.caption.text)  # of the first image, which is the current one
    wait_for(app, lambda: len(server.requests) == 3 and dataset.view.counts()["no_caption"] == 2)
    wait_for(app, lambda: dataset.caption.buttons["captioner"].cget("text").startswith("2 of 4"))
    server.released.set()
    wait_for(app, lambda: window.panel.run is None)
    assert window.panel.state.cget("text") == "4 images done. 1 image keeps its caption."
    assert dataset.caption.buttons["captioner"].cget("text") == "Caption with a model…"
    assert len(captions_in(images)) == 5
    window.panel.buttons["undo"].invoke()
    wait_for(app, lambda: captions_in(images) == ["my own"] and dataset.caption.text == "")
    window.panel.buttons["undo"].invoke()
    assert "is not the last change any more" in window.panel.state.cget("text")


def test_only_the_selected_images_are_captioned(window, dataset, images, server, wait_for):
    app = window.app
    dataset.cells.select([1, 3])
    wait_for(app, lambda: window._texts.get("Selected") == "Selected (2)")
    window.which.set("Selected (2)")
    window.panel.start()
    wait_for(app, lambda: window.panel.run is None)
    assert [path.name for path in sorted(images.glob("*.txt"))] == ["001.txt", "003.txt", "004.txt"]


def test_nothing_is_sent_to_another_machine_without_a_yes(window, monkeypatch):
    asked = []
    monkeypatch.setattr(CaptionerWindow, "ask", lambda app, title, text, answers: asked.append(text))
    window.address.delete(0, "end")
    window.address.insert(0, "http://10.255.255.1:8000")
    window.panel.start()
    assert window.panel.run is None
    assert "http://10.255.255.1:8000/v1, another machine" in asked[0]


def test_thresholds_are_shown_for_taggers_and_models_that_nobody_knows(window, wait_for):
    app = window.app
    window.source.set(CaptionerWindow.HERE)
    for model, kind in [*((kind.example, kind) for kind in KINDS), ("somebody/of-an-unknown-kind", None)]:
        window.model.set(model)
        window.show_rows()
        wait_for(app, lambda kind=kind: window._kind is kind)
        app.update()
        shown = kind in (TAGGER, None)
        assert (window.general.winfo_ismapped(), window.character.winfo_ismapped()) == (shown, shown), model


def test_texts_are_whole_in_a_narrow_window(window, wait_for, settle, tmp_path):
    app = window.app
    window.source.set(CaptionerWindow.HERE)
    window.model.set(TAGGER.example)
    window.show_rows()
    app.theme.set_scale(1.5)
    tkinter.Wm.geometry(window, "800x660")
    settle(app)
    assert not find_faults(window)
    for name, size in zip(NAMES, ((300, 200), (200, 300)), strict=True):
        Image.new("RGB", size).save(tmp_path / f"{name}.png")
    window._show_preview([Result(str(tmp_path / f"{name}.png"), "sitting in the grass, " * 9) for name in NAMES])
    wait_for(app, lambda: all(picture.cget("image") is not None for picture in window.previews.pictures))
    settle(app)
    assert not find_faults(window)
    assert len({text.winfo_rootx() for text in window.previews.texts}) == 1


def test_a_threshold_that_is_not_shown_stops_no_run(window, wait_for, monkeypatch):
    started = []
    monkeypatch.setattr(CaptionerChoices, "start", lambda choices, *given: started.append(choices))
    window.source.set(CaptionerWindow.HERE)
    window.general.insert("end", "x")
    window.show_rows()
    wait_for(window.app, lambda: window._kind is not None)
    window.start_run(preview=True)
    assert started[0].general == CaptionerChoices.general
    assert window.app.preferences.captioner["general"] == CaptionerChoices.general + "x"  # for the next tagger


def test_what_is_wrong_is_said_in_a_sentence_and_fields_follow_the_choice(window):
    window.source.set(CaptionerWindow.HERE)
    window.style.set("Subject with a name")
    window.show_rows()
    window.update()
    assert window.name.winfo_ismapped()
    assert not window.address.winfo_ismapped()
    window.panel.start()
    assert window.panel.state.cget("text").startswith("Name: is empty")


def test_only_what_a_model_can_write_is_offered_and_it_says_so(window, wait_for, tmp_path):
    app = window.app
    window.source.set(CaptionerWindow.HERE)
    window.style.set("Tags: a list")
    window.show_rows()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text('{"model_type": "florence2"}', encoding="utf-8")
    window.model.set(str(tmp_path / "mine"))
    window.show_rows()
    said = "Florence-2 writes only long captions or short captions, and takes no prompt."
    wait_for(app, lambda: window.note.cget("text") == said)
    assert window.style.cget("values") == ["The model's usual style", "Long: a paragraph", "Short: a sentence"]
    assert window.choices.style == ""
    window.model.set("Qwen/Qwen3-VL-4B-Instruct")
    window.show_rows()
    wait_for(app, lambda: window.note.cget("text") == "")
    assert window.choices.style == "tags"  # as it was chosen
