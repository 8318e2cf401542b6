"""Models of their published widths and shapes with random weights, and pictures to train them on.

Elsewhere than on a GPU, tiny models and small pictures take their place.
"""

from __future__ import annotations

import functools
import gc
import shutil
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from scripts.gpu.cases import NotHere, is_cuda
from scripts.gpu.models import FLUX1, WAN, WHOLE_FLUX1
from scripts.gpu.tiny_runs import tiny_model, work_folder

# FLUX.1 has a third of its blocks, and text encoders a tenth, as they only run before the first step: all else is as
# published, and it is there in seconds.
SHORT_TEXT_ENCODER = {"num_layers": 2, "num_decoder_layers": 2}
FEWER_BLOCKS = {
    (FLUX1, "transformer"): {"num_layers": 6, "num_single_layers": 12},
    (FLUX1, "text_encoder_2"): SHORT_TEXT_ENCODER,
    (WHOLE_FLUX1, "text_encoder_2"): SHORT_TEXT_ENCODER,
    (WAN, "text_encoder"): SHORT_TEXT_ENCODER,
}
NUM_BLOCKS = {FLUX1: 18, WHOLE_FLUX1: 57}
VIDEO_FRAMES, VIDEO_SIZE = 49, (1280, 704)  # of Wan
TINY_FRAMES, TINY_SIZE = 5, (64, 64)
NUM_PICTURES, NUM_VIDEOS = 8, 2


def family_of(name: str) -> str:
    """Of a model's name, which may say more than the family."""
    return name.partition(" ")[0]


def side_of(device: str) -> int:
    """Of the pictures, in pixels."""
    return 1024 if is_cuda(device) else 64


def frames_of(device: str) -> int:
    return VIDEO_FRAMES if is_cuda(device) else TINY_FRAMES


@functools.cache
def model_folder(name: str, device: str) -> Path:
    """A diffusers folder of the model."""
    import torch

    from modules.families.registry import FAMILIES
    from scripts.published_models import build

    tiny = tiny_model(family_of(name))
    if not is_cuda(device):
        return tiny
    folder = work_folder() / "real models" / name
    shutil.copytree(tiny, folder)
    family: Any = FAMILIES[family_of(name)]
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


@functools.cache
def noise_videos(device: str) -> Path:
    """Captioned videos. Raises NotHere without the package that writes them."""
    from tests.support.videos import write_video

    if not find_spec("av"):
        raise NotHere("needs the package av")
    size = VIDEO_SIZE if is_cuda(device) else TINY_SIZE
    folder = work_folder() / f"videos of {size[0]}"
    for number in range(NUM_VIDEOS):
        video = write_video(folder / f"{number}.mp4", frames_of(device), fps=24, size=size)
        video.with_suffix(".txt").write_text(caption(number), encoding="utf-8")
    return folder


@functools.cache
def material(name: str, device: str) -> Path:
    """Model and pictures in one folder, as scripts/benchmarks/material.py lays them out."""
    folder = work_folder() / "material" / name
    folder.mkdir(parents=True)
    for part, place in (("model", model_folder(name, device)), ("pictures", noise_pictures(device))):
        try:
            (folder / part).symlink_to(place, target_is_directory=True)
        except OSError:  # Windows lets not everyone make links
            shutil.copytree(place, folder / part)
    return folder


def caption(number: int) -> str:
    return f"a photo of a cat, number {number}"
