"""The picture of a slider from prompts, on digits: python scripts/pictures/slider_strip.py [--work FOLDER]

The demo's model knows no word for the width of strokes, since its captions have none. So it first learns "thick" and
"thin", from its own drawings with changed strokes; then a slider learns from these words alone, without images. Takes a
few minutes on two CPU cores. tests/trainer/test_digits_learnt.py measures the same slider.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from PIL import Image, ImageFilter

from modules.config.errors import UserError
from modules.config.files import config_from_values
from modules.config.installation import ROOT

PICTURE = ROOT / "docs" / "images" / "slider_strip.png"
DEMO = ROOT / "resources" / "demo"
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven")
STRENGTHS = (-1.0, -0.5, 0.0, 0.5, 1.0)
PROMPTS = {
    "target": "a handwritten digit",
    "positive": "a thick handwritten digit",
    "negative": "a thin handwritten digit",
}
SHOWN_SEED = 5000
SIDE = 32  # pixels of a drawing
COLOURS = 32  # of the picture, which is gray


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the picture of a slider from prompts.")
    parser.add_argument("--work", type=Path, metavar="FOLDER", help="where both runs are kept (a temporary folder)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        model = learn_words(args.work or Path(temporary))
        lora = train_slider(args.work or Path(temporary), model)
        save_strip({f"{strength:+g}": drawn(model, {lora: strength}, each=1) for strength in STRENGTHS})


def save_strip(rows: Mapping[str, list[Image.Image]]) -> None:
    """Writes the picture. rows: strength -> one drawing of each digit."""
    from modules.sampling.image_grid import image_grid

    grid = image_grid(list(rows.values()), DIGITS, list(rows))
    grid.convert("L").quantize(COLOURS).save(PICTURE, optimize=True)


# --- drawings ---------------------------------------------------------------------------------------------------------


def drawings_of(digit: str) -> list[Path]:
    """The demo's drawings of a digit, made by its base model."""
    return sorted((DEMO / "regularisation").glob(f"{digit}_*.png"))


def thick(image: Image.Image) -> Image.Image:
    """The drawing with thicker strokes: dark ink spreads."""
    return image.convert("L").filter(ImageFilter.MinFilter(3))


def thin(image: Image.Image) -> Image.Image:
    """The drawing with thinner strokes."""
    return Image.blend(image.convert("L"), image.convert("L").filter(ImageFilter.MaxFilter(3)), 0.7)


def drawn(model: Path, loras: Mapping[str, float], each: int, seed: int = SHOWN_SEED) -> list[Image.Image]:
    """`each` drawings of each digit, digit after digit, from the same noise for all LoRAs and their strengths."""
    import torch

    from modules.sampling.generation import ImageRequest, generate_images
    from modules.weights.load_pipeline import load_pipeline

    used = {lora: strength for lora, strength in loras.items() if strength}
    pipe = load_pipeline(str(model), used, torch.device("cpu"), dtype="float32")
    requests = [
        ImageRequest(f"a handwritten {digit}", "", seed=seed + number, width=SIDE, height=SIDE, steps=10, guidance=2.0)
        for digit in DIGITS
        for number in range(each)
    ]
    # They are no clips.
    return cast("list[Image.Image]", [image for _, image in generate_images(pipe, requests, 16)])


# --- training ---------------------------------------------------------------------------------------------------------


def learn_words(work: Path) -> Path:
    """The demo's model after it has learned the words thick and thin: a diffusers folder in `work`."""
    for digit in DIGITS:
        for path in drawings_of(digit)[:10]:
            image = Image.open(path)
            for word, changed in (("thick ", thick(image)), ("", image), ("thin ", thin(image))):
                write_captioned(work / "words" / f"{word.strip() or 'plain'}_{path.name}", changed, word, digit)
    values = {
        "method": "full",
        "text_encoder": {"train": True},
        "concepts": [{"path": str(work / "words"), "caption_per_line": True}],
        "data": {"caption_dropout": 0.1, "caption_variants": 2},
        "optimizer": {"learning_rate": 0.001},
        "schedule": {"name": "cosine", "warmup": 0.05},
        "batch_size": 16,
        "max_steps": 250,
    }
    return train(work / "with_words", DEMO / "model", values) / "model"


def write_captioned(path: Path, image: Image.Image, word: str, digit: str) -> None:
    """A drawing with two captions, one of which names the digit."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)
    captions = [f"a {word}handwritten {noun}\n" for noun in (digit, "digit")]
    path.with_suffix(".txt").write_text("".join(captions), encoding="utf-8")


def train_slider(work: Path, model: Path) -> str:
    """The LoRA file of a slider between the words, which the model knows."""
    values = {
        "method": "slider",
        "slider": {"source": "prompts", **PROMPTS, "denoising_guidance": 2.0},
        "lora": {"rank": 8, "alpha": 8.0, "targets": "linear_conv"},
        "optimizer": {"learning_rate": 0.002},
        "batch_size": 8,
        "max_steps": 60,
    }
    return str(train(work / "slider", model, values) / "model.safetensors")


def train(run: Path, base: Path, values: Mapping[str, Any]) -> Path:
    """Trains `base` in the output folder `run`, with these values besides those of all runs on digits.

    Returns the folder of the models. Raises UserError if the training does not finish.
    """
    from modules.launch.run import FINISHED
    from modules.launch.start import start_training

    common = {
        "family": "sd15",
        "workspace_dir": str(run),
        "cache_dir": str(run / "cache"),
        "model": {"base": str(base), "weight_dtype": "float32", "mixed_precision": "no"},
        "epochs": 10_000,  # max_steps ends the run
        "backup": {"at_end": False},
        "output": {"format": "diffusers"},
        "tensorboard": False,
    }
    data = {"resolution": SIDE, "bucketing": False, "bucket_step": 8, **values.get("data", {})}
    if start_training(config_from_values({**common, **values, "data": data})) != FINISHED:
        raise UserError(f"The training in {run} has not finished: see the message above.")
    return run / "models"


if __name__ == "__main__":
    main()
