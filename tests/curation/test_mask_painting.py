"""A painted mask: strokes, areas, edges and undo, and the file that it is saved in."""

import sys

import numpy as np
import pytest
from PIL import Image

import modules.curation.MaskPainting as painting_module
from modules.config.ConceptConfig import ConceptConfig
from modules.curation.color_regions import connected_part, similar_region
from modules.curation.FileChanges import ChangedOutside
from modules.curation.Journal import Journal
from modules.curation.mask_files import MaskFile
from modules.curation.MaskPainting import BLACK, Brush, MaskPainting
from modules.data.concepts import scan
from modules.data.masks import find_masks, mask_beside


def black(width=64, height=48) -> MaskPainting:
    return MaskPainting(np.zeros((height, width), np.uint8))


def stroke(mask: MaskPainting, brush: Brush, *points: tuple[float, float]) -> None:
    mask.begin_stroke(brush, *points[0])
    for point in points[1:]:
        mask.stroke_to(*point)
    mask.end_stroke()


# --- painting ---------------------------------------------------------------------------------------------------------


def test_a_stroke_covers_all_that_is_within_its_radius_and_nothing_else():
    mask = black()
    stroke(mask, Brush(11), (10.5, 20.5), (50.5, 20.5))
    y, x = np.mgrid[:48, :64]
    distance = np.hypot(x - x.clip(10, 50), y - 20)
    assert (mask.values[distance <= 4.5] == 255).all()
    assert (mask.values[distance >= 6.5] == 0).all()


def test_a_soft_edge_fades_and_going_over_it_again_leaves_it():
    mask = black()
    stroke(mask, Brush(20, softness=1.0), (32, 24))
    row = mask.values[24, 32:44].astype(int)
    assert row[0] == 255
    assert row[-1] == 0
    assert (np.diff(row) <= 0).all()
    assert len(set(row)) > 8
    before = mask.values.copy()
    stroke(mask, Brush(20, softness=1.0), (32, 24), (32, 24))
    assert np.array_equal(mask.values, before)


def test_the_eraser_takes_away_what_the_brush_has_painted():
    mask = black()
    stroke(mask, Brush(9), (20, 20))
    stroke(mask, Brush(11, erases=True), (20, 20))
    assert not mask.values.any()


def test_strokes_and_areas_may_leave_the_image():
    mask = black()
    stroke(mask, Brush(30), (-40, -40), (5, 5), (400, 90))
    mask.fill_rectangle((60, 40), (900, 900))
    mask.fill_polygon([(-20, 20), (10, 20), (-20, 400)])
    assert mask.values[47, 63] == mask.values[0, 0] == mask.values[40, 0] == 255
    for _ in range(3):
        mask.undo()
    assert not mask.values.any()


def test_areas_edges_and_inversion():
    mask = black()
    mask.fill_rectangle((40.2, 30.9), (10.5, 20.5))  # drawn from the lower right corner
    expected = np.zeros((48, 64), np.uint8)
    expected[20:31, 10:41] = 255
    assert np.array_equal(mask.values, expected)
    mask.feather(3)
    assert 0 < mask.values[25, 9] < mask.values[25, 11] < 255
    mask.invert()
    assert mask.values[0, 0] == 255
    mask.fill_all(BLACK)
    mask.fill_polygon([(5, 5), (25, 5), (5, 25)])
    assert mask.values[6, 6] == 255
    assert mask.values[24, 24] == 0


def test_fill_takes_what_is_connected_and_of_about_this_color():
    pixels = np.full((20, 30, 3), 200, np.uint8)
    pixels[:, 10:12] = 20  # a dark wall between two areas
    pixels[5, 3] = 190
    region = similar_region(pixels, 2, 2, tolerance=12)
    assert region[:, :10].all()
    assert not region[:, 10:].any()
    assert similar_region(pixels, 2, 2, tolerance=200).all()
    assert not similar_region(pixels, 2, 2, tolerance=5)[5, 3]


