"""Adding a kind of adapters takes one file and its facts, and no change elsewhere."""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file

from tests.support.fork_server import ForkedScript
from tests.support.waiting import PATIENCE_SECONDS

SCRIPT = Path(__file__).resolve().parents[1] / "support" / "new_adapter" / "with_outer.py"
LAYER = "down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q"


def run(output: Path, *arguments: str) -> None:
    script = ForkedScript([str(SCRIPT), *arguments], os.environ, output, imports_anew=True)
    assert script.wait(PATIENCE_SECONDS) == 0, output.read_text(encoding="utf-8")


def test_a_new_kind_of_adapters_trains_is_saved_loaded_and_merged(make_config, config_file, tmp_path, tiny_sd15):
    output = tmp_path / "output.txt"
    run(output, "train", "--config", str(config_file(make_config("max_steps=3"))), "--set", "lora.adapter=outer")
    (saved,) = (tmp_path / "run" / "models").glob("*.safetensors")
    with safe_open(saved, "pt") as file:
        assert json.loads(file.metadata()["ss_network_args"])["algo"] == "outer"
    parts = load_file(saved)
    name = f"lora_unet_{LAYER.replace('.', '_')}"
    added = torch.outer(parts[f"{name}.outer_out"].float(), parts[f"{name}.outer_in"].float())
    assert added.any()
    run(output, "lora", "merge", str(tiny_sd15), str(tmp_path / "merged"), "--lora", str(saved))
    before, after = (
        load_file(folder / "unet" / "diffusion_pytorch_model.safetensors")[f"{LAYER}.weight"]
        for folder in (tiny_sd15, tmp_path / "merged")
    )
    torch.testing.assert_close(after, before + added, rtol=1e-5, atol=1e-7)
    assert not torch.equal(after, before)
