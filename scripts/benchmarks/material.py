"""What the benchmarks train on: a small Stable Diffusion 1.5 with random weights, and captioned pictures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from modules.session.atomic import new_folder

if TYPE_CHECKING:
    from transformers import CLIPTextModel, CLIPTokenizer

NUM_PICTURES = 64
PICTURE_SIZE = 256
COLOURS = {"red": (220, 40, 40), "green": (40, 200, 60), "blue": (40, 70, 220), "yellow": (230, 220, 50)}
SHAPES = ("circle", "square", "stripes")


def model_folder(folder: Path) -> Path:
    return folder / "model"


def pictures_folder(folder: Path) -> Path:
    return folder / "pictures"


def make_material(folder: Path) -> None:
    """Makes the model and the pictures below `folder`, where they are not there yet."""
    folder.mkdir(parents=True, exist_ok=True)
    if not model_folder(folder).exists():
        with new_folder(model_folder(folder)) as temporary:
            _make_model(temporary)
    if not pictures_folder(folder).exists():
        with new_folder(pictures_folder(folder)) as temporary:
            _make_pictures(temporary)


def picture_size(folder: Path) -> int:
    """The side of the pictures, which are squares of one size; pixels."""
    from PIL import Image

    with Image.open(next(pictures_folder(folder).glob("*.png"))) as picture:
        return picture.width


def _make_model(path: Path) -> None:
    """The parts and the depth of the real model in 23 million parameters: an eighth of its widths at the top."""
    import torch

    from modules.weights.libraries import import_pipeline

    pipeline = import_pipeline("StableDiffusionPipeline")  # before the imports below: it silences them
    from diffusers import AutoencoderKL, PNDMScheduler, UNet2DConditionModel

    torch.manual_seed(0)
    tokenizer = _byte_tokenizer()
    unet = UNet2DConditionModel(
        sample_size=PICTURE_SIZE // 8,
        layers_per_block=1,
        block_out_channels=(64, 128, 256, 256),
        cross_attention_dim=64,
        attention_head_dim=8,
    )
    vae = AutoencoderKL(
        block_out_channels=(32, 64, 64, 64),
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        sample_size=PICTURE_SIZE,
    )
    scheduler = PNDMScheduler(
        beta_start=0.00085,
        beta_end=0.012,
        beta_schedule="scaled_linear",
        skip_prk_steps=True,
        set_alpha_to_one=False,
        steps_offset=1,
    )
    parts = {
        "vae": vae,
        "text_encoder": _small_text_encoder(tokenizer),
        "tokenizer": tokenizer,
        "unet": unet,
        "scheduler": scheduler,
        "safety_checker": None,
        "feature_extractor": None,
        "requires_safety_checker": False,
    }
    pipeline(**parts).save_pretrained(path)


def _byte_tokenizer() -> CLIPTokenizer:
    """CLIP's tokenizer without merges: any text becomes the ids of its bytes."""
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import CLIPTokenizer

    letters = sorted(ByteLevel.alphabet())
    tokens = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    return CLIPTokenizer(vocab={token: number for number, token in enumerate(tokens)}, merges=[], model_max_length=77)


def _small_text_encoder(tokenizer: CLIPTokenizer) -> CLIPTextModel:
    from transformers import CLIPTextConfig, CLIPTextModel

    config = CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        projection_dim=64,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return CLIPTextModel(config)


def _make_pictures(path: Path) -> None:
    """Noisy coloured shapes with a caption beside each."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    rows, columns = np.mgrid[:PICTURE_SIZE, :PICTURE_SIZE]
    for number in range(NUM_PICTURES):
        colour = list(COLOURS)[number % len(COLOURS)]
        shape = SHAPES[number // len(COLOURS) % len(SHAPES)]
        centre = rng.integers(PICTURE_SIZE // 4, 3 * PICTURE_SIZE // 4, 2)
        radius = rng.integers(PICTURE_SIZE // 8, PICTURE_SIZE // 4)
        down, right = abs(rows - centre[0]), abs(columns - centre[1])
        inside = {
            "circle": down**2 + right**2 < radius**2,
            "square": np.maximum(down, right) < radius,
            "stripes": (down + right) // (radius // 2) % 2 == 0,
        }[shape]
        pixels_HWC = np.where(inside[..., None], COLOURS[colour], rng.integers(0, 256, 3))
        pixels_HWC = pixels_HWC + rng.normal(0, 8, pixels_HWC.shape)
        Image.fromarray(pixels_HWC.clip(0, 255).astype(np.uint8)).save(path / f"{number:03d}.png")
        (path / f"{number:03d}.txt").write_text(f"a {colour} {shape}, number {number}", encoding="utf-8")