def test_connected_parts_of_noise_are_those_of_a_search_from_neighbor_to_neighbor():
    wanted = np.random.default_rng(7).random((40, 50)) < 0.6  # near where all of it is connected: long, winding parts
    ys, xs = np.nonzero(wanted)
    for number in range(0, len(ys), 97):
        assert np.array_equal(connected_part(wanted, xs[number], ys[number]), searched(wanted, ys[number], xs[number]))


def searched(wanted: np.ndarray, y: int, x: int) -> np.ndarray:
    found, waiting = np.zeros_like(wanted), [(y, x)]
    while waiting:
        y, x = waiting.pop()
        if 0 <= y < wanted.shape[0] and 0 <= x < wanted.shape[1] and wanted[y, x] and not found[y, x]:
            found[y, x] = True
            waiting += [(y + 1, x), (y - 1, x), (y, x + 1), (y, x - 1)]
    return found


# --- undo -------------------------------------------------------------------------------------------------------------


def test_any_number_of_edits_is_taken_back_and_made_again_pixel_for_pixel():
    draw, mask = np.random.default_rng(3), black()
    states = [mask.values.copy()]
    while len(states) < 40:
        x, y = draw.integers(-5, 70, 2)
        edits = (
            lambda x=x, y=y: stroke(mask, Brush(int(draw.integers(1, 30)), draw.random(), draw.random() < 0.4), (x, y)),
            lambda x=x, y=y: mask.fill_rectangle((x, y), (y, x)),
            mask.invert,
            lambda: mask.feather(2),
        )
        edits[draw.integers(4)]()
        if not np.array_equal(mask.values, states[-1]):
            states.append(mask.values.copy())
    for state in reversed(states[:-1]):
        mask.undo()
        assert np.array_equal(mask.values, state)
    assert mask.undo() is None
    for state in states[1:]:
        mask.redo()
        assert np.array_equal(mask.values, state)


def test_undo_takes_bounded_memory_and_drops_the_oldest_steps(monkeypatch):
    monkeypatch.setattr(painting_module, "MAX_UNDO_BYTES", 20_000)
    mask, draw = black(400, 300), np.random.default_rng(0)
    for _ in range(12):
        mask.replace(draw.integers(0, 256, (300, 400), dtype=np.uint8))  # noise, which can't be compressed
    kept = mask.values.copy()
    assert mask.undo_bytes < 2 * 400 * 300
    mask.undo()
    assert not mask.can_undo
    mask.redo()
    assert np.array_equal(mask.values, kept)
    for number in range(50):
        mask.fill_rectangle((number, 0), (number + 40, 40), number)
    assert mask.undo_bytes <= 20_000


def test_a_mask_is_unchanged_once_undo_has_led_back_to_what_was_saved():
    mask = black()
    mask.invert()
    mask.mark_saved()
    assert not mask.is_changed
    stroke(mask, Brush(8, erases=True), (20, 20))
    assert mask.is_changed
    mask.undo()
    assert not mask.is_changed
    mask.undo()
    assert mask.is_changed


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def image(tmp_path):
    """A JPEG that is stored on its side: 40 x 60 as a viewer shows it."""
    path = tmp_path / "images" / "cat.jpg"
    path.parent.mkdir()
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (60, 40), (90, 120, 30)).save(path, exif=exif)
    return path


def painted() -> np.ndarray:
    mask = black(40, 60)
    stroke(mask, Brush(15, 0.6), (5, 5), (30, 50))
    return mask.values


def save(image, concept, file, values):
    journal = Journal(concept.path, image.parent.parent / "state")
    journal.apply("Mask", file.changes(values))
    file.take_written()
    return journal


