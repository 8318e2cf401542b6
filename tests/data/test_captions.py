"""A caption comes from where its concept says, on one line, in UTF-8."""

import codecs
import os
from dataclasses import replace

import pytest

from modules.config.ConceptConfig import ConceptConfig
from modules.config.EmbeddingConfig import EmbeddingConfig
from modules.config.TrainConfig import TrainConfig
from modules.data.captions import MAX_CAPTION_BYTES, check_placeholders, describe_unreadable, read_captions
from modules.data.errors import CaptionError, DataError

TXT = ConceptConfig()
LINES = ConceptConfig(caption_per_line=True)


def write_caption(tmp_path, content: bytes) -> str:
    (tmp_path / "cat.txt").write_bytes(content)
    return str(tmp_path / "cat.png")


def test_a_text_file_beside_the_picture_is_its_caption(tmp_path):
    assert read_captions(write_caption(tmp_path, "a café\n".encode()), TXT) == ("a café",)


def test_only_the_last_extension_is_replaced(tmp_path):
    (tmp_path / "cat.v2.txt").write_text("a cat", encoding="utf-8")
    assert read_captions(tmp_path / "cat.v2.jpeg", TXT) == ("a cat",)


@pytest.mark.parametrize("content", [b"a cat,\nasleep", b"  a cat,\r\n\r\n asleep\n\n", b"\xef\xbb\xbfa cat,\rasleep"])
def test_lines_are_folded_and_a_byte_order_mark_is_dropped(tmp_path, content):
    assert read_captions(write_caption(tmp_path, content), TXT) == ("a cat, asleep",)


def test_an_empty_file_is_an_empty_caption_but_a_missing_one_is_none(tmp_path):
    assert read_captions(write_caption(tmp_path, b" \n"), TXT) == ("",)
    assert read_captions(tmp_path / "dog.png", TXT) is None


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("café".encode("latin-1"), r"is not UTF-8 \(byte 0xe9 at 3\)"),
        ("cat".encode("utf-16"), "is UTF-16, not UTF-8"),
        (codecs.BOM_UTF16_BE + "cat".encode("utf-16-be"), "is UTF-16, not UTF-8"),
        ("cat".encode("utf-32"), "is UTF-32, not UTF-8"),
        ("cat".encode("utf-16-le"), r"is not UTF-8 \(byte 0x00 at 1\)"),  # each byte by itself would be
    ],
)
def test_another_encoding_is_refused_by_its_name_or_the_first_wrong_byte(tmp_path, content, reason):
    remedy = r"save it as UTF-8 \(scripts/check_data\.py --convert-captions does that\)\.$"
    with pytest.raises(CaptionError, match=rf"^caption file .*cat\.txt {reason}: {remedy}") as caught:
        read_captions(write_caption(tmp_path, content), TXT)
    assert caught.value.kind == "encoding"


def test_captions_that_can_not_be_read_are_named_together_with_what_to_do_about_each_kind():
    errors = [CaptionError(f"{n}.txt", "encoding", "is UTF-16, not UTF-8") for n in range(7)]
    errors[1] = CaptionError("1.txt", "size", "is larger than 64 KB")
    assert describe_unreadable(errors) == (
        "7 captions can't be read (0.txt is UTF-16, not UTF-8; 1.txt is larger than 64 KB; 2.txt is UTF-16, not UTF-8; "
        "3.txt is UTF-16, not UTF-8; 4.txt is UTF-16, not UTF-8; and 2 more): save those in another encoding as UTF-8 "
        "(scripts/check_data.py --convert-captions does that) and shorten those that are too large."
    )
    assert describe_unreadable(errors[:1]) == str(errors[0])


def test_a_caption_of_64_kb_is_read_and_a_larger_one_refused(tmp_path):
    assert len(read_captions(write_caption(tmp_path, b"a" * MAX_CAPTION_BYTES), TXT)[0]) == MAX_CAPTION_BYTES
    with pytest.raises(DataError, match="larger than 64 KB"):
        read_captions(write_caption(tmp_path, b"a" * (MAX_CAPTION_BYTES + 1)), TXT)


def test_a_folder_in_place_of_the_text_file_is_explained(tmp_path):
    (tmp_path / "cat.txt").mkdir()
    with pytest.raises(DataError, match=r"cat\.txt can't be read"):
        read_captions(tmp_path / "cat.png", TXT)


def test_the_file_name_is_the_caption_without_underscores_and_extension(tmp_path):
    write_caption(tmp_path, b"not this")
    concept = ConceptConfig(captions="file_name")
    assert read_captions(tmp_path / "a_sleeping_cat.v2.png", concept) == ("a sleeping cat.v2",)


def test_the_prompt_of_the_concept_is_the_caption_of_every_picture(tmp_path):
    concept = ConceptConfig(captions="prompt", prompt="a photo of sks dog")
    assert read_captions(write_caption(tmp_path, b"not this"), concept) == ("a photo of sks dog",)


