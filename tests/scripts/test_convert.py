"""scripts/convert.py hands its arguments on and tells a refusal in one line."""

import pytest
import torch

from modules.weights.safe import load_tensors, save_tensors
from scripts import convert, lora


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


@pytest.mark.parametrize("script", [convert, lora])
def test_an_unknown_family_is_told_without_naming_all(script, capsys):
    command = ["resize"] if script is lora else []
    with pytest.raises(SystemExit):
        script.main([*command, "a.safetensors", "b.safetensors", "--family", "flux_1"])
    error = capsys.readouterr().err
    assert "unknown family 'flux_1': did you mean flux1?" in error
    assert len(error) < 600


def test_a_refusal_is_one_line(tmp_path, capsys):
    assert convert.main([str(tmp_path / "none"), str(tmp_path / "y.safetensors")]) == 2
    error = capsys.readouterr().err
    assert "no such folder or file" in error
    assert error.count("\n") == 1


def test_words_that_a_lora_loses_are_named_in_one_line(tmp_path, capsys):
    layer = "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn1_to_q"
    lora = {
        f"{layer}.lora_down.weight": torch.ones(2, 320),
        f"{layer}.lora_up.weight": torch.ones(320, 2),
        f"{layer}.alpha": torch.tensor(2.0),
    }
    words = {f"bundle_emb.{word}.emb_params": torch.ones(1, 768) for word in ("sks", "v1.5")}
    source, target, plain = (tmp_path / f"{name}.safetensors" for name in ("kohya", "diffusers", "plain"))
    save_tensors(source, {**lora, **words})
    assert convert.main([str(source), str(target), "--family", "sd15"]) == 0
    said = capsys.readouterr()
    assert said.out.strip() == str(target)
    assert said.err == (
        f"'{source}': its words 'sks', 'v1.5' are left out, because a LoRA in diffusers' format can't hold them: load "
        "their own files, too.\n"
    )
    assert len(load_tensors(target)) == 2
    save_tensors(source, lora)
    assert convert.main([str(source), str(plain), "--family", "sd15"]) == 0
    assert not capsys.readouterr().err
