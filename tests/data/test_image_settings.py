"""Image settings leave images out and crop them: training sees what it would see of a folder saved like that."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from modules.config.files import config_from_values
from modules.config.ModelConfig import ModelConfig
from modules.data.cache_keys import latent_keys
from modules.data.caching import cache_latents
from modules.data.concepts import scan
from modules.data.conditions import conditions_of
from modules.data.decoding import decoded_or_reason
from modules.data.errors import DataError
from modules.data.FileHashes import FileHashes
from modules.data.health import check_health
from modules.data.images import to_array
from modules.data.ImageSettings import Crop, ImageSetting, ImageSettings, settings_file
from modules.data.prepare import prepare_data
from modules.data.run_summary import image_warnings
from modules.data.RunPlan import samples_digest
from modules.data.TensorCache import TensorCache
from modules.families.registry import FAMILIES
from modules.weights.BaseModel import BaseModel
from tests.data.test_kept_keys import NamesAsHashes
from tests.support.pictures import draw_picture, write_layers, write_pictures

CROP = Crop(9, 6, 36, 24)
BOX = (9, 6, 45, 30)
BASE = SimpleNamespace(family=FAMILIES["sd15"], component_files=lambda *names: list(names), dtype="torch.float32")


def write_settings(folder: Path, images: dict[str, ImageSetting]) -> Path:
    path = Path(settings_file(str(folder)))
    path.write_bytes(ImageSettings({}).with_images(images).to_bytes())
    return path


def config_of(folder: Path, family: str = "sd15", concept=None, **values):
    return config_from_values({
        "family": family,
        "concepts": [{"path": str(folder), **(concept or {})}],
        "data": {"resolution": 32, "bucket_step": 32, **values.pop("data", {})},
        "seed": 3,
        **values,
    })  # fmt: skip


# --- the file ---------------------------------------------------------------------------------------------------------


def test_each_image_has_a_line_and_what_is_written_is_read():
    settings = ImageSettings({}).with_images({
        "people/Ann é.jpg": ImageSetting(crop=Crop(120, 0, 900, 900)),
        "b.jpg": ImageSetting(left_out=True),
        "plain.jpg": ImageSetting(),
        "odd\udcff.jpg": ImageSetting(left_out=True),
    })  # fmt: skip
    text = settings.to_bytes().decode("utf-8", "surrogatepass")
    assert text.splitlines()[:4] == [
        "{",
        '  "version": 1,',
        '  "images": {',
        '    "b.jpg": {"left_out": true},',
    ]
    assert '    "people/Ann é.jpg": {"crop": {"x": 120, "y": 0, "width": 900, "height": 900}}\n' in text
    assert ImageSettings.parse(settings.to_bytes(), "") == settings
    assert settings.with_images({name: ImageSetting() for name in settings.images}) == ImageSettings({})


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[]", "it is [], not an object with version, images"),
        ("{", "Expecting property name"),
        ('{"images": {}}', '"version" is missing'),
        ('{"version": 2}', "from a later Chorus"),
        ('{"version": 1, "pictures": {}}', 'it has an unknown key "pictures"; known are version, images'),
        ('{"version": 1, "images": {"a.png": {"skip": true}}}', "the entry of 'a.png' has an unknown key \"skip\""),
        ('{"version": 1, "images": {"a.png": {"left_out": 1}}}', "neither true nor false"),
        ('{"version": 1, "images": {"a.png": {"crop": {"x": 0}}}}', '"y" of the crop in the entry of'),
        (
            '{"version": 1, "images": {"a.png": {"crop": {"x": 0, "y": -1, "width": 1, "height": 1}}}}',
            "is -1, not a number of pixels from 0 on",
        ),
        (
            '{"version": 1, "images": {"a.png": {"crop": {"x": 0, "y": 0, "width": 0, "height": 1}}}}',
            "is 0, not a number of pixels from 1 on",
        ),
    ],
)
def test_what_is_no_setting_is_refused_with_the_file_and_the_entry(content, said, tmp_path):
    write_pictures(tmp_path / "pictures")
    path = Path(settings_file(str(tmp_path / "pictures")))
    path.write_text(content)
    with pytest.raises(DataError) as error:
        scan(config_of(tmp_path / "pictures").concepts)
    assert said in str(error.value)
    assert str(error.value).startswith(f"concepts.0.path: {path} can't be used: ")


# --- images that are left out -----------------------------------------------------------------------------------------


def test_images_that_are_left_out_are_counted_and_not_trained(tmp_path):
    folder = write_pictures(tmp_path / "pictures")
    write_settings(folder, {name: ImageSetting(left_out=True) for name in ("001.png", "002.png", "gone.png")})
    config = config_of(folder)
    dataset, _ = prepare_data(config, FAMILIES["sd15"])
    assert [Path(path).name for path in dataset.paths] == ["000.png", "003.png"]
    assert "2 images are left out, as image_settings.json says." in list(image_warnings(config, dataset))
    found = {finding.kind: finding for finding in check_health(config).findings}
    assert (found["set_aside"].count, found["set_aside"].level) == (2, "note")
    assert "lonely_caption" not in found


def test_a_concept_whose_images_are_all_left_out_is_refused(tmp_path):
    folder = write_pictures(tmp_path / "pictures", [(8, 8)])
    write_settings(folder, {"000.png": ImageSetting(left_out=True)})
    with pytest.raises(DataError, match=r"image_settings\.json leaves all of its images out; take some back"):
        scan(config_of(folder).concepts)


# --- crops ------------------------------------------------------------------------------------------------------------


def test_a_crop_beyond_its_image_is_refused(tmp_path):
    folder = write_pictures(tmp_path / "pictures", [(64, 48)])
    write_settings(folder, {"000.png": ImageSetting(crop=Crop(60, 0, 5, 5))})
    with pytest.raises(DataError, match=r"concepts\.0\.path: .*crops .*000\.png to 5 x 5 .* the image is 64 x 48"):
        scan(config_of(folder).concepts)


def masked(folder: Path) -> dict:
    mask = Image.new("L", (64, 48), 0)
    mask.paste(255, (20, 3, 40, 26))
    mask.save(folder / "pictures" / "000-mask.png")
    return {}


def referenced(folder: Path) -> dict:
    """One reference that shows the same pixels, and one of another shape, of which the crop says nothing."""
    (folder / "references").mkdir()
    draw_picture(9, (64, 48)).save(folder / "references" / "000_0.png")
    draw_picture(5, (32, 40)).save(folder / "references" / "000_1.png")
    return {"reference_folder": str(folder / "references")}


def layered(folder: Path) -> dict:
    return {"layer_folder": str(write_layers(folder / "layers", folder / "pictures"))}


def save_cropped(folder: Path) -> None:
    """Crops each image of this shape below a folder for good."""
    for path in folder.rglob("*.png"):
        with Image.open(path) as image:
            part = image.crop(BOX) if image.size == (64, 48) else image.copy()
        part.save(path)


@pytest.mark.parametrize(
    ("family", "beside", "values"),
    [
        ("sdxl", masked, {"loss": {"masked_training": True}}),
        ("sd15_inpaint", masked, {}),
        ("flux2_klein", referenced, {}),
        ("qwen_image_edit_plus", referenced, {}),
        ("qwen_image_layered", layered, {}),
    ],
)
def test_a_crop_trains_like_a_copy_that_is_saved_like_that(family, beside, values, tmp_path):
    augmentation = {"flip": True, "crop_jitter": True, "rotation": 5.0}
    decoded = []
    for name in ("settings", "saved"):
        folder = tmp_path / name
        write_pictures(folder / "pictures", [(64, 48)])
        concept = {**beside(folder), "augmentation": augmentation}
        if name == "saved":
            save_cropped(folder)
        else:
            write_settings(folder / "pictures", {"000.png": ImageSetting(crop=CROP)})
        config = config_of(folder / "pictures", family, concept, **values)
        dataset, buckets = prepare_data(config, FAMILIES[family])
        assert (dataset.widths[0], dataset.heights[0]) == (36, 24)
        conditions = conditions_of(FAMILIES[family])
        for sample in range(len(dataset)):
            found = decoded_or_reason(dataset, buckets, sample, conditions)
            assert not isinstance(found, str), found
            texts = [one.images_of_text(dataset, buckets, sample) for one in conditions]
            decoded.append((found, [np.asarray(image) for images in texts for image in images]))
    half = len(decoded) // 2
    assert half > 1
    for (by_settings, texts), (saved, texts_of_saved) in zip(decoded[:half], decoded[half:], strict=True):
        assert np.array_equal(by_settings.pixels, saved.pixels)
        assert (by_settings.mask is None) == (saved.mask is None)
        assert by_settings.mask is None or np.array_equal(by_settings.mask, saved.mask)
        assert by_settings.loaded.keys() == saved.loaded.keys()
        for name, loaded in by_settings.loaded.items():
            assert loaded is None or all(map(np.array_equal, loaded, saved.loaded[name]))
        assert all(map(np.array_equal, texts, texts_of_saved))


def test_what_is_cached_of_a_crop_is_what_is_cached_of_its_copy(tiny_sd15, tmp_path):
    base = BaseModel(FAMILIES["sd15"], ModelConfig(base=str(tiny_sd15)), torch.device("cpu"))
    entries = []
    for name in ("settings", "saved"):
        folder = write_pictures(tmp_path / name / "pictures", [(64, 48)])
        masked(tmp_path / name)
        if name == "saved":
            save_cropped(tmp_path / name)
        else:
            write_settings(folder, {"000.png": ImageSetting(crop=CROP)})
        dataset, buckets = prepare_data(config_of(folder, loss={"masked_training": True}), FAMILIES["sd15"])
        keys = latent_keys(dataset, buckets, base, FileHashes(tmp_path / name / "hashes", 0))
        cache = TensorCache(tmp_path / name / "cache", "latents", 0)
        assert cache_latents(dataset, buckets, keys, cache, base) == {}
        entries.append(cache.get(keys[0]))
    assert all(torch.equal(value, entries[1][name]) for name, value in entries[0].items())
    assert 0 < entries[0]["mask"].mean() < 1


def test_a_crop_holds_for_every_frame_of_a_clip_and_for_the_one_that_texts_see(tmp_path):
    for number in range(9):
        for name in ("one", "two"):
            (tmp_path / "clips" / name).mkdir(parents=True, exist_ok=True)
            draw_picture(number, (48, 32)).save(tmp_path / "clips" / name / f"{number}.png")
    concept = {"frame_folders_fps": 24.0}
    write_settings(tmp_path / "clips", {"one": ImageSetting(crop=Crop(8, 0, 32, 32))})
    family = FAMILIES["hunyuan_video_i2v"]
    config = config_of(tmp_path / "clips", family.name, concept, data={"frames": 9})
    dataset, buckets = prepare_data(config, family)
    assert dataset.widths.tolist() == [32, 48]
    found = decoded_or_reason(dataset, buckets, 0, [])
    expected = [to_array(draw_picture(number, (48, 32)).crop((8, 0, 40, 32))) for number in range(9)]
    assert np.array_equal(list(found.frames()), expected)
    ((seen,),) = (one.images_of_text(dataset, buckets, 0) for one in conditions_of(family))
    assert np.array_equal(to_array(seen), expected[0])
    assert decoded_or_reason(dataset, buckets, 1, []).num_frames == 9


def test_a_changed_crop_changes_the_key_of_that_image_alone(tmp_path):
    folder = write_pictures(tmp_path / "pictures", [(64, 48)] * 3)
    config, family, seen = config_of(folder), FAMILIES["sd15"], []
    for settings in (
        {},
        {"001.png": ImageSetting(crop=Crop(0, 0, 64, 48))},  # all of it
        {"001.png": ImageSetting(crop=CROP)},
        {"001.png": ImageSetting(crop=Crop(10, 6, 36, 24))},
        {"002.png": ImageSetting(crop=CROP)},
    ):
        write_settings(folder, settings)
        dataset, buckets = prepare_data(config, family)
        seen.append((latent_keys(dataset, buckets, BASE, NamesAsHashes()), samples_digest(dataset)))
    keys, digests = [found for found, _ in seen], [digest for _, digest in seen]
    assert seen[0] == seen[1]
    assert len(set(digests)) == 4
    assert keys[2][0] == keys[3][0] == keys[0][0]
    assert keys[2][2] == keys[3][2] == keys[0][2]
    assert len({keys[0][1], keys[2][1], keys[3][1]}) == 3
