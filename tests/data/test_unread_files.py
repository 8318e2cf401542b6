"""What looks like an image and is left out is named with what would read it: by dry run, start and check."""

import shutil

import pytest

from modules.config.ConceptConfig import ConceptConfig
from modules.config.files import config_from_values
from modules.data.concepts import scan
from modules.data.errors import DataError
from modules.data.health import check_health
from modules.data.run_summary import image_warnings
from modules.data.unread_files import FOLDERS, unread_kind
from tests.support.run_summaries import summary_text


@pytest.fixture(autouse=True)
def no_plugins(monkeypatch):
    monkeypatch.setattr("modules.data.image_formats._is_installed", lambda module: False)
    monkeypatch.setattr("modules.data.unread_files.EXTENSIONS", frozenset({".png", ".gif"}))


@pytest.fixture
def folder(picture_folder):
    folder = picture_folder(((64, 64),))
    for name in ("a.heic", "b.HEIC", "c.psd", "d.jpg_large", "e.mp4", "f.wmv", "notes.md", "000.json"):
        (folder / name).write_bytes(b"")
    shutil.copytree(folder, folder / "@eaDir" / "000.png")
    return folder


EXPECTED = [
    ".heic files, such as {}/a.heic (needs the package pillow-heif",
    ".psd file, such as {}/c.psd (export it as PNG)",
    ".jpg_large file, such as {}/d.jpg_large (rename it so that its name ends in .jpg)",
    ".wmv file, such as {}/f.wmv (convert it to MP4)",
    "video, such as {}/e.mp4 (models of videos train them if data.frames is above 1)",
    "hidden or system folder, such as {}/@eaDir (what is in it is not looked at)",
]


def test_the_dry_run_names_each_kind_once_with_its_number(folder, tiny_sd15, tmp_path):
    values = {
        "model": {"base": str(tiny_sd15)}, "workspace_dir": str(tmp_path / "run"), "cache_dir": str(tmp_path / "cache"),
        "data": {"resolution": 64}, "concepts": [{"path": str(folder)}],
    }  # fmt: skip
    lines = [line for line in summary_text(config_from_values(values)).splitlines() if line.startswith("Left out")]
    assert len(lines) == len(EXPECTED)
    for text in EXPECTED:
        assert sum(text.format(folder) in line for line in lines) == 1, text
    assert any("2 .heic files" in line for line in lines)


def test_the_start_and_the_check_name_them_too(folder):
    config = config_from_values({"model": {"base": "/nowhere"}, "concepts": [{"path": str(folder)}]})
    warned = list(image_warnings(config, scan(config.concepts)))
    assert f"1 .psd file is left out, such as {folder}/c.psd (export it as PNG)." in warned
    assert not any("@eaDir" in text for text in warned)  # nothing that belongs to the dataset
    findings = [finding for finding in check_health(config).findings if finding.kind == "unread"]
    assert {finding.level: finding.count for finding in findings} == {"warning": 1, "note": 1}
    assert len(findings) == len(EXPECTED)


def test_thumbnails_of_a_nas_are_no_images(folder):
    dataset = scan([ConceptConfig(path=str(folder))])
    assert dataset.paths == [str(folder / "000.png")]
    assert dataset.unread[FOLDERS] == [str(folder / "@eaDir")]


def test_a_folder_that_is_chosen_itself_is_read_whatever_its_name(picture_folder):
    folder = picture_folder(((64, 64),), name="@eaDir")
    assert len(scan([ConceptConfig(path=str(folder))])) == 1


def test_a_folder_of_what_is_not_read_says_so(tmp_path):
    (tmp_path / "a.heic").write_bytes(b"")
    with pytest.raises(DataError, match=r"no image that can be read, only 1 \.heic file, such as .*pillow-heif"):
        scan([ConceptConfig(path=str(tmp_path))])


@pytest.mark.parametrize("setting", ["mask_folder", "reference_folder", "layer_folder"])
@pytest.mark.parametrize("inside", [True, False])
def test_masks_references_and_layers_that_are_not_read_are_named_too(picture_folder, tmp_path, setting, inside):
    folder = picture_folder(((64, 64),))
    others = (folder if inside else tmp_path) / "others"
    others.mkdir()
    (others / "000.heic").write_bytes(b"")
    (found,) = scan([ConceptConfig(path=str(folder), **{setting: str(others)})]).unread.values()
    assert found == [str(others / "000.heic")]


def test_what_the_patterns_leave_out_is_not_named(folder):
    assert set(scan([ConceptConfig(path=str(folder), include="*.png")]).unread) == {FOLDERS}


@pytest.mark.parametrize("name", ["a.png", "a.txt", "a.csv", "a.safetensors", "a", "a.npz", "a.jpgx"])
def test_other_files_are_not_taken_for_images(name):
    assert unread_kind(name, videos=False) is None


def test_in_a_run_of_videos_those_are_named_that_are_not_read():
    assert unread_kind("a.mp4", videos=True) is None
    assert unread_kind("a.MTS", videos=True).remedy == "convert it to MP4"
