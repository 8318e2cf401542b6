"""What the dataset window knows of the images: found as training finds them, filtered, sorted and selected. No Tk."""

from dataclasses import replace

import pytest
from PIL import Image

from modules.config.ConceptConfig import ConceptConfig
from modules.config.files import config_from_values
from modules.data.concepts import scan
from modules.ui.models.CaptionWork import CaptionWork
from modules.ui.models.dataset_reading import find_item_masks, list_items, read_details
from modules.ui.models.DatasetView import DatasetItem, DatasetView
from modules.ui.models.Selection import Selection


@pytest.fixture
def folder(tmp_path):
    """Five images in two folders: one without a caption, one too small, one damaged, and one with a mask."""
    (tmp_path / "more").mkdir()
    for name, size, caption in (
        ("a.png", (96, 64), "fox, red fur"),
        ("b.png", (24, 16), "fox, snow"),
        ("c.png", (64, 96), ""),
        ("more/d.jpg", (128, 64), "a cat in the SNOW"),
    ):
        Image.new("RGB", size, "red").save(tmp_path / name)
        if caption:
            (tmp_path / name).with_suffix(".txt").write_text(caption, encoding="utf-8")
    Image.new("L", (96, 64)).save(tmp_path / "a-masklabel.png")
    (tmp_path / "broken.jpg").write_bytes(b"no image")
    (tmp_path / "broken.txt").write_text("fox", encoding="utf-8")
    return tmp_path


def config_of(folder, **settings):
    concepts = [{"path": str(folder), **settings}]
    return config_from_values({"concepts": concepts, "data": {"resolution": 64, "bucket_step": 8}})


def view_of(config) -> DatasetView:
    """A view with everything read."""
    listing = list_items(config, [0])
    view = DatasetView()
    view.take_items(read_details(config, listing.tables, listing.items, seconds=60))
    return view


def names(view) -> list[str]:
    return [view.items[number].path_below for number in view.shown]


def test_it_shows_the_images_that_training_finds_in_its_order(folder):
    config = config_of(folder, exclude="b.*")
    items = list_items(config, [0]).items
    trained = scan(config.concepts)
    assert [item.path for item in items if not item.path.endswith("broken.jpg")] == trained.paths
    assert len(items) == len(trained) + len(trained.unreadable)


def test_a_folder_that_is_gone_is_said_and_the_others_are_shown(folder):
    config = config_of(folder)
    config.concepts.append(replace(config.concepts[0], path=str(folder / "gone")))
    listing = list_items(config, [1, 0])
    assert len(listing.items) == 5
    (problem,) = listing.problems
    assert problem.startswith("concepts.1.path")
    assert "does not exist" in problem


@pytest.mark.parametrize(
    ("name", "shown"),
    [("no_caption", ["c.png"]), ("broken", ["broken.jpg"]), ("small", ["b.png"])],
)
def test_a_filter_leaves_the_images_that_it_counts(folder, name, shown):
    view = view_of(config_of(folder))
    view.filter_name = name
    view.update()
    assert names(view) == shown
    assert view.counts()[name] == len(shown)


def test_an_image_without_a_caption_is_known_before_anything_is_read(folder):
    view = DatasetView()
    view.take_items(list_items(config_of(folder), [0]).items)
    assert view.counts()["no_caption"] == 1


def test_a_fallback_is_a_caption(folder):
    assert view_of(config_of(folder, caption_fallback="a fox")).counts()["no_caption"] == 0


def test_masks_are_those_of_the_images_and_no_images_themselves(folder):
    config = config_of(folder)
    items = list_items(config, [0]).items
    masks = find_item_masks(config.concepts, items)
    assert dict(zip([item.path_below for item in items], masks, strict=True)) == {
        "a.png": str(folder / "a-masklabel.png"), "b.png": "", "broken.jpg": "", "c.png": "", "more/d.jpg": "",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("where", "text", "shown"),
    [
        ("caption", "snow", ["b.png", "more/d.jpg"]),
        ("caption", "FOX fur", ["a.png"]),
        ("tag", "fox", ["a.png", "b.png", "broken.jpg"]),
        ("tag", "fur", []),
        ("name", "more", ["more/d.jpg"]),
    ],
)
def test_a_search_finds_words_of_captions_whole_tags_or_names(folder, where, text, shown):
    view = view_of(config_of(folder))
    view.where, view.text = where, text
    view.update()
    assert names(view) == shown


def test_images_are_sorted_by_size_in_both_directions(folder):
    view = view_of(config_of(folder, exclude="c.png"))
    view.order = "size"
    view.update()
    assert names(view) == ["broken.jpg", "b.png", "a.png", "more/d.jpg"]
    view.is_descending = True
    view.update()
    assert names(view) == ["more/d.jpg", "a.png", "b.png", "broken.jpg"]


def test_reading_stops_when_its_time_is_over(folder):
    config = config_of(folder)
    assert len(read_details(config, {}, list_items(config, [0]).items, seconds=0)) == 1


# --- the selection ----------------------------------------------------------------------------------------------------


@pytest.fixture
def selection():
    made = Selection()
    made.show([10, 11, 12, 13, 14, 15])
    return made


def test_shift_selects_from_where_the_selection_began_in_both_directions(selection):
    selection.choose(12)
    selection.extend_to(14)
    assert selection.in_order == [12, 13, 14]
    selection.extend_to(11)
    assert selection.in_order == [11, 12]
    assert selection.current == 11


def test_ctrl_adds_and_takes_away_single_ones_and_ranges(selection):
    selection.choose(10)
    selection.toggle(12)
    selection.extend_to(14, keeps=True)
    selection.toggle(13)
    assert selection.in_order == [10, 12, 14]


def test_what_is_no_longer_shown_is_not_selected_and_its_neighbour_becomes_current(selection):
    selection.choose(12)
    selection.show([10, 11, 13, 14, 15])  # as when its missing caption was written, under the filter for those
    assert (selection.current, selection.numbers) == (13, {13})
    selection.take_all()
    selection.show([10, 11])
    assert selection.numbers == {10, 11}


@pytest.mark.parametrize("has_folder", [True, False])
def test_undo_of_masks_concerns_the_images_that_they_are_of(tmp_path, has_folder):
    folder, masks = tmp_path / "images", tmp_path / "masks"
    concept = ConceptConfig(path=str(folder), mask_folder=str(masks) if has_folder else "")
    names = ("a.png", "more/a.jpg", "more/b.png")
    items = [DatasetItem(str(folder / name), 0, name) for name in names]
    mask = masks / "more/a.png" if has_folder else folder / "more/A-masklabel.png"
    others = [str(folder / "b-mask.png"), str(tmp_path / "elsewhere/a.png"), str(tmp_path / "masks-old/a.png")]
    touched = CaptionWork({0: concept}, tmp_path / "state").touched(0, items, [str(mask), *others])
    assert [item.path_below for item in touched] == ["more/a.jpg"]
