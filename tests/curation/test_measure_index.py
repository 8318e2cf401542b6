"""What was measured once is known as long as the content of the file is the same."""

import os
import time
from pathlib import Path

import pytest

from modules.curation import MeasureIndex as module
from modules.curation.MeasureIndex import MeasureIndex
from modules.curation.measures import ImageMeasures, measure
from tests.support.pictures import draw_picture, write_pictures


@pytest.fixture
def decoded(tmp_path, monkeypatch) -> list[str]:
    """The names of the images that are decoded."""
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / "cache"))
    names = []

    def counted(path: str) -> ImageMeasures:
        names.append(Path(path).name)
        return measure(path)

    monkeypatch.setattr(module, "measure", counted)
    return names


def paths_in(folder: Path) -> list[str]:
    return sorted(map(str, folder.glob("*.png")))


def test_only_new_contents_are_decoded(decoded, tmp_path):
    folder = write_pictures(tmp_path / "pictures", [(32, 32), (48, 32), (32, 48)])
    first = MeasureIndex(str(folder)).of(paths_in(folder))
    assert sorted(decoded) == ["000.png", "001.png", "002.png"]
    decoded.clear()
    (folder / "000.png").rename(folder / "new name.png")
    draw_picture(7, (48, 32)).save(folder / "001.png")
    done = []
    again = MeasureIndex(str(folder)).of(paths_in(folder), done.append)
    assert decoded == ["001.png"]
    assert done == [1, 2, 3]
    assert again[str(folder / "new name.png")].to_values() == first[str(folder / "000.png")].to_values()
    assert again[str(folder / "001.png")].to_values() != first[str(folder / "001.png")].to_values()


def test_a_damaged_index_is_made_again(decoded, tmp_path):
    folder = write_pictures(tmp_path / "pictures", [(32, 32)])
    MeasureIndex(str(folder)).of(paths_in(folder))
    (file,) = tmp_path.rglob("measures.json")
    content = file.read_text()
    for damaged in (content[:-9], "[]", content.replace('"measures": {', '"measures": {"x": 3, ').replace("[1", "[[1")):
        decoded.clear()
        file.write_text(damaged.replace("0.", "x."))
        (found,) = MeasureIndex(str(folder)).of(paths_in(folder)).values()
        assert isinstance(found, ImageMeasures)
        assert decoded == ["000.png"]


def test_images_that_cannot_be_decoded_have_their_reason(decoded, tmp_path):
    folder = write_pictures(tmp_path / "pictures", [(64, 64), (32, 32)])
    broken = folder / "000.png"
    broken.write_bytes(broken.read_bytes()[: broken.stat().st_size // 2])
    paths = [*paths_in(folder), str(folder / "gone.png")]
    found = MeasureIndex(str(folder)).of(paths)
    assert isinstance(found[paths[0]], str)
    assert isinstance(found[paths[1]], ImageMeasures)
    assert found[paths[2]] == "No such file or directory"


def test_nothing_is_measured_that_is_not_wanted(decoded, tmp_path):
    folder = write_pictures(tmp_path / "pictures", [(32, 32)])
    assert MeasureIndex(str(folder)).of(paths_in(folder), is_wanted=lambda: False) == {}
    assert decoded == []


def test_indexes_of_folders_that_nobody_looks_at_are_removed(decoded, tmp_path):
    for name in ("old", "new"):
        folder = write_pictures(tmp_path / name, [(32, 32)])
        MeasureIndex(str(folder)).of(paths_in(folder))
        if name == "old":
            (file,) = tmp_path.rglob("measures.json")
            long_ago = time.time() - (module.KEPT_DAYS + 1) * 24 * 3600
            os.utime(file, (long_ago, long_ago))
    assert not file.exists()
    assert len(list(tmp_path.rglob("measures.json"))) == 1
