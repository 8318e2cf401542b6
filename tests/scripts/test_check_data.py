"""The command line of the health check."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from modules.config.presets import ROOT
from modules.curation import MeasureIndex
from modules.curation.TokenCounts import TokenCount
from scripts.check_data import main


@pytest.fixture(autouse=True)
def user_cache(tmp_path, monkeypatch):
    """Where measures are kept, in place of the cache of who runs the tests."""
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(name, str(tmp_path / "cache"))


@pytest.fixture
def config(tmp_path, picture_folder):
    folder = picture_folder(((64, 64),) * 4, captions=["a", "b", "c", ""])
    values = {"data": {"resolution": 64, "bucket_step": 16}, "batch_size": 1, "concepts": [{"path": str(folder)}]}
    path = tmp_path / "run.json"
    path.write_text(json.dumps(values))
    return str(path)


def test_it_says_what_it_finds_and_that_training_can_start(config, capsys):
    assert main(["--config", config]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "4 images"
    assert lines[1].startswith("warning: 1 image has no caption")
    assert lines[2].strip().endswith("003.png")


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such names")
def test_names_are_shown_on_one_line_each(config, tmp_path, capsys):
    folder = Path(json.loads(Path(config).read_text())["concepts"][0]["path"])
    (folder / "a\x1b[2J\n\u202egnp.png").write_bytes(b"no image")
    main(["--config", config, "--set", "data.max_unreadable_share=0.5"])
    lines = capsys.readouterr().out.splitlines()
    assert all(line.isprintable() for line in lines)
    assert [line for line in lines if line.endswith(r"/a\x1b[2J\n\u202egnp.png")]


def test_json_holds_the_same(config, capsys):
    assert main(["--config", config, "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["can_train"]
    assert values["num_pictures"] == 4
    assert values["findings"][0]["kind"] == "missing_caption"


def test_it_fails_where_training_would(config, capsys):
    assert main(["--config", config, "--set", "concepts.0.path=/nowhere"]) == 1
    assert "does not exist" in capsys.readouterr().out


def test_settings_that_can_not_be_read_are_one_sentence(config, capsys):
    assert main(["--config", config, "--set", "data.resolutoin=64"]) == 2
    assert "did you mean data.resolution" in capsys.readouterr().err


def test_a_preset_can_be_changed(config, capsys):
    assert main(["--preset", "sd15-lora", "--config", config]) == 0


def test_the_number_of_ranks_is_positive(config, capsys):
    with pytest.raises(SystemExit):
        main(["--config", config, "--ranks", "0"])
    assert "0 is not above 0" in capsys.readouterr().err


@pytest.fixture
def folder(config):
    """Of the images, three of whose captions are in other encodings, and one is too large for any."""
    path = Path(json.loads(Path(config).read_text())["concepts"][0]["path"])
    (path / "000.txt").write_bytes("ein schöner Tag\r\n".encode("utf-16"))
    (path / "001.txt").write_bytes("ein schöner Tag".encode("cp1252"))
    (path / "002.txt").write_bytes("ein Tag".encode("utf-16-be"))
    (path / "003.txt").write_bytes(b"x" * 10**6)
    return path


def test_captions_are_converted_on_demand_and_kept_as_they_were(config, folder, capsys):
    before = (folder / "000.txt").read_bytes()
    assert main(["--config", config]) == 1
    assert "4 captions can't be read" in capsys.readouterr().out
    assert sorted(path.name for path in folder.glob("*.txt*")) == [f"00{number}.txt" for number in range(4)]
    assert main(["--config", config, "--convert-captions"]) == 1  # for the one that is too large
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{folder / '000.txt'}: UTF-16 -> UTF-8, kept as 000.txt.bak: ein schöner Tag"
    assert lines[1] == f"{folder / '001.txt'}: cp1252 -> UTF-8, kept as 001.txt.bak: ein schöner Tag"
    assert lines[2] == f"{folder / '002.txt'}: UTF-16-BE -> UTF-8, kept as 002.txt.bak: ein Tag"
    assert "003.txt is larger than 64 KB: shorten it" in lines[4]
    assert (folder / "000.txt").read_bytes() == "ein schöner Tag\r\n".encode()
    assert (folder / "000.txt.bak").read_bytes() == before
    (folder / "003.txt").write_text("short")
    assert main(["--config", config, "--convert-captions"]) == 0
    assert "->" not in capsys.readouterr().out


def test_what_is_not_in_the_named_encoding_stays_as_it_is(config, folder, capsys):
    content = "Ёлка".encode("koi8-r") + b"\x81"
    (folder / "001.txt").write_bytes(content)
    main(["--config", config, "--convert-captions"])
    assert "001.txt can't be converted: it is not cp1252 (byte 0x81 at 4)" in capsys.readouterr().err
    assert (folder / "001.txt").read_bytes() == content
    main(["--config", config, "--convert-captions", "koi8-r"])
    assert "koi8-r -> UTF-8, kept as 001.txt.bak: Ёлка" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["--config", config, "--convert-captions", "base64"])
    assert "'base64' is not a text encoding" in capsys.readouterr().err


def test_a_copy_replaces_no_earlier_one_and_json_stays_json(config, folder, capsys):
    (folder / "000.txt.bak").write_text("mine")
    main(["--config", config, "--convert-captions", "--json"])
    output = capsys.readouterr()
    assert json.loads(output.out)["findings"][0]["count"] == 1
    assert "kept as 000.txt.bak-2" in output.err
    assert (folder / "000.txt.bak").read_text() == "mine"


def test_a_table_is_converted_too(config, folder, capsys):
    (folder / "metadata.csv").write_bytes("file_name,caption\n000.png,Käse\n".encode("utf-16"))
    arguments = ["--config", config, "--set", "concepts.0.captions=table"]
    assert main(arguments) == 1
    assert "metadata.csv is UTF-16, not UTF-8" in capsys.readouterr().out
    assert main([*arguments, "--convert-captions"]) == 0
    assert (folder / "metadata.csv").read_text(encoding="utf-8") == "file_name,caption\n000.png,Käse\n"


def test_nobody_reading_any_more_is_no_error(config):
    code = "import sys; from scripts.check_data import main; sys.exit(main(sys.argv[1:]))"
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([sys.executable, "-c", code, "--config", config], stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


def test_it_runs_as_a_script_without_torch(config):
    code = (
        "import sys; from scripts.check_data import main; main(sys.argv[1:]);"
        "sys.exit(bool({'torch', 'diffusers', 'transformers'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code, "--config", config], capture_output=True).returncode == 0


def test_folders_can_be_checked_without_settings(config, tmp_path, capsys):
    (folder,) = (one["path"] for one in json.loads(Path(config).read_text())["concepts"])
    assert main([folder, "--set", "data.resolution=64"]) == 0
    assert capsys.readouterr().out.startswith("4 images\n")
    assert main([folder, str(tmp_path / "nowhere")]) == 1
    assert "does not exist" in capsys.readouterr().out


def test_the_report_has_duplicates_and_figures_and_decodes_an_image_once_ever(config, capsys, monkeypatch):
    folder = Path(json.loads(Path(config).read_text())["concepts"][0]["path"])
    with Image.open(ROOT / "scripts" / "pictures" / "chelsea.jpg") as image:
        image.resize((64, 64)).save(folder / "000.png")
        image.resize((48, 48)).save(folder / "copy.png")
    (folder / "copy.txt").write_text("a, b, c")
    main(["--config", config])
    lines = capsys.readouterr().out.splitlines()
    at = lines.index("Near-duplicates: 1 image has others like it")
    assert lines[at + 1 : at + 3] == [f"  {folder / '000.png'}", f"    like it: {folder / 'copy.png'}"]
    assert f"  64x64  5 = 5 x 1 + 0  {'#' * 30}" in lines
    monkeypatch.setattr(MeasureIndex, "measure", lambda path: pytest.fail(f"{path} is decoded again"))
    main(["--config", config, "--json"])
    values = json.loads(capsys.readouterr().out)
    assert values["duplicates"] == [{"best": str(folder / "000.png"), "others": [str(folder / "copy.png")]}]
    assert values["statistics"]["tags"] == {"a": 1, "b": 1, "c": 1}
    assert {"near_duplicate", "blurred", "small"} <= {finding["kind"] for finding in values["findings"]}


def test_figures_alone_decode_nothing_and_name_the_images(config, capsys, monkeypatch):
    monkeypatch.setattr("scripts.check_data.measure_images", lambda *given: pytest.fail("images are decoded"))
    monkeypatch.setattr("scripts.dataset_figures.TokenCounts", Letters)
    assert main(["--config", config, "--figures"]) == 0
    assert capsys.readouterr().out.splitlines()[:2] == ["4 images", "Aspect ratios"]
    assert main(["--config", config, "--figures", "--json", "--ranks", "3"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    told = [line for line in lines if line["event"] == "figures"]
    assert [line["reading"] for line in told] == ["Reading captions", "Counting tokens, 0%", ""]
    assert (told[-1]["token_limit"], told[-1]["resolutions"]) == (75, [64])
    assert told[-1]["statistics"]["batch"] == 3
    assert told[-1]["statistics"]["tokens"] == {"none": 1, "1 to 19": 3}
    (tokens,) = (line["images"] for line in lines if line.get("figure") == "tokens" and line["images"])
    files = next(line["paths"] for line in reversed(lines) if line["event"] == "files")
    assert [Path(files[place]).name for place in tokens["none"]] == ["003.png"]
    assert main(["--config", config, "--figures", "--set", "concepts.0.path=/nowhere"]) == 2
    assert "does not exist" in capsys.readouterr().err


class Letters:
    """Counts letters, in place of the process with a tokenizer."""

    note = ""

    def __init__(self, family, model):
        pass

    def count(self, texts):
        return [TokenCount(len(text), 75, None, False) for text in texts]

    def close(self):
        pass