def test_each_line_may_be_a_caption(tmp_path):
    assert read_captions(write_caption(tmp_path, b"a cat\r\n\n  an animal \n"), LINES) == ("a cat", "an animal")
    assert read_captions(write_caption(tmp_path, b"\n"), LINES) == ("",)


def test_a_file_of_lines_may_be_larger_than_a_caption_but_no_line_of_it(tmp_path):
    lines = b"\n".join([b"a" * 40_000, b"b" * 40_000])
    assert len(read_captions(write_caption(tmp_path, lines), LINES)) == 2
    with pytest.raises(DataError, match="larger than 64 KB"):
        read_captions(write_caption(tmp_path, b"a" * 70_000), LINES)
    with pytest.raises(DataError, match="larger than 1024 KB"):
        read_captions(write_caption(tmp_path, b"a\n" * 5_000_000), LINES)


def test_a_word_to_be_learnt_that_stands_in_no_caption_is_refused():
    words = [EmbeddingConfig(placeholder=word) for word in ("<cat>", "zebra-1")]
    config = TrainConfig(method="embedding", embeddings=words)
    check_placeholders(config, iter(["a <cat>", "nothing", "the zebra-1s"]))
    with pytest.raises(DataError, match=r"^embeddings\.1\.placeholder 'zebra-1' appears in no caption: add it to"):
        check_placeholders(config, ["a <cat>", "a zebra"])
    check_placeholders(TrainConfig(), ["no word"])


@pytest.mark.parametrize("captions", ["file_name", "table"])
def test_what_is_no_unicode_is_replaced_in_captions(tmp_path, captions):
    name = os.fsdecode(b"caf\xe9 \xff.png")
    concept = ConceptConfig(path=str(tmp_path), captions=captions)
    table = {name: ("caf\ud83d \udcff",)}
    (caption,) = read_captions(str(tmp_path / name), concept, table)
    assert caption == "caf\ufffd \ufffd"


FALLBACK = ConceptConfig(caption_fallback="a cat ")


def test_a_fallback_stands_in_for_a_missing_or_an_empty_caption(tmp_path):
    assert read_captions(tmp_path / "dog.png", FALLBACK) == ("a cat",)
    assert read_captions(write_caption(tmp_path, b" \n"), FALLBACK) == ("a cat",)
    assert read_captions(write_caption(tmp_path, b"a dog"), FALLBACK) == ("a dog",)
    table = replace(FALLBACK, captions="table", path=str(tmp_path))
    assert read_captions(tmp_path / "dog.png", table, {"cat.png": ("a lynx",)}) == ("a cat",)
    prompt = replace(FALLBACK, captions="prompt")
    assert read_captions(tmp_path / "dog.png", prompt) == ("",)


def test_prefix_and_suffix_surround_every_caption(tmp_path):
    concept = replace(LINES, caption_prefix="sks ", caption_suffix=", photo")
    assert read_captions(write_caption(tmp_path, b"a cat\nan animal\n"), concept) == (
        "sks a cat, photo",
        "sks an animal, photo",
    )
    words = replace(TXT, caption_prefix="sks", caption_suffix="in the snow")
    assert read_captions(write_caption(tmp_path, b"a cat"), words) == ("sks a cat in the snow",)
    assert read_captions(write_caption(tmp_path, b""), words) == ("sks in the snow",)


def test_prefix_and_suffix_also_surround_the_caption_that_is_missing(tmp_path):
    words = replace(TXT, caption_prefix="sks", caption_suffix="in the snow")
    assert read_captions(tmp_path / "dog.png", words) == ("sks in the snow",)
    table = replace(words, captions="table", path=str(tmp_path))
    assert read_captions(tmp_path / "dog.png", table, {}) == ("sks in the snow",)


def test_a_caption_file_is_read_whatever_the_case_of_its_extension(tmp_path):
    for name, extension in (("a", ".TXT"), ("b", ".Txt"), ("c", ".txt")):
        (tmp_path / f"{name}{extension}").write_text(name)
        assert read_captions(tmp_path / f"{name}.png", TXT) == (name,)
        assert read_captions(tmp_path / f"{name}.png", replace(TXT, caption_extension=".TXT")) == (name,)


def test_of_two_caption_files_the_one_in_the_case_of_the_setting_is_read(tmp_path):
    (tmp_path / "a.TXT").write_text("upper")
    (tmp_path / "a.txt").write_text("lower")
    if (tmp_path / "a.TXT").read_text() == "lower":
        pytest.skip("this file system does not tell the case of names apart")
    assert read_captions(tmp_path / "a.png", TXT) == ("lower",)
    assert read_captions(tmp_path / "a.png", replace(TXT, caption_extension=".TXT")) == ("upper",)


@pytest.mark.parametrize("extension", [".caption", "caption", " .caption"])
def test_caption_files_may_have_another_extension(tmp_path, extension):
    (tmp_path / "cat.caption").write_text("a cat")
    assert read_captions(tmp_path / "cat.png", replace(TXT, caption_extension=extension)) == ("a cat",)
    assert read_captions(tmp_path / "cat.png", replace(TXT, caption_extension="")) is None
