"""Makes resources/video_demo: the base model of the video demo, its clips and its regularization clips.

    python scripts/make_video_demo.py [--vae-steps N] [--base-steps N] [--work FOLDER] [--out FOLDER]

A tiny Wan 2.1 with random weights learns a ball that moves to the left, to the right and down: first its VAE, in a loop
of its own, then the denoiser with Chorus. Up is left for the demo. Takes about half an hour on two CPU cores.
"""

from __future__ import annotations

import argparse
import shutil
import string
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

if __name__ == "__main__":  # before the imports that take long
    from scripts.terminal import prepare_terminal

    prepare_terminal()

import numpy as np
from PIL import Image, ImageDraw

from modules.config.errors import UserError
from modules.config.installation import ROOT
from modules.data.videos import to_mp4
from modules.session.printing import print_line, print_text
from scripts.make_demo_model import replace_entries, train

if TYPE_CHECKING:
    from diffusers.models.autoencoders.autoencoder_kl_wan import AutoencoderKLWan
    from torch import Tensor
    from transformers import T5Tokenizer, UMT5EncoderModel

COLORS = {"red": (235, 70, 60), "green": (60, 200, 90), "blue": (70, 110, 240)}  # the VAE learns all
COLOR = "red"  # what the denoiser learns
DIRECTIONS = {"left": (-1, 0), "right": (1, 0), "down": (0, 1), "up": (0, -1)}
KNOWN, NEW = ("left", "right", "down"), "up"
SIDE, NUM_FRAMES, FPS = 32, 9, 16
RADIUS, TRAVEL = 5, 16  # pixels
BACKGROUND = (24, 26, 34)
OVERSAMPLING = 4
CLIPS_OF_EACH = 150  # direction
NEW_CLIPS, KEPT_CLIPS = 40, 10  # of the direction that the demo teaches, and of each that it is to keep
SEED = 20240501
WORD_START = chr(0x2581)  # how T5 tokenizers mark it
CHANNELS = 8  # of the latents
LATENT_NOISE, SHRINKING = 0.1, 1e-3


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    try:
        with tempfile.TemporaryDirectory() as temporary:
            made = make_demo(args.work or Path(temporary), args.vae_steps, args.base_steps)
            replace_entries(made, args.out)
    except UserError as error:
        print_text(error, sys.stderr)
        return 1
    print_line(f"The video demo is in {args.out}")
    return 0


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Make the base model and the clips of the video demo.")
    parser.add_argument("--vae-steps", type=int, default=3000, metavar="N", help="steps of the autoencoder (3000)")
    parser.add_argument("--base-steps", type=int, default=3000, metavar="N", help="steps of the denoiser (3000)")
    parser.add_argument(
        "--work",
        type=Path,
        metavar="FOLDER",
        help="where intermediate results are kept; what is finished there is not repeated (a temporary folder)",
    )
    out = ROOT / "resources/video_demo"
    parser.add_argument("--out", type=Path, default=out, metavar="FOLDER", help="where to write")
    return parser.parse_args(argv)


def make_demo(work: Path, vae_steps: int, base_steps: int) -> Path:
    """A folder in `work` with everything that the demo ships."""
    made, known = work / "made", work / "known"
    shutil.rmtree(made, ignore_errors=True)
    write_clips(known, KNOWN, CLIPS_OF_EACH)
    write_clips(made / "clips", (NEW,), NEW_CLIPS)
    write_clips(made / "regularisation", KNOWN, KEPT_CLIPS)
    blank = work / "random"
    if not blank.exists():
        make_random_model(work / "unfinished", vae_steps).rename(blank)
    shutil.copytree(train(work / "base", blank, known, base_steps, base_values()), made / "model")
    return made


# --- clips ------------------------------------------------------------------------------------------------------------


def draw_clip(color: str, direction: str, generator: np.random.Generator) -> list[Image.Image]:
    """A ball that moves by TRAVEL pixels, at a random place and never beyond the border."""
    step = np.array(DIRECTIONS[direction]) * TRAVEL / (NUM_FRAMES - 1)
    whole = step * (NUM_FRAMES - 1)
    low = RADIUS - np.minimum(whole, 0)
    start = low + generator.random(2) * (SIDE - RADIUS - np.maximum(whole, 0) - low)
    return [draw_ball(start + step * number, COLORS[color]) for number in range(NUM_FRAMES)]


def draw_ball(center: np.ndarray, color: tuple[int, int, int]) -> Image.Image:
    image = Image.new("RGB", (SIDE * OVERSAMPLING,) * 2, BACKGROUND)
    (x, y), radius = center * OVERSAMPLING, RADIUS * OVERSAMPLING
    ImageDraw.Draw(image).ellipse((x - radius, y - radius, x + radius, y + radius), fill=color)
    return image.resize((SIDE, SIDE), Image.Resampling.BOX)


