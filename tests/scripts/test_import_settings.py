"""scripts/import_settings.py shows what becomes of another program's settings, and writes those of Chorus."""

import json

from modules.config.files import load_config
from scripts.import_settings import main

SETTINGS = {"__version": 11, "training_method": "LORA", "model_type": "FLUX_DEV_1", "lora_rank": 4, "gone": 1}


def test_the_settings_are_shown_and_written_once(tmp_path, capsys):
    source, target = tmp_path / "theirs.json", tmp_path / "run.yaml"
    source.write_text(json.dumps(SETTINGS), encoding="utf-8")
    assert main([str(source), "-o", str(target)]) == 0
    shown = capsys.readouterr().out
    assert all(text in shown for text in ("lora_rank 4 -> lora.rank 4", "another meaning", "gone 1", str(target)))
    assert load_config(target).lora.rank == 4
    target.write_text("kept", encoding="utf-8")
    assert main([str(source), "-o", str(target)]) == 2
    assert target.read_text(encoding="utf-8") == "kept"


def test_a_file_of_no_known_program_gives_a_message(tmp_path, capsys):
    source = tmp_path / "other.json"
    source.write_text("{}", encoding="utf-8")
    assert main([str(source)]) == 2
    assert "OneTrainer" in capsys.readouterr().err
