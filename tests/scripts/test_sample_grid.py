"""scripts/sample_grid.py: one process makes the images that as many calls of sample.py make."""

import json

import numpy as np
import pytest
import torch
from diffusers import StableDiffusionPipeline
from peft import LoraConfig
from PIL import Image

from modules.weights.lora_files import AdaptedModel, save_lora
from scripts import sample, sample_grid


@pytest.fixture(scope="module")
def loras(tiny_sd15, tmp_path_factory):
    """Two LoRA files of the tiny model that change what it draws."""
    files = []
    for number in range(2):
        pipe = StableDiffusionPipeline.from_pretrained(tiny_sd15)
        pipe.unet.add_adapter(LoraConfig(r=2, lora_alpha=8, target_modules=["to_q", "to_v"]))
        torch.manual_seed(number)
        for name, param in pipe.unet.named_parameters():
            if "lora_B" in name:
                param.data.normal_(0, 0.3)
        stem = tmp_path_factory.mktemp("loras") / f"lora{number}"
        files += save_lora(stem, AdaptedModel({"unet": pipe.unet}, StableDiffusionPipeline))
    return files


def options(base, out, lora: str, prompt: str) -> list[str]:
    words = ["--base", str(base), "--out", str(out), "--steps", "2", "--width", "32", "--height", "32"]
    return [*words, *(["--lora", lora] if lora else []), "--prompt", prompt, "--batch-size", "1"]


def pixels(path) -> np.ndarray:
    return np.asarray(Image.open(path), dtype=int)


def test_a_grid_has_the_images_of_single_calls_and_loads_the_model_once(
    tiny_sd15, loras, tmp_path, monkeypatch, capsys
):
    wanted = [
        (f"{lora}:{strength}", prompt) for lora in loras for strength in (0.5, 1.0) for prompt in ("a cat", "a dog")
    ]
    folder = tmp_path / "grid"
    folder.mkdir()
    cells = [
        {"file": f"{number}.png", "options": options(tiny_sd15, folder, lora, prompt)}
        for number, (lora, prompt) in enumerate(wanted)
    ]
    (folder / "grid.json").write_text(json.dumps({"cells": cells}))
    loads, load = [], sample.load
    monkeypatch.setattr(sample, "load", lambda *arguments: loads.append(1) or load(*arguments))
    assert sample_grid.main([str(folder / "grid.json")]) == 0
    assert len(loads) == 1
    assert len(capsys.readouterr().out.splitlines()) == len(wanted)
    for number in (0, 3, 6):
        single = tmp_path / f"single{number}"
        assert sample.main(options(tiny_sd15, single, *wanted[number])) == 0
        assert abs(pixels(next(single.glob("*.png"))) - pixels(folder / f"{number}.png")).max() <= 1
    assert (pixels(folder / "0.png") != pixels(folder / "2.png")).any()
    (folder / "5.png").unlink()
    capsys.readouterr()
    assert sample_grid.main([str(folder / "grid.json")]) == 0
    assert capsys.readouterr().out.splitlines() == [str(folder / "5.png")]  # it continues with what is missing


def test_another_base_is_loaded_for_each_checkpoint_of_a_full_model(tiny_sd15, tmp_path, monkeypatch):
    import shutil

    shutil.copytree(tiny_sd15, tmp_path / "other")
    cells = [
        {"file": f"{number}.png", "options": options(base, tmp_path, "", prompt)}
        for number, (base, prompt) in enumerate(
            (base, word) for base in (tiny_sd15, tmp_path / "other") for word in "ab"
        )
    ]
    (tmp_path / "grid.json").write_text(json.dumps({"cells": cells}))
    loads, load = [], sample.load
    monkeypatch.setattr(sample, "load", lambda *arguments: loads.append(1) or load(*arguments))
    assert sample_grid.main([str(tmp_path / "grid.json")]) == 0
    assert len(loads) == 2
    assert (pixels(tmp_path / "1.png") == pixels(tmp_path / "3.png")).all()


def test_a_file_that_is_no_grid_and_a_lora_that_is_gone_are_told_in_a_sentence(tiny_sd15, tmp_path, capsys):
    path = tmp_path / "grid.json"
    for text in ("", "[]", '{"cells": [{}]}'):
        path.write_text(text)
        assert sample_grid.main([str(path)]) == 2
        assert "is no grid of images" in capsys.readouterr().err
    cells = [{"file": "a.png", "options": options(tiny_sd15, tmp_path, str(tmp_path / "gone.safetensors"), "a")}]
    path.write_text(json.dumps({"cells": cells}))
    assert sample_grid.main([str(path)]) == 2
    assert "gone.safetensors" in capsys.readouterr().err
