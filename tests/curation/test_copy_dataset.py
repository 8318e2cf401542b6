"""A cleaned copy trains like the original with its settings, and the original is not touched."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from modules.config.ConceptConfig import ConceptConfig
from modules.config.presets import ROOT
from modules.curation.copy_dataset import copy_dataset
from modules.data.concepts import captions, scan
from modules.data.conditions import conditions_of
from modules.data.decoding import decoded_or_reason
from modules.data.errors import DataError
from modules.data.ImageSettings import Crop, ImageSetting, ImageSettings
from modules.data.prepare import prepare_data
from modules.families.registry import FAMILIES
from scripts.copy_dataset import main
from tests.data.test_image_settings import CROP, config_of, layered, masked, referenced, write_settings
from tests.support.pictures import draw_picture, write_pictures
from tests.support.videos import write_video


def contents(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def with_config(concept: ConceptConfig, family: str, **values):
    config = config_of(Path(concept.path), family, **values)
    config.concepts = [concept]
    return config


def decoded(config, family: str):
    dataset, buckets = prepare_data(config, FAMILIES[family])
    conditions = conditions_of(FAMILIES[family])
    return [decoded_or_reason(dataset, buckets, sample, conditions) for sample in range(len(dataset))]


@pytest.mark.parametrize(
    ("family", "beside", "values"),
    [
        ("sdxl", masked, {"loss": {"masked_training": True}}),
        ("flux2_klein", referenced, {}),
        ("qwen_image_layered", layered, {}),
    ],
)
def test_a_copy_trains_like_the_original_with_its_settings(family, beside, values, tmp_path):
    folder = write_pictures(tmp_path / "pictures", [(64, 48), (64, 48), (48, 64)])
    draw_picture(3, (64, 48)).save(folder / "000.bmp")  # of the same name once it is cropped
    concept = config_of(folder, family, beside(tmp_path), **values).concepts[0]
    if not concept.layer_folder:  # all images there need layers
        (folder / "001.png").rename(folder / "001.webp")
    cropped = {"001.png": ImageSetting(crop=CROP), "001.webp": ImageSetting(crop=CROP)}
    write_settings(folder, cropped | {"000.png": ImageSetting(crop=CROP), "002.png": ImageSetting(left_out=True)})
    before = contents(tmp_path)
    made = copy_dataset(concept, str(tmp_path / "copies" / "clean"))
    assert (made.num_images, made.num_cropped, made.num_dropped, made.unreadable) == (3, 2, 1, [])
    assert {name: value for name, value in contents(tmp_path).items() if not name.startswith("copies/")} == before
    original = decoded(with_config(concept, family, **values), family)
    copied = decoded(with_config(made.concept, family, **values), family)
    names = [Path(path).name for path in scan([made.concept]).paths]
    assert names == ["000-cropped.png", "000.bmp", "001.png"]
    for one, other in zip(original, [copied[1], copied[0], copied[2]], strict=True):
        assert np.array_equal(one.pixels, other.pixels)
        assert one.mask is other.mask is None or np.array_equal(one.mask, other.mask)
        for name, loaded in one.loaded.items():
            assert loaded is None or all(map(np.array_equal, loaded, other.loaded[name]))


@pytest.mark.parametrize("source", ["txt", "table"])
def test_captions_go_with_their_images(source, tmp_path):
    folder = write_pictures(tmp_path / "pictures", [(64, 48)] * 3, ["one, ü", "two", ""])
    (folder / "000.png").rename(folder / "000.webp")
    if source == "table":
        rows = ["file_name;mood;caption", "000.webp;good;one, ü", "001.png;bad;two", "gone.png;bad;three"]
        (folder / "metadata.csv").write_text("\n".join(rows), encoding="utf-8")
    write_settings(folder, {"000.webp": ImageSetting(crop=Crop(0, 0, 32, 32))})
    concept = ConceptConfig(path=str(folder), captions=source, include="*.webp, *.png")
    made = copy_dataset(concept, str(tmp_path / "copy"), dropped=[str(folder / "001.png")])
    found = scan([made.concept])
    assert [Path(path).name for path in found.paths] == ["000.png", "002.png"]
    assert captions(found) == [("one, ü",), ("",)]


def test_videos_keep_their_crops_as_settings(tmp_path):
    write_video(tmp_path / "videos" / "walk.mp4", 9)
    for number in range(3):
        (tmp_path / "videos" / "frames").mkdir(exist_ok=True)
        draw_picture(number, (64, 48)).save(tmp_path / "videos" / "frames" / f"{number}.png")
    (tmp_path / "videos" / "frames.txt").write_text("frames")
    settings = {name: ImageSetting(crop=Crop(0, 0, 32, 32)) for name in ("walk.mp4", "frames")}
    write_settings(tmp_path / "videos", settings)
    concept = ConceptConfig(path=str(tmp_path / "videos"), frame_folders_fps=8.0)
    made = copy_dataset(concept, str(tmp_path / "copy"))
    assert contents(tmp_path / "copy") == contents(tmp_path / "videos")
    assert ImageSettings.read(made.concept.path).images == settings
    assert (made.num_images, made.num_cropped) == (2, 0)


def test_a_copy_is_never_written_onto_or_into_the_original(tmp_path):
    folder = write_pictures(tmp_path / "pictures", [(8, 8)])
    concept = ConceptConfig(path=str(folder))
    for target, said in ((folder, "is there already"), (folder / "copy", "is inside of"), (tmp_path, "is there")):
        with pytest.raises(DataError, match=said):
            copy_dataset(concept, str(target))
    with pytest.raises(DataError, match="canceled"):
        copy_dataset(concept, str(tmp_path / "copy"), is_wanted=lambda: False)
    with pytest.raises(DataError, match="nothing to copy"):
        copy_dataset(concept, str(tmp_path / "copy"), dropped=[str(folder / "000.png")])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pictures"]


def test_the_script_drops_duplicates_and_damaged_images_on_request(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = write_pictures(tmp_path / "pictures", [(64, 48)] * 2)
    with Image.open(ROOT / "scripts" / "pictures" / "chelsea.jpg") as image:
        image.save(folder / "best.png")
        image.resize((200, 133)).save(folder / "worse.png")
    broken = folder / "001.png"
    broken.write_bytes(broken.read_bytes()[: broken.stat().st_size // 2])
    assert main([str(folder), "--to", str(tmp_path / "all")]) == 0
    assert capsys.readouterr().out.startswith(f"4 images in {tmp_path / 'all'}\n")
    assert main([str(folder), "--to", str(tmp_path / "copy"), "--drop-duplicates"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"2 images in {tmp_path / 'copy'}, 1 near-duplicate dropped"
    assert lines[1].startswith(f"left out: {broken} (")
    assert lines[-1] == f"  path: {str(tmp_path / 'copy')!r}"
    assert sorted(path.name for path in (tmp_path / "copy").glob("*.png")) == ["000.png", "best.png"]
    assert main([str(folder), "--to", str(tmp_path / "copy")]) == 2
    assert "is there already: name a new folder" in capsys.readouterr().err
