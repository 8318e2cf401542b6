"""The figures of a dataset as charts, and the window that shows them."""

import pytest
from PIL import Image

from modules.ui.models.figure_charts import charts_of, summary_of
from modules.ui.models.FiguresReading import KnownFigures
from modules.ui.windows.StatisticsWindow import StatisticsWindow

FOUND = {
    "num_images": 8, "num_clips": 0, "num_cropped": 1, "num_set_aside": 2, "batch": 4, "mixed_share": 0.25,
    "aspects": {"1:1": 6, "5:4": 2}, "sides": {"512 to 767": 2, "768 to 1023": 0, "1024 to 1535": 6},
    "upscaling": {"not upscaled": 8}, "words": {"1 to 9": 8}, "tokens": {}, "tags": {}, "num_tags": 0,
    "single_tags": [], "num_single_tags": 0, "seconds": {},
    "buckets": [
        {"name": "64x64", "samples": 6.0, "whole_steps": 1, "rest": 2.0},
        {"name": "80x48", "samples": 2.0, "whole_steps": 0, "rest": 2.0},
    ],
}  # fmt: skip


def charts(**changes) -> dict:
    known = KnownFigures({**FOUND, **changes}, "", (1024,), 75, 2)
    return {chart.figure: chart for chart in charts_of(known)}


def test_charts_are_those_with_something_to_show_and_buckets_say_how_they_fill_steps():
    assert list(charts()) == ["aspects", "buckets", "sides", "upscaling", "words"]
    buckets = charts()["buckets"]
    assert [(bar.text, bar.dark) for bar in buckets.bars] == [("6 = 1 x 4 + 2", 2.0), ("2 = 0 x 4 + 2", 2.0)]
    assert "25% are left over" in buckets.note
    text = summary_of(KnownFigures(FOUND, "", (1024,), 75, 2))
    assert text == "8 images; 1 cropped; 2 left out; 8 samples an epoch, in 2 steps of 4 on 2 GPUs."
    without_gpu = summary_of(KnownFigures(FOUND, "", (1024,), 75, 2, has_gpus=False))
    assert without_gpu.endswith("in 2 steps of 4 on 2 processes.")


def test_the_training_resolution_and_what_the_base_model_reads_are_marked():
    (mark,) = charts()["sides"].marks
    assert (mark.place, mark.text) == (2, "training resolution 1024")
    lengths = charts(tokens={"40 to 75": 3, "76 to 150": 1})
    assert "words" not in lengths
    assert [mark.place for mark in lengths["tokens"].marks] == [1]


def test_many_bars_are_cut_and_the_others_counted():
    tags = charts(tags={f"tag {number}": 100 - number for number in range(100)}, num_tags=300)["tags"]
    assert (len(tags.bars), tags.more, tags.note) == (24, "and 76 more", "Of 300 tags in captions.")


@pytest.fixture
def folder(tmp_path):
    """Six square images and two wide ones."""
    path = tmp_path / "foxes"
    path.mkdir()
    for number in range(8):
        Image.new("RGB", (64 if number < 6 else 128, 64), (30 * number, 100, 50)).save(path / f"{number}.png")
        (path / f"{number}.txt").write_text("fox, snow" if number else "fox, sun", encoding="utf-8")
    return path


@pytest.fixture
def window(app, folder, wait_for, monkeypatch):
    from modules.ui.windows.DatasetWindow import open_dataset

    monkeypatch.setattr("modules.ui.windows.DatasetWindow.NUM_DECODERS", 0)
    monkeypatch.setattr("modules.curation.Journal.window_state_folder", lambda: folder.parent / "state")
    values = {"concepts.0.path": str(folder), "data.resolution": 64, "concepts.1.enabled": False}
    # a model that is not here: a tokenizer would take a process of its own, which test_token_counts.py looks at
    app.settings.set_many(values | {"model.base": str(folder.parent / "no-model")})
    dataset = open_dataset(app, 0)
    wait_for(app, lambda: dataset.view.items)
    dataset.head.buttons["Statistics…"].invoke()
    return next(one for one in app.root.winfo_children() if type(one) is StatisticsWindow)


def test_a_click_on_a_bar_shows_its_images_in_the_dataset_window(app, window, wait_for):
    from modules.ui.windows.dataset_tools import open_statistics
    from modules.ui.windows.DatasetWindow import open_dataset

    wait_for(app, lambda: window.state_label.cget("text").startswith("8 images; 8 samples an epoch"))
    wait_for(app, lambda: not window._shown.reading)
    aspects = window.charts["aspects"]
    wait_for(app, lambda: aspects.winfo_height() > 40)
    assert [bar.label for bar in aspects.chart.bars] == ["1:1", "5:4", "4:3", "3:2", "16:9", "2:1"]
    top, bottom = aspects._edges[5]
    aspects.event_generate("<Button-1>", x=20, y=(top + bottom) // 2)
    app.update()
    dataset = open_dataset(app, 0)
    assert dataset.view.shown == [6, 7]
    assert "Aspect ratios: 2:1" in dataset.head.state.cget("text")
    dataset.hide()  # a bar opens it again, and waits until the images are found
    tags = window.charts["single_tags"]
    wait_for(app, lambda: not dataset.winfo_ismapped())  # whose focus goes elsewhere when it is gone
    tags.focus_force()
    wait_for(app, lambda: tags.focus_get() is tags)
    tags.event_generate("<Leave>")  # keys go on from the bar below the mouse, over which the other window was
    tags.event_generate("<Down>")
    tags.event_generate("<Return>")
    wait_for(app, lambda: dataset.view.shown == [0])
    assert dataset.bar.chips["picked"].cget("text") == "Picked  1"
    app.settings.set("concepts.0.path", "/nowhere")
    open_statistics(app, 0)
    window.read()
    wait_for(app, lambda: "does not exist" in window.state_label.cget("text"))
    assert not any(card.winfo_ismapped() for card, _, _ in window._cards.values())
