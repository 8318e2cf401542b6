"""What sliders and preferences teach the demo's model, which draws digits: measured on what it draws afterwards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from modules.data.preference_pairs import add_preference
from scripts.pictures.slider_strip import (
    DEMO,
    DIGITS,
    drawings_of,
    drawn,
    learn_words,
    thick,
    thin,
    train,
    train_slider,
)

pytestmark = pytest.mark.proof

EACH = 4  # drawings of each digit
LEGIBLE = 0.85  # of the drawings at the least: heavy strokes close the loops of a few
STRENGTHS = (-1.0, -0.5, 0.0, 0.5, 1.0)


def trained(tmp_path: Path, **settings: object) -> str:
    """Trains the demo's model, and returns the LoRA's file."""
    values = {"lora": {"rank": 8, "alpha": 8.0, "targets": "linear_conv"}, "batch_size": 8, **settings}
    return str(train(tmp_path / "run", DEMO / "model", values) / "model.safetensors")


def by_strength(model: Path, lora: str) -> dict[float, list[Image.Image]]:
    return {strength: drawn(model, {lora: strength}, EACH) for strength in STRENGTHS}


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
            for path in drawings_of(kind)[:3]:
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
    images = by_strength(DEMO / "model", lora)
    shares = {strength: float(ink(several).mean()) for strength, several in images.items()}
    clear = {strength: legible(several) for strength, several in images.items()}
    print("share of ink by strength:", shares, "legible:", clear)
    assert list(shares.values()) == sorted(shares.values())
    assert shares[1.0] > 1.1 * shares[0.0]
    assert shares[-1.0] < 0.9 * shares[0.0]
    assert min(clear.values()) >= LEGIBLE


def test_a_slider_from_the_words_thick_and_thin_alone_does_so_too(tmp_path, legible):
    """Without images, on a model that has learned these words, which the demo's captions lack."""
    model = learn_words(tmp_path)
    images = by_strength(model, train_slider(tmp_path, model))
    shares = {strength: float(ink(several).mean()) for strength, several in images.items()}
    clear = {strength: legible(several) for strength, several in images.items()}
    print("share of ink by strength:", shares, "legible:", clear)
    assert list(shares.values()) == sorted(shares.values())
    assert shares[1.0] > 1.2 * shares[0.0]
    assert shares[-1.0] < 0.8 * shares[0.0]
    assert min(clear[strength] for strength in (-0.5, 0.0, 0.5)) >= LEGIBLE
    assert min(clear.values()) >= 0.7  # the ends are far: a third less and half as much more ink


def test_preferences_move_the_model_to_the_chosen_style(tmp_path, legible):
    """Thick and thin drawings are equally frequent at first, about the median of the ink of each digit."""
    before = drawn(DEMO / "model", {}, EACH, seed=9000)
    medians = np.repeat(np.median(ink(before).reshape(-1, EACH), axis=1), EACH)

    for kind in DIGITS:
        for path in drawings_of(kind)[:6]:
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
    after = drawn(DEMO / "model", {lora: 1.0}, EACH, seed=9000)
    share = [float((ink(images) > medians).mean()) for images in (before, after)]
    print(
        "share of the chosen style:", share, "ink:", ink(before).mean(), ink(after).mean(), "legible:", legible(after)
    )
    assert share[0] == pytest.approx(0.5, abs=0.05)
    assert share[1] > 0.8
    assert legible(after) >= LEGIBLE  # a blot would have the most ink
