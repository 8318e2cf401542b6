"""What the start script makes of its arguments; the demo itself is in test_demo.py."""

from pathlib import Path

from scripts import start_multi_gpu


def test_without_arguments_it_says_how_it_is_used(capsys):
    assert start_multi_gpu.main([]) == 2
    assert "--demo" in capsys.readouterr().err


def test_the_demo_takes_no_other_options(capsys):
    assert start_multi_gpu.main(["--demo", "--resume"]) == 2
    assert "usage" in capsys.readouterr().err


def test_other_arguments_go_to_the_training(tmp_path, capsys):
    assert start_multi_gpu.main(["--config", str(tmp_path / "none.yaml")]) == 2
    assert "none.yaml" in capsys.readouterr().err


def test_each_demo_gets_a_folder_of_its_own(tmp_path):
    first = start_multi_gpu.next_demo_folder(tmp_path)
    assert first == tmp_path / "demo"
    (first / "models").mkdir(parents=True)
    second = start_multi_gpu.next_demo_folder(tmp_path)
    assert second == Path(tmp_path / "demo-2")
