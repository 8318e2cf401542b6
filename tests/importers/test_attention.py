"""The kernels for attention that other programs are told to use, as `model.attention`."""

from __future__ import annotations

import json

import pytest

from modules.importers import attention
from modules.importers.import_files import import_files

OF_PYTORCH = "PyTorch's attention, which gives the same results"
NO_GRADIENTS = "PyTorch's attention, because SageAttention has no backward pass and can't train"
FILES = {
    "OneTrainer": ("config.json", {"training_method": "LORA", "model_type": "STABLE_DIFFUSION_15"}),
    "SimpleTuner": ("config.json", {"model_family": "sdxl", "model_type": "lora", "instance_prompt": ""}),
}
SD_SCRIPTS = "accelerate launch sdxl_train_network.py --pretrained_model_name_or_path m.safetensors"
MUSUBI = "accelerate launch src/musubi_tuner/wan_train_network.py --task t2v-1.3B"
TOOLKIT = {"job": "extension", "config": {"process": [{"type": "sd_trainer", "model": {"arch": "flux"}, "train": {}}]}}


@pytest.fixture
def imported(tmp_path, monkeypatch):
    """Returns a function that imports the lines of a file; installed: whether the packages of attention are there."""

    def read(program: str, said: object, installed: bool = True):
        problem = "" if installed else "needs the package xyz, which is not installed here: run `pip install xyz`"
        monkeypatch.setattr(attention, "package_problem", lambda facts: problem)
        if program in FILES:
            name, values = FILES[program]
            text = json.dumps({**values, "attention_mechanism": said})
        elif program == "AI Toolkit":
            name, job = "job.json", json.loads(json.dumps(TOOLKIT))
            job["config"]["process"][0]["train"] = said
            text = json.dumps(job)
        elif program == "kohya_ss":
            name = "page.json"
            text = json.dumps({"LoRA_type": "Standard", "max_resolution": "512,512", "lr_warmup": 0, "xformers": said})
        else:
            name, text = "train.sh", f"{SD_SCRIPTS if program == 'sd-scripts' else MUSUBI} {said}"
        (tmp_path / name).write_text(text, encoding="utf-8")
        result = import_files([tmp_path / name])
        whys = [line.why for line in result.changed if line.path == "model.attention"]
        return result.values.get("model.attention"), "".join(whys)

    return read


@pytest.mark.parametrize(
    ("program", "said", "value", "why"),
    [
        ("OneTrainer", "XFORMERS", "xformers", ""),
        ("OneTrainer", "SDP", "auto", ""),
        ("OneTrainer", "DEFAULT", "auto", OF_PYTORCH),
        ("kohya_ss", "xformers", "xformers", ""),
        ("kohya_ss", "sdpa", "auto", ""),
        ("sd-scripts", "--xformers", "xformers", ""),
        ("sd-scripts", "--mem_eff_attn", "auto", OF_PYTORCH),
        ("sd-scripts", "--sdpa", "auto", ""),
        ("musubi-tuner", "--flash_attn --split_attn", "flash", ""),
        ("musubi-tuner", "--flash3", "flash3", ""),
        ("musubi-tuner", "--sage_attn", "auto", NO_GRADIENTS),
        ("SimpleTuner", "flash-attn-3-hub", "flash3", ""),
        ("SimpleTuner", "sageattention", "auto", NO_GRADIENTS),
        ("AI Toolkit", {"attention_backend": "flash"}, "flash", ""),
        ("AI Toolkit", {"attention_backend": "_flash_3_hub"}, "flash3", ""),
        ("AI Toolkit", {"xformers": True}, "xformers", ""),
    ],
)
def test_the_kernels_that_another_program_uses_are_taken(program, said, value, why, imported):
    assert imported(program, said) == (value, why)


def test_kernels_that_are_not_installed_are_named_and_not_taken(imported):
    assert imported("kohya_ss", "xformers", installed=False) == (
        "auto",
        f"{OF_PYTORCH}; xformers needs the package xyz, which is not installed here: run `pip install xyz`, and set "
        "model.attention",
    )
