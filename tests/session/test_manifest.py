import json

import pytest

from modules.session.manifest import MANIFEST_NAME, check_manifest, write_manifest


@pytest.fixture
def backup(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "weights.bin").write_bytes(bytes(range(256)) * 10)
    (tmp_path / "state.json").write_text("{}")
    write_manifest(tmp_path)
    return tmp_path


def test_an_untouched_folder_has_no_problem(backup):
    assert check_manifest(backup) is None
    files = json.loads((backup / MANIFEST_NAME).read_text())["files"]
    assert set(files) == {"sub/weights.bin", "state.json"}
    assert files["sub/weights.bin"]["size"] == 2560


def test_a_manifest_can_be_written_again(backup):
    (backup / "state.json").write_text("{ }")
    write_manifest(backup)
    assert check_manifest(backup) is None
    assert MANIFEST_NAME not in json.loads((backup / MANIFEST_NAME).read_text())["files"]


def test_a_flipped_byte_is_found(backup):
    path = backup / "sub" / "weights.bin"
    data = bytearray(path.read_bytes())
    data[1000] ^= 1
    path.write_bytes(data)
    assert "sub/weights.bin has other content" in check_manifest(backup)


def test_a_cut_file_is_found(backup):
    (backup / "sub" / "weights.bin").write_bytes(b"")
    assert check_manifest(backup) == "sub/weights.bin has 0 bytes instead of 2560"


def test_a_missing_file_is_found(backup):
    (backup / "state.json").unlink()
    assert check_manifest(backup) == "state.json is missing"


def test_a_missing_manifest_is_a_problem(backup):
    (backup / MANIFEST_NAME).unlink()
    assert check_manifest(backup) == "manifest.json is missing"


def test_a_folder_that_is_missing_is_a_problem(tmp_path):
    assert check_manifest(tmp_path / "none") == "manifest.json is missing"


NO_MANIFESTS = ("", "{", "[]", "3", "{}", '{"files": []}', '{"files": {"a": 1}}', '{"files": {"a": {}}}', "[" * 100_000)
HUGE = '{"files": {"a": {"size": 1e999, "sha256": ""}}}'


@pytest.mark.parametrize("text", [*NO_MANIFESTS, HUGE])
def test_a_damaged_manifest_is_a_problem_and_no_crash(backup, text):
    (backup / MANIFEST_NAME).write_text(text)
    assert "manifest.json can't be read" in check_manifest(backup)


@pytest.mark.parametrize("name", ["../outside", "/etc/hostname", "", "sub/../../outside"])
def test_a_manifest_can_not_point_outside_its_folder(backup, name):
    (backup / MANIFEST_NAME).write_text(json.dumps({"files": {name: {"size": 0, "sha256": ""}}}))
    assert "outside the folder" in check_manifest(backup)


def test_any_flipped_byte_of_the_manifest_is_found(backup):
    path = backup / MANIFEST_NAME
    original = path.read_bytes()
    for index in range(len(original)):
        if original[index : index + 1].isspace():
            continue
        path.write_bytes(original[:index] + bytes([original[index] ^ 1]) + original[index + 1 :])
        assert check_manifest(backup) is not None, original[max(0, index - 20) : index + 20]


def test_files_added_later_do_not_matter(backup):
    (backup / "Thumbs.db").write_bytes(b"x")
    assert check_manifest(backup) is None
