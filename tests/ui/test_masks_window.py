"""The window in which a model makes masks, over the dataset window, with a small ONNX file."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from modules.ui.models.MaskerChoices import WAYS, MaskerChoices
from tests.support.caption_script import use_caption_script
from tests.support.onnx_file import write_brightness
from tests.support.pictures import write_pictures

NUM_IMAGES = 5


@pytest.fixture
def images(tmp_path, monkeypatch) -> Path:
    """Five images, bright in their right half, of which the second has a mask that was painted by hand."""
    use_caption_script(tmp_path, monkeypatch)
    folder = write_pictures(tmp_path / "images", [(64, 48)] * NUM_IMAGES, captions=["fox"] * NUM_IMAGES)
    for path in folder.glob("*.png"):
        image = Image.new("RGB", (64, 48))
        image.paste((240, 240, 240), (32, 0, 64, 48))
        image.save(path)
    Image.new("L", (64, 48), 77).save(folder / "001_mask.bmp")
    return folder


@pytest.fixture
def dataset(make_app, tmp_path, images, show_dataset):
    """The dataset window of a window that keeps its state."""
    return show_dataset(make_app(tmp_path / "window", tab="tools"), images)


@pytest.fixture
def window(dataset, tmp_path):
    pytest.importorskip("onnxruntime", reason="the optional package for ONNX files is not installed")
    dataset.caption.buttons["masker"].invoke()
    made = dataset.caption.masker.window
    made.way.set(WAYS["subject"].label)
    made.show_rows()
    made.subject_model.insert(0, str(write_brightness(tmp_path / "u2net.onnx", side=16)))
    return made


def masks_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*mask*"))


def test_a_preview_shows_the_masks_over_their_images_and_writes_nothing(window, images, wait_for):
    app = window.app
    window.panel.buttons["preview"].invoke()
    wait_for(app, lambda: window.panel.run is None)
    assert window.panel.state.cget("text") == "A preview: nothing was written."
    assert [text.cget("text") for text in window.previews.texts] == ["50% of it is learned."] * 3
    wait_for(app, lambda: all(picture.cget("image") is not None for picture in window.previews.pictures))
    shown = np.asarray(window.previews.pictures[0].cget("image")._light_image)
    height, width = shown.shape[:2]
    assert min(height / 48, width / 64) * app.theme.scaled(1) >= 2  # large enough to be judged
    assert tuple(shown[height // 2, width // 4]) == (0, 0, 0)
    assert shown[height // 2, width * 3 // 4, 0] > shown[height // 2, width * 3 // 4, 1] + 60  # colored
    assert len({picture.winfo_rooty() for picture in window.previews.pictures}) == 1  # side by side
    small = window.previews.pictures[0].cget("image")._size
    window.previews.pictures[0].invoke()
    wait_for(app, lambda: window.previews.pictures[0].cget("image")._size[0] > 2 * small[0])
    assert masks_in(images) == ["001_mask.bmp"]
    assert app.preferences.masker["way"] == "subject"
    kept = Path(window._folder.name)
    window.destroy()
    assert not kept.exists()


def test_a_preview_takes_whole_images_and_a_run_names_the_one_that_has_failed(window, dataset, images, wait_for):
    app, damaged = window.app, images / "002.png"
    damaged.write_bytes(damaged.read_bytes()[:-30])
    dataset.refresh()
    wait_for(app, lambda: dataset.view.counts()["broken"] == 1 and dataset.view.num_read == NUM_IMAGES)
    assert str(damaged) not in window.parts(False, "", preview=True)[0].paths
    window.panel.buttons["start"].invoke()
    wait_for(app, lambda: window.panel.run is None)
    assert "The last to fail was 002.png: image file is truncated" in window.panel.state.cget("text")


def test_masks_appear_as_they_are_written_and_those_by_hand_stay(window, dataset, images, wait_for):
    app = window.app
    by_hand = (images / "001_mask.bmp").read_bytes()
    window.panel.buttons["start"].invoke()
    wait_for(app, lambda: window.panel.run is None)
    assert window.panel.state.cget("text") == "4 images done. 1 image keeps its mask."
    wait_for(app, lambda: dataset.view.counts()["no_mask"] == 0 and dataset.view.items[4].mask)
    assert len(masks_in(images)) == 5
    assert dataset.caption.buttons["masker"].cget("text") == "Make masks…"
    window.replaces.select()
    window.panel.start()
    wait_for(app, lambda: window.panel.run is None)
    assert "001_mask.bmp" not in masks_in(images)
    for _ in range(2):
        dataset.caption.step("undo")
    wait_for(app, lambda: masks_in(images) == ["001_mask.bmp"] and dataset.view.counts()["no_mask"] == 4)
    assert (images / "001_mask.bmp").read_bytes() == by_hand


def test_a_run_is_for_what_the_filter_shows_unless_all_are_chosen(window, dataset, images, wait_for):
    app = window.app
    assert list(window._texts.values()) == ["Selected (1)", "All (5)"]
    dataset.bar.search.insert(0, "003")
    dataset.view.where = "name"
    dataset.bar._search()
    wait_for(app, lambda: list(window._texts.values()) == ["Selected (1)", "Shown (1)", "All (5)"])
    assert window.which.get() == "Shown (1)"
    window.panel.start()
    wait_for(app, lambda: window.panel.run is None)
    assert masks_in(images) == ["001_mask.bmp", "003-masklabel.png"]
    window.replaces.select()
    window.panel.take_back()
    wait_for(app, lambda: masks_in(images) == ["001_mask.bmp"])
    run, _ = window.start_run(preview=False)
    assert "--restart" in run._options  # what a canceled run had done is not there any more
    window.panel.take_back()
    assert "is not the last change any more" in window.panel.state.cget("text")


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({}, "Words: are empty"),
        ({"words_model": " "}, "Model: is empty; choose a folder or a model on the Hub, such as CIDAS/clipseg"),
        ({"way": "subject"}, "Model: is empty; choose an .onnx file"),
        ({"way": "alpha", "threshold": "2"}, "Threshold '2': is not a number from 0 to 1"),
        ({"way": "alpha", "grow": "1.5"}, "Grow by '1.5': is not a whole number from -512"),
        ({"way": "alpha", "feather": "-1"}, "Feather by '-1': is not a whole number from 0"),
    ],
)
def test_what_can_not_start_is_said_in_a_sentence(choices, message):
    from modules.config.errors import UserError

    with pytest.raises(UserError) as caught:
        MaskerChoices(**choices).check()
    assert str(caught.value).startswith(message)


def test_choices_become_options_and_what_is_kept_is_checked():
    choices = MaskerChoices(words=" face, hair", grow="-3", soft=True, threshold="0.3")
    options = ["--model=CIDAS/clipseg-rd64-refined", "--prompt=face, hair", "--grow=-3", "--feather=0", "--soft"]
    assert choices.options() == options
    assert MaskerChoices(way="alpha", words="face").options(True)[-1] == "--overwrite"
    assert MaskerChoices.of_values(choices.to_values()) == choices
    assert MaskerChoices.of_values({"way": "magic", "painter_way": 1, "grow": 3}) == MaskerChoices()
