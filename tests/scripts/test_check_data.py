"""The command line of the health check."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.check_data import main


@pytest.fixture
def config(tmp_path, picture_folder):
    folder = picture_folder(((64, 64),) * 4, captions=["a", "b", "c", ""])
    values = {"data": {"resolution": 64}, "batch_size": 1, "concepts": [{"path": str(folder)}]}
    path = tmp_path / "run.json"
    path.write_text(json.dumps(values))
    return str(path)


def test_it_says_what_it_finds_and_that_training_can_start(config, capsys):
    assert main(["--config", config]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "4 pictures"
    assert lines[1].startswith("warning: 1 pictures have no caption")
    assert lines[2].strip().endswith("003.png")


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such names")
def test_names_are_shown_on_one_line_each(config, tmp_path, capsys):
    folder = Path(json.loads(Path(config).read_text())["concepts"][0]["path"])
    (folder / "a\x1b[2J\n\u202egnp.png").write_bytes(b"no picture")
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
