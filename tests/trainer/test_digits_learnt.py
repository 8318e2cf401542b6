"""What sliders teach the demo's model, which draws digits: measured on what it draws afterwards."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter

from modules.config.files import config_from_values
from modules.sampling.generation import ImageRequest, generate_images
from modules.weights.load_pipeline import load_pipeline
from tests.support.train_here import train_here

pytestmark = pytest.mark.proof

DEMO = Path(__file__).resolve().parents[2] / "resources/demo"
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven")
EACH = 4  # drawings of each digit


def pictures(kind: str) -> list[Path]:
    return sorted((DEMO / "regularisation").glob(f"{kind}_*.png"))


def thick(image: Image.Image) -> Image.Image:
    return image.convert("L").filter(ImageFilter.MinFilter(3))  # dark ink spreads


def thin(image: Image.Image) -> Image.Image:
    return Image.blend(image.convert("L"), image.convert("L").filter(ImageFilter.MaxFilter(3)), 0.7)


def trained(tmp_path: Path, **settings: object) -> str:
    """Trains the demo's model, and returns the LoRA's file."""
    values = {
        "family": "sd15",
        "workspace_dir": str(tmp_path / "run"),
        "cache_dir": str(tmp_path / "cache"),
        "model": {"base": str(DEMO / "model"), "weight_dtype": "float32", "mixed_precision": "no"},
        "data": {"resolution": 32, "bucketing": False, "bucket_step": 8},
        "lora": {"rank": 8, "alpha": 8.0, "targets": "linear_conv"},
        "batch_size": 8,
        "epochs": 1000,
        "backup": {"at_end": False},
        "output": {"format": "diffusers"},
        "tensorboard": False,
        **settings,
    }
    assert train_here(config_from_values(values)) == 0
    return str(tmp_path / "run" / "models" / "model.safetensors")


def drawn(loras: dict[str, float], seed: int = 5000) -> list[Image.Image]:
    """EACH drawings of each digit, digit after digit, from the same noise for all LoRAs."""
    pipe = load_pipeline(str(DEMO / "model"), loras, torch.device("cpu"), dtype="float32")
    requests = [
        ImageRequest(f"a handwritten {name}", "", seed=seed + number, width=32, height=32, steps=10, guidance=2.0)
        for name in DIGITS
        for number in range(EACH)
    ]
    return [image for _, image in generate_images(pipe, requests, 16)]


def ink(images: list[Image.Image]) -> np.ndarray:
    """[images], the share of ink of each."""
    return np.array([1 - np.asarray(image.convert("L"), float).mean() / 255 for image in images])


def test_a_slider_makes_strokes_thicker_and_thinner(tmp_path):
    for name, change in (("strong", thick), ("weak", thin)):
        (tmp_path / name).mkdir()
        for kind in DIGITS:
            for path in pictures(kind)[:3]:
                change(Image.open(path)).save(tmp_path / name / path.name)
                (tmp_path / name / path.name).with_suffix(".txt").write_text(f"a handwritten {kind}")
    lora = trained(
        tmp_path,
        method="slider",
        slider={"source": "pairs"},
        concepts=[{"path": str(tmp_path / "strong"), "pair_folder": str(tmp_path / "weak")}],
        optimizer={"learning_rate": 0.002},
        max_steps=60,
    )
    images = {strength: drawn({lora: strength} if strength else {}) for strength in (-1.0, -0.5, 0.0, 0.5, 1.0)}
    shares = {strength: float(ink(several).mean()) for strength, several in images.items()}
    print("share of ink by strength:", shares)
    assert list(shares.values()) == sorted(shares.values())
    assert shares[1.0] > 1.1 * shares[0.0]
    assert shares[-1.0] < 0.9 * shares[0.0]
