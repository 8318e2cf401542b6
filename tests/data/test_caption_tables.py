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


@pytest.mark.parametrize("columns", ["File Name,Text", "FILE_NAME, CAPTION", "filename,Caption", "image,text"])
def test_columns_are_known_by_their_usual_names_in_any_case(tmp_path, columns):
    (tmp_path / "metadata.csv").write_text(f"{columns}\na.png,a cat\n", encoding="utf-8")
    assert read(tmp_path) == {"a.png": ("a cat",)}


def test_the_exact_name_of_a_column_comes_first(tmp_path):
    (tmp_path / "metadata.csv").write_text("Image,Text,text,file_name\nno,no,a cat,a.png\n", encoding="utf-8")
    assert read(tmp_path) == {"a.png": ("a cat",)}


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_a_table_may_be_divided_by_semicolons_or_tabs(tmp_path, delimiter):
    rows = ("file_name", "text"), ("a.png", "a cat, on a mat"), ("b.png", f'"a dog{delimiter} asleep"')
    (tmp_path / "metadata.csv").write_text("".join(f"{delimiter.join(row)}\n" for row in rows), encoding="utf-8")
    assert read(tmp_path) == {"a.png": ("a cat, on a mat",), "b.png": (" ".join(f"a dog{delimiter} asleep".split()),)}


def test_semicolons_in_captions_do_not_divide_a_table_with_commas(tmp_path):
    (tmp_path / "metadata.csv").write_text("file_name,text\na.png,cat; mat; hat\n", encoding="utf-8")
    assert read(tmp_path) == {"a.png": ("cat; mat; hat",)}


def test_what_a_spreadsheet_leaves_around_a_table_loses_nothing(tmp_path):
    text = 'file_name, text,\na.png, "a cat, on a mat",,\n,,\n\n'
    (tmp_path / "metadata.csv").write_text(text, encoding="utf-8")
    assert read(tmp_path) == {"a.png": ("a cat, on a mat",)}


def test_null_is_a_missing_caption_and_an_empty_cell_an_empty_one(tmp_path):
    rows = [{"file_name": "a.png", "text": None}, {"file_name": "b.png", "text": ["a dog", None]}]
    (tmp_path / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    assert read(tmp_path) == {"b.png": ("a dog",)}
    (tmp_path / "captions.csv").write_text("file_name,text\na.png,\n", encoding="utf-8")
    assert read(tmp_path, caption_table="captions.csv") == {"a.png": ("",)}


def test_table_and_column_can_be_named(tmp_path):
    (tmp_path / "metadata.csv").write_text("not,this\n", encoding="utf-8")
    (tmp_path / "tags.csv").write_text("file_name,caption,tags\na.png,no,yes\nb.png\n", encoding="utf-8")
    assert read(tmp_path, caption_table="tags.csv", caption_column="tags") == {"a.png": ("yes",), "b.png": ("",)}


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("metadata.csv", b"file_name,prompt\na.png,x\n", r"line 2 has no column 'caption' or 'text': it has file_name, "
         r"prompt; name one in concepts\.2\.caption_column\.$"),
        ("metadata.csv", b"picture,caption\na.png,x\n", "no column 'file_name': it has picture, caption; rename"),
        ("metadata.csv", b"file_name,text\na.png,a\nb.png,a cat, on a mat\n", r"\.csv, line 3 has 3 fields, but "
         r'the table 2 columns: write captions with "," between quotation marks\.$'),
        ("metadata.csv", b"file_name;text\na.png;cat; mat\n", r'line 2 has 3 fields.* captions with ";" between'),
        ("metadata.csv", b'file_name,text\na.png,"a cat\nb.png,a dog\n', r"\(line 2: .*\): fix it, such as its quot"),
        ("metadata.csv", b'file_name,text\na.png,"a cat" on a mat\n', r"\(line 2: .*\): fix it, such as its quot"),
        ("metadata.csv", b"file_name,text,text\na.png,x,y\n", "line 1 has the column 'text' twice: rename one"),
        ("metadata.csv", b"file_name,text\n,a cat\n", "line 2 has no file name: write one"),
        ("metadata.csv", b"file_name,text\n", r"has no rows: add one for each image, or choose another concepts"),
        ("metadata.jsonl", b"", "has no rows: add one for each image"),
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
