import unicodedata
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from modules.session.names import illegal_on_windows, safe_file_name

DEVICES = {"CON", "PRN", "AUX", "NUL"} | {f"{port}{digit}" for port in ("COM", "LPT") for digit in range(10)}


@pytest.mark.parametrize("text", ["model", "My LoRA v1.2", "Füchse im Schnee", "狐", "a_b-c", "CONTEXT"])
def test_a_good_name_stays(text):
    assert safe_file_name(text) == text


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("../../x", "_"),
        ("/etc/x", "_etc_x-"),
        ("C:\\x", "C__x-"),
        ("NUL", "_NUL-"),
        ("com1.txt", "_com1.txt-"),
        ("aux .x", "_aux .x-"),
        ("COM²", "_COM²-"),
        ("", "unnamed-"),
        ("...", "unnamed-"),
        ("-rf x", "rf x-"),
        (".hidden", "hidden-"),
        ("trailing. ", "trailing-"),
        ("line\nbreak", "linebreak-"),
        ("gpj\u202e.exe", "gpj.exe-"),
    ],
)
def test_a_bad_name_becomes_a_legal_one_that_still_reads_like_it(text, start):
    name = safe_file_name(text)
    assert name.startswith(start)
    assert_legal(name, 80)


def test_texts_that_become_alike_get_different_names():
    texts = ["a/b", "a\\b", "a:b", "a?b", "a_b", "x" * 5000, "x" * 5001, "", ".", "..", "NUL", "_NUL", "a\u202eb", "ab"]
    assert len({safe_file_name(text) for text in texts}) == len(texts)


def test_the_same_text_always_gives_the_same_name():
    assert safe_file_name("a/b") == safe_file_name("a/b") == "a_b-c14cddc0"


@example("x" * 5000, 80)
@example("狐" * 100, 16)
@example("a\u200d\u0301", 80)
@example("\ud800", 80)
@example("CON" + " " * 80 + ".x", 80)
@example("..%2f", 16)
@given(st.text(st.characters(), max_size=60), st.integers(16, 200))
def test_any_text_gives_a_legal_name_which_is_then_left_alone(text, max_bytes):
    name = safe_file_name(text, max_bytes)
    assert_legal(name, max_bytes)
    assert safe_file_name(name, max_bytes) == name


def test_a_cap_without_room_for_the_hash_is_refused():
    with pytest.raises(ValueError, match="max_bytes 15"):
        safe_file_name("x", 15)


def test_a_name_can_be_made_on_this_disk(tmp_path):
    for text in ["../../x", "NUL", "x" * 5000, "\u202e", "", "a\0b", "狐" * 500]:
        path = tmp_path / safe_file_name(text, 200)
        path.write_bytes(b"")
        assert path.resolve().parent == tmp_path.resolve()
    assert len(list(tmp_path.iterdir())) == 7


def assert_legal(name: str, max_bytes: int):
    assert 0 < len(name.encode("utf-8")) <= max_bytes
    assert not set(name) & set('<>:"/\\|?*')
    assert ".." not in name
    assert name[0] not in " .-"
    assert name[-1] not in " ."
    assert not any(unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp") for char in name)
    assert name.split(".")[0].rstrip().upper() not in DEVICES
    assert Path(name).name == name


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("CON", "CON"),
        (r"D:\runs\nul.txt\x", "nul.txt"),
        (r"C:\runs\a:b", "a:b"),
        ("runs/what?", "what?"),
        (r"C:\runs\my run", ""),
        (r"\\server\share\run", ""),
        ("workspace/context", ""),
    ],
)
def test_a_path_that_windows_takes_for_something_else_is_known(path, name):
    assert illegal_on_windows(path) == name