def test_a_mask_of_another_format_and_size_is_read_and_replaced_and_undo_brings_it_back(image):
    before = image.with_name("cat_mask.bmp")
    Image.fromarray(painted()[::2, ::2]).save(before)
    content, pixels = before.read_bytes(), image.read_bytes()
    concept = ConceptConfig(path=str(image.parent))
    file = MaskFile(str(image), concept)
    assert file.read((40, 60)).shape == (60, 40)
    journal = save(image, concept, file, painted())
    assert mask_beside(str(image)) == str(image.with_name("cat-masklabel.png"))
    assert not before.exists()
    assert np.array_equal(MaskFile(str(image), concept).read((40, 60)), painted())
    save(image, concept, file, None)  # removed
    assert mask_beside(str(image)) == ""
    journal.undo()
    journal.undo()
    assert [path.name for path in sorted(image.parent.iterdir())] == ["cat.jpg", "cat_mask.bmp"]
    assert before.read_bytes() == content
    assert image.read_bytes() == pixels


@pytest.mark.parametrize("in_folder", [False, True])
def test_after_removing_a_mask_training_reads_no_other_file_of_the_image(image, tmp_path, in_folder):
    names = ["cat.mask.png", "cat-masklabel.bmp", "CAT_mask.webp", "cat-masklabel.png"]
    folder = tmp_path / "masks" if in_folder else image.parent
    folder.mkdir(exist_ok=True)
    image.with_name("dog.jpg").write_bytes(image.read_bytes())
    for name in [*names, "dog_mask.png"]:
        Image.new("L", (40, 60), 255).save(folder / name)
    concept = ConceptConfig(path=str(image.parent), mask_folder=str(folder) if in_folder else "")
    file = MaskFile(str(image), concept)
    file.look()
    journal = save(image, concept, file, None)
    assert find_masks(scan([concept])) == [None, str(folder / "dog_mask.png")]
    journal.undo()
    assert {path.name for path in folder.glob("*mask*")} == {*names, "dog_mask.png"}


@pytest.mark.skipif(sys.platform != "linux", reason="needs names that differ by case alone")
def test_a_mask_of_an_image_of_the_same_name_in_lower_case_is_left_alone(image):
    other = image.with_name("Cat.jpg")
    other.write_bytes(image.read_bytes())
    theirs = image.with_name("cat_mask.png")
    Image.fromarray(painted()).save(theirs)
    concept = ConceptConfig(path=str(image.parent))
    file = MaskFile(str(other), concept)
    assert file.read((40, 60)) is not None  # as training reads it
    save(image, concept, file, painted())
    assert theirs.exists()


def test_in_a_mask_folder_a_mask_is_called_like_its_image(image, tmp_path):
    (tmp_path / "masks").mkdir()
    concept = ConceptConfig(path=str(image.parent), mask_folder=str(tmp_path / "masks"))
    file = MaskFile(str(image), concept)
    assert file.read((40, 60)) is None
    save(image, concept, file, painted())
    assert np.array_equal(np.asarray(Image.open(tmp_path / "masks/cat.png")), painted())


def test_a_mask_that_another_program_has_changed_is_not_overwritten(image):
    concept = ConceptConfig(path=str(image.parent))
    file = MaskFile(str(image), concept)
    file.read((40, 60))
    save(image, concept, file, painted())
    save(image, concept, file, 255 - painted())  # what was written here is no change by another program
    Image.new("L", (40, 60), 9).save(image.with_name("cat-masklabel.png"))
    with pytest.raises(ChangedOutside):
        save(image, concept, file, painted())
    file.look()
    save(image, concept, file, painted())


def test_transparency_is_the_mask_where_the_concept_takes_it(image):
    picture = Image.new("RGBA", (40, 60), (1, 2, 3, 255))
    picture.putalpha(Image.fromarray(painted()))
    path = image.with_name("dog.png")
    picture.save(path)
    for takes_alpha in (True, False):
        concept = ConceptConfig(path=str(image.parent), alpha_mask=takes_alpha)
        read = MaskFile(str(path), concept).read((40, 60))
        assert np.array_equal(read, painted()) if takes_alpha else read is None