def write_clips(folder: Path, directions: tuple[str, ...], count: int) -> None:
    """`count` clips of each direction, with captions."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(SEED)
    for direction in directions:
        for number in range(count):
            path = folder / f"{direction}_{number:03d}.mp4"
            path.write_bytes(to_mp4(draw_clip(COLOR, direction, generator), FPS))
            path.with_suffix(".txt").write_text(caption(direction) + "\n", encoding="utf-8")


def caption(direction: str) -> str:
    return f"a {COLOR} ball moving {direction}"


# --- the model --------------------------------------------------------------------------------------------------------


def make_random_model(path: Path, vae_steps: int) -> Path:
    """A Wan 2.1 with a trained VAE and a denoiser of a million random weights."""
    import torch
    from diffusers import FlowMatchEulerDiscreteScheduler, WanTransformer3DModel

    from modules.weights.libraries import import_pipeline

    torch.manual_seed(SEED)
    tokenizer = letters_tokenizer()
    transformer = WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=4,
        attention_head_dim=32,
        in_channels=CHANNELS,
        out_channels=CHANNELS,
        text_dim=48,
        freq_dim=64,
        ffn_dim=256,
        num_layers=4,
        rope_max_seq_len=32,
    )
    parts = {
        "transformer": transformer,
        "vae": trained_vae(vae_steps),
        "scheduler": FlowMatchEulerDiscreteScheduler(shift=2.0),
        "text_encoder": text_encoder(tokenizer),
        "tokenizer": tokenizer,
    }
    import_pipeline("WanPipeline")(**parts).save_pretrained(path)
    return path


def trained_vae(steps: int) -> AutoencoderKLWan:
    """Wan's VAE, tiny: 4 pixels and 4 frames for each latent cell. Its latents get unit variance, as noise has."""
    import torch
    from diffusers.models.autoencoders.autoencoder_kl_wan import AutoencoderKLWan

    vae = AutoencoderKLWan(
        base_dim=8,
        dim_mult=[1, 2, 2],
        num_res_blocks=1,
        temperal_downsample=[True, True],
        scale_factor_spatial=4,
        z_dim=CHANNELS,
        latents_mean=[0.0] * CHANNELS,
        latents_std=[1.0] * CHANNELS,
    )
    generator = np.random.default_rng(SEED)
    optimizer = torch.optim.AdamW(vae.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, max(2, steps), pct_start=0.1)
    background = torch.tensor(BACKGROUND).view(1, 3, 1, 1, 1) / 127.5 - 1
    for step in range(steps):
        clips = random_clips(4, generator)
        latents = vae.encode(clips).latent_dist.mean
        # a little noise makes latents that are alike decode alike, as KL's would; its own would drown the start
        decoded = vae.decode(latents + LATENT_NOISE * torch.randn_like(latents)).sample
        weight = 1 + 4 * (clips - background).abs().amax(1, keepdim=True)  # balls are small
        error = weight * ((decoded - clips).square() + (decoded - clips).abs())
        loss = error.mean() + SHRINKING * latents.square().mean()
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 100 == 0 or step == steps - 1:
            print_line(f"VAE, step {step}: loss {loss.item():.4f}")
    with torch.no_grad():
        latents = vae.encode(random_clips(256, generator)).latent_dist.mode().transpose(0, 1).flatten(1)
    vae.register_to_config(latents_mean=latents.mean(1).tolist(), latents_std=latents.std(1).tolist())
    return vae.eval()


def random_clips(count: int, generator: np.random.Generator) -> Tensor:
    """[B, 3, F, H, W] in [-1, 1], of all directions and colors."""
    import torch

    clips = [
        draw_clip(str(generator.choice([*COLORS])), str(generator.choice([*DIRECTIONS])), generator)
        for _ in range(count)
    ]
    pixels = np.stack([[np.asarray(frame, np.float32) for frame in frames] for frames in clips])
    return torch.from_numpy(pixels / 127.5 - 1).permute(0, 4, 1, 2, 3).contiguous()


def letters_tokenizer() -> T5Tokenizer:
    """A T5 tokenizer with the words of the captions, and letters for all others."""
    from transformers import T5Tokenizer

    words = ["a", "ball", "moving", *COLORS, *DIRECTIONS]
    letters = sorted(set(string.printable) - set(string.whitespace))
    vocab = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), (WORD_START, -2.0)]
    vocab += [(WORD_START + word, -3.0) for word in words] + [(letter, -8.0) for letter in letters]
    return T5Tokenizer(vocab=vocab, extra_ids=0, model_max_length=512)


def text_encoder(tokenizer: T5Tokenizer) -> UMT5EncoderModel:
    """Random weights: other words give other embeddings, which is all that the denoiser needs."""
    from transformers import UMT5Config, UMT5EncoderModel

    config = UMT5Config(
        vocab_size=len(tokenizer),
        d_model=48,
        d_ff=96,
        d_kv=12,
        num_heads=4,
        num_layers=1,
        relative_attention_num_buckets=8,
    )
    return UMT5EncoderModel(config)


def base_values() -> dict[str, Any]:
    return {
        "seed": SEED,
        "family": "wan21",
        "method": "full",
        "epochs": 10_000,  # max_steps ends the run
        "batch_size": 24,
        "data": {
            "resolution": SIDE,
            "bucketing": False,
            "bucket_step": 16,
            "frames": NUM_FRAMES,
            "caption_dropout": 0.1,
        },
        "diffusion": {"timesteps": "uniform"},
        "optimizer": {"learning_rate": 1.5e-3},
        "schedule": {"name": "cosine", "warmup": 0.05},
        "ema": {"enabled": True, "decay": 0.995},
        "backup": {"at_end": False},
        "output": {"name": "demo", "format": "diffusers"},
        "tensorboard": False,
    }


if __name__ == "__main__":
    sys.exit(main())
