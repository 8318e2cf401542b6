"""Models of their published widths and shapes with random weights, and pictures to train them on.

Elsewhere than on a GPU, tiny models and small pictures take their place.
"""

from __future__ import annotations

import functools
import gc
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from scripts.gpu.cases import is_cuda
from scripts.gpu.tiny_runs import tiny_model, work_folder

SDXL, FLUX1 = "sdxl", "flux1"
# FLUX.1 has a third of its blocks, and its text encoder a tenth: all else is as published, and it is there in seconds.
FEWER_BLOCKS = {
    (FLUX1, "transformer"): {"num_layers": 6, "num_single_layers": 12},
    (FLUX1, "text_encoder_2"): {"num_layers": 2, "num_decoder_layers": 2},
}
NUM_BLOCKS = {FLUX1: 18}
NUM_PICTURES = 8


def side_of(device: str) -> int:
    """Of the pictures, in pixels."""
    return 1024 if is_cuda(device) else 64


@functools.cache
def model_folder(name: str, device: str) -> Path:
    """A diffusers folder of the model."""
    import torch

    from modules.families.registry import FAMILIES
    from scripts.published_models import build

    if not is_cuda(device):
        return tiny_model(name)
    folder = work_folder() / "real models" / name
    shutil.copytree(tiny_model(name), folder)
    family: Any = FAMILIES[name]
    published = family.published
    parts = {family.denoisers[0]: published.denoiser, family.vae: published.vae}
    encoders = zip(family.text.encoders, published.text_encoders, strict=True)
    for part, facts in {**parts, **{part: facts for part, (facts, _) in encoders}}.items():
        facts = replace(facts, config={**facts.config, **FEWER_BLOCKS.get((name, part), {})})
        module: Any = build(facts, torch.bfloat16).to_empty(device=device)
        _randomize(module)
        shutil.rmtree(folder / part)
        module.save_pretrained(folder / part)
        del module
        gc.collect()
    return folder


def _randomize(module: Any) -> None:
    import torch

    with torch.no_grad():
        for name, value in module.named_parameters():
            if value.dim() > 1:
                value.normal_(0.0, 0.02)
            else:
                value.fill_(0.0 if name.endswith("bias") else 1.0)


@functools.cache
def noise_pictures(device: str) -> Path:
    """Captioned squares of noise."""
    import numpy as np
    from PIL import Image

    side = side_of(device)
    folder = work_folder() / f"pictures of {side}"
    folder.mkdir()
    for number in range(NUM_PICTURES):
        noise = np.random.default_rng(number).integers(0, 256, (side // 16, side // 16, 3), dtype=np.uint8)
        Image.fromarray(noise).resize((side, side)).save(folder / f"{number}.png")
        (folder / f"{number}.txt").write_text(caption(number), encoding="utf-8")
    return folder


def caption(number: int) -> str:
    return f"a photo of a cat, number {number}"
