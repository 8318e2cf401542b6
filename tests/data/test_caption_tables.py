"""Tables of captions are found, read and refused in one sentence."""

import json

import pytest

from modules.config.ConceptConfig import ConceptConfig
from modules.data.caption_tables import read_table
from modules.data.errors import DataError


def read(folder, **concept):
    return dict(read_table(ConceptConfig(path=str(folder), captions="table", **concept), "concepts.2"))


def test_several_rows_for_a_picture_are_several_captions(tmp_path):
    text = 'file_name,caption\na.png,a cat\nsub/b.png,"a dog, \nasleep"\na.png,an animal\na.png,a cat\n'
    (tmp_path / "metadata.csv").write_text(text, encoding="utf-8-sig")
    assert read(tmp_path) == {"a.png": ("a cat", "an animal"), "sub/b.png": ("a dog, asleep",)}


def test_json_lines_may_hold_lists_of_captions(tmp_path):
    rows = [{"file_name": "./a.png", "text": ["a cat", "a café"]}, {"file_name": "sub\\b.png", "text": "a dog"}]
    lines = "\n\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    (tmp_path / "captions.jsonl").write_text(lines, encoding="utf-8")
    assert read(tmp_path) == {"a.png": ("a cat", "a café"), "sub/b.png": ("a dog",)}


def test_table_and_column_can_be_named(tmp_path):
    (tmp_path / "metadata.csv").write_text("not,this\n", encoding="utf-8")
    (tmp_path / "tags.csv").write_text("file_name,caption,tags\na.png,no,yes\nb.png\n", encoding="utf-8")
    assert read(tmp_path, caption_table="tags.csv", caption_column="tags") == {"a.png": ("yes",), "b.png": ("",)}


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("metadata.csv", b"file_name,prompt\na.png,x\n", r"line 2 has no column 'caption' or 'text': it has file_name, "
         r"prompt; name one in concepts\.2\.caption_column\.$"),
        ("metadata.csv", b"image,caption\na.png,x\n", "no column 'file_name': it has image, caption; rename"),
        ("metadata.csv", "file_name,caption\na.png,café\n".encode("latin-1"), r"not UTF-8 \(byte 0xe9 at 27\): save"),
        ("metadata.csv", "file_name,caption\na.png,x\n".encode("utf-16"), r"\.csv is UTF-16, not UTF-8: save it"),
        ("metadata.csv", b"file_name,caption\na.png," + b"x" * 70_000, "line 2 is larger than 64 KB: shorten it"),
        ("metadata.csv", b"file_name,caption\na.png," + b"x" * 10_000_000, "not a valid table .*field larger"),
        ("metadata.jsonl", b'{"file_name": "a.png", "text": "' + b"x" * 10_000_000 + b'"}', "line 1 is not a JSON"),
        ("metadata.jsonl", b'{"file_name": "a.png", "text": "x"}\n[1]', "line 2 is not a JSON object: write one"),
        ("metadata.jsonl", b'{"file_name": "a.png", "text": 3}', "line 1: the caption is '3', not text"),
        ("metadata.jsonl", b'{"file_name": 7, "text": "x"}', "file_name is 7, not a file name"),
        ("metadata.jsonl", b'{"file_name": "a.png"}', "it has file_name; name one"),
    ],
)  # fmt: skip
def test_what_can_not_be_read_is_explained(tmp_path, name, content, sentence):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=sentence) as caught:
        read(tmp_path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


def test_a_table_that_is_not_there_is_named(tmp_path):
    with pytest.raises(DataError, match=r"concepts\.2\.caption_table: .* has no metadata\.csv, metadata\.jsonl"):
        read(tmp_path)
    with pytest.raises(DataError, match=r"has no mine\.csv"):
        read(tmp_path, caption_table="mine.csv")
    (tmp_path / "mine.xlsx").write_bytes(b"")
    with pytest.raises(DataError, match=r"must end in \.csv or \.jsonl"):
        read(tmp_path, caption_table="mine.xlsx")
