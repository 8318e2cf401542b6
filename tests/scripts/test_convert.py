"""scripts/convert.py hands its arguments on and tells a refusal in one line."""

from scripts import convert


def test_a_folder_becomes_a_file_and_a_folder_again(tiny_sd15, tmp_path, capsys):
    file, folder = tmp_path / "x.safetensors", tmp_path / "back"
    assert convert.main([str(tiny_sd15), str(file), "--dtype", "float16"]) == 0
    assert convert.main([str(file), str(folder), "--config", str(tiny_sd15)]) == 0
    assert capsys.readouterr().out.split() == [str(file), str(folder)]
    assert (folder / "unet" / "diffusion_pytorch_model.safetensors").is_file()


def test_a_missing_config_folder_is_told_by_the_name_of_the_option(tiny_sd15, tmp_path, capsys):
    file = tmp_path / "x.safetensors"
    assert convert.main([str(tiny_sd15), str(file)]) == 0
    assert convert.main([str(file), str(tmp_path / "y"), "--config", str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err.startswith(f"--config {str(tmp_path / 'none')!r}: no such folder")


def test_a_refusal_is_one_line(tmp_path, capsys):
    assert convert.main([str(tmp_path / "none"), str(tmp_path / "y.safetensors")]) == 2
    error = capsys.readouterr().err
    assert "no such folder or file" in error
    assert error.count("\n") == 1
