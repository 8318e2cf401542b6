"""scripts/export_settings.py writes settings as files of another program, and never over others without being told."""

from modules.importers.import_files import import_files
from scripts.export_settings import main

COMMAND = ["--preset", "sd15-lora", "--set", "lora.rank=7"]


def test_the_files_are_written_once_with_what_they_can_not_say(tmp_path, capsys):
    folder = tmp_path / "theirs"
    assert main([*COMMAND, "-o", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert all(text in shown for text in ("Not exported", "sampling.at_end true: ", "train_network.py", str(folder)))
    assert "sampling.at_end true: " in (folder / "not_exported.txt").read_text(encoding="utf-8")
    assert import_files([folder / "train.sh"]).values["lora.rank"] == 7

    (folder / "dataset.toml").write_text("kept", encoding="utf-8")
    assert main([*COMMAND, "-o", str(folder)]) == 2
    assert "dataset.toml" in capsys.readouterr().err
    assert (folder / "dataset.toml").read_text(encoding="utf-8") == "kept"
    assert main([*COMMAND, "-o", str(folder), "--force"]) == 0
    assert "kept" not in (folder / "dataset.toml").read_text(encoding="utf-8")


def test_a_settings_file_is_shown_without_a_folder_and_changed_by_set(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text("family: sdxl\ncsv: true\n", encoding="utf-8")
    assert main(["run.yaml", "--set", "ema.enabled=true"]) == 0
    shown = capsys.readouterr().out
    assert "csv true" in shown
    assert "ema.enabled true" in shown
    assert [path.name for path in tmp_path.iterdir()] == ["run.yaml"]


def test_a_family_without_a_script_gives_a_message(capsys):
    assert main(["--preset", "auraflow-lora"]) == 2
    assert "auraflow" in capsys.readouterr().err
