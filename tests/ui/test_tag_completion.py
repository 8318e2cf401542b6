"""Tags are suggested while a caption is typed: what for, in which order, and how keys take them."""

import threading

import pytest
from PIL import Image

from modules.config.ConceptConfig import ConceptConfig
from modules.ui.models.DatasetView import DatasetItem
from modules.ui.models.TagSuggestions import TagSuggestions, TypedTag, is_tag_list, typed_tag
from tests.support.waiting import PATIENCE_SECONDS


def items_of(*captions: str) -> list[DatasetItem]:
    return [DatasetItem(f"/{n}.png", 0, f"{n}.png", captions=(text,)) for n, text in enumerate(captions)]


def tags(*arguments) -> list[str]:
    found = TagSuggestions(lambda number: ConceptConfig()).find(*arguments)
    return [one.tag for one in found.tags]


def test_tags_of_the_concept_are_suggested_but_none_that_the_caption_has():
    items = items_of("fox, long hair", "fox, long hair, long coat", "fox, longing", "a, b")
    items[3].concept = 1
    assert tags(items, 0, "fox, longing", "lo") == ["long hair", "long coat"]
    assert tags(items, 0, "", "coat") == ["long coat"]
    assert tags(items, 0, "fox, long hair", "longign") == ["longing"]
    assert TagSuggestions(lambda number: ConceptConfig()).find(items, 0, "", "Fox") == ([], True)


def test_captions_that_have_changed_are_indexed_again():
    items, suggestions = items_of("fox, snow", "fox, ice"), TagSuggestions(lambda number: ConceptConfig())
    assert not suggestions.find(items, 0, "", "sun").tags
    items[1].captions = ("fox, sunset",)
    assert [one.tag for one in suggestions.find(items, 0, "", "sun").tags] == ["sunset"]
    assert not suggestions.find(items, 0, "", "ice").tags


def test_sentences_are_no_tags_though_they_have_commas():
    sentence = "photo of zxk cat on a windowsill, seen from the side, morning light"
    assert not is_tag_list(sentence, ConceptConfig())
    assert is_tag_list("zxk cat, sitting, windowsill, from side", ConceptConfig())
    assert not is_tag_list("zxk, cat", ConceptConfig(tag_separator=" "))
    assert tags(items_of(sentence, sentence), 0, "", "mor") == []
    assert tags(items_of(sentence, "cat, morning light"), 0, sentence, "mor") == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("fox, lo|", TypedTag(5, "lo")),
        ("lo|, fox", TypedTag(0, "lo")),
        ("fox,  long ha|\nb", TypedTag(6, "long ha")),
        ("fox, l|", None),
        ("fox, \u9577|", TypedTag(5, "\u9577")),
        ("fox, lo|ng", None),
        ("fox, |", None),
    ],
)
def test_the_tag_before_the_cursor_is_what_is_typed(text, expected):
    assert typed_tag(text.replace("|", ""), text.index("|"), ConceptConfig()) == expected


@pytest.fixture
def window(app, tmp_path, show_dataset):
    folder = tmp_path / "foxes"
    folder.mkdir()
    for number, text in enumerate(("fox", "fox, snow, snowdrift", "fox, snow, sleeping")):
        Image.new("RGB", (64, 64), (80 * number, 100, 50)).save(folder / f"{number}.png")
        (folder / f"{number}.txt").write_text(text, encoding="utf-8")
    return show_dataset(app, folder)


def test_keys_take_move_and_close_and_undo_goes_back_to_what_was_typed(app, window, wait_for, settle):
    pane, box, shown = window.caption, window.caption.box._textbox, window.caption.completion.list

    def key(*names: str) -> None:
        for name in names:
            box.focus_force()
            box.event_generate(f"<KeyPress-{name}>")
            box.event_generate(f"<KeyRelease-{name}>")
            app.update()

    settle(app)
    wait_for(app, lambda: not window.caption.completion._is_finding)
    box.focus_force()
    box.mark_set("insert", "end")
    key("comma", "space", "s", "n")
    wait_for(app, lambda: shown.is_open)
    assert [text for text, _ in shown._rows] == ["snow", "snowdrift"]
    left = shown._canvas.winfo_rootx()
    box.master.grid_configure(padx=(40, 0))  # the pane is laid out anew
    settle(app)
    assert shown.is_open
    assert shown._canvas.winfo_rootx() > left
    key("Escape")
    assert not shown.is_open
    assert app.focus_get() is box  # the window's Escape would have left it
    key("o")
    wait_for(app, lambda: shown.is_open)
    key("Down", "Return")
    assert pane.text == "fox, snowdrift"
    assert not shown.is_open
    pane.step("undo")
    assert pane.text == "fox, sno"
    pane.step("redo")
    assert pane.text == "fox, snowdrift"
    key("comma", "s", "l")
    wait_for(app, lambda: shown.is_open)
    key("Tab")
    assert pane.text == "fox, snowdrift,sleeping"
    key("Tab")  # nothing is suggested: on to the next part of the window
    assert app.focus_get() is not box
    pane.use(None, list)


def test_tags_that_are_found_while_the_focus_is_elsewhere_are_suggested_when_it_is_back(
    app, window, wait_for, settle, monkeypatch
):
    pane, box = window.caption, window.caption.box._textbox
    completion, is_indexed = pane.completion, threading.Event()
    settle(app)
    wait_for(app, lambda: not completion._is_finding)
    find = TagSuggestions.find
    monkeypatch.setattr(TagSuggestions, "find", lambda *given: is_indexed.wait(PATIENCE_SECONDS) and find(*given))
    box.focus_force()
    app.update()
    box.insert("end", ", sn")
    box.mark_set("insert", "end-1c")
    box.event_generate("<KeyRelease-n>")
    window.cells.canvas.focus_force()
    app.update()
    is_indexed.set()
    wait_for(app, lambda: not completion._is_finding)
    assert not completion.list.is_open
    box.focus_force()
    wait_for(app, lambda: completion.list.is_open)
    assert [text for text, _ in completion.list._rows] == ["snow", "snowdrift"]
