"""What sliders and preferences teach the demo's model, which draws digits: measured on what it draws afterwards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter

from modules.config.files import config_from_values
from modules.data.preference_pairs import add_preference
from modules.sampling.generation import ImageRequest, generate_images
from modules.weights.load_pipeline import load_pipeline
from tests.support.train_here import train_here

pytestmark = pytest.mark.proof

DEMO = Path(__file__).resolve().parents[2] / "resources/demo"
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven")
EACH = 4  # drawings of each digit
LEGIBLE = 0.85  # of the drawings at the least: heavy strokes close the loops of a few


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


@pytest.fixture(scope="module")
def legible() -> Callable[[list[Image.Image]], float]:
    """Drawings -> the fraction in which a classifier, fitted on the real scans, sees the digit that was asked for."""
    scans = pytest.importorskip("sklearn.datasets", reason="scikit-learn ships the scans").load_digits()
    from sklearn.svm import SVC

    classifier = SVC(gamma=0.001, C=10).fit(scans.data, scans.target)

    def fraction(images: list[Image.Image]) -> float:
        grey = np.stack([np.asarray(image.convert("L"), float) for image in images])
        scanned = (255 - grey.reshape(-1, 8, 4, 8, 4).mean((2, 4))) * 16 / 255
        wanted = np.repeat(np.arange(len(DIGITS)), EACH)
        return float((classifier.predict(scanned.reshape(-1, 64)) == wanted).mean())

    return fraction


def test_a_slider_makes_strokes_thicker_and_thinner(tmp_path, legible):
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
    clear = {strength: legible(several) for strength, several in images.items()}
    print("share of ink by strength:", shares, "legible:", clear)
    assert list(shares.values()) == sorted(shares.values())
    assert shares[1.0] > 1.1 * shares[0.0]
    assert shares[-1.0] < 0.9 * shares[0.0]
    assert min(clear.values()) >= LEGIBLE


def test_preferences_move_the_model_to_the_chosen_style(tmp_path, legible):
    """Thick and thin drawings are equally frequent at first, about the median of the ink of each digit."""
    before = drawn({}, seed=9000)
    medians = np.repeat(np.median(ink(before).reshape(-1, EACH), axis=1), EACH)

    for kind in DIGITS:
        for path in pictures(kind)[:6]:
            files = [tmp_path / f"{path.stem}_{name}.png" for name in ("thick", "thin")]
            for file, change in zip(files, (thick, thin), strict=True):
                change(Image.open(path)).save(file)
            add_preference(tmp_path / "preferences", *files, f"a handwritten {kind}")
    lora = trained(
        tmp_path,
        method="preference",
        preference={"beta": 2000.0},
        concepts=[{"path": str(tmp_path / "preferences")}],
        optimizer={"learning_rate": 0.0001},
        max_steps=15,
    )
    after = drawn({lora: 1.0}, seed=9000)
    share = [float((ink(images) > medians).mean()) for images in (before, after)]
    print(
        "share of the chosen style:", share, "ink:", ink(before).mean(), ink(after).mean(), "legible:", legible(after)
    )
    assert share[0] == pytest.approx(0.5, abs=0.05)
    assert share[1] > 0.8
    assert legible(after) >= LEGIBLE  # a blot would have the most ink
