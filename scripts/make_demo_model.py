"""Makes resources/demo: the demo's base model, its images and its regularization images.

    python scripts/make_demo_model.py [--vae-steps N] [--base-steps N] [--work FOLDER] [--out FOLDER]

Chorus trains a tiny Stable Diffusion with random weights on the handwritten digits zero to seven: first its VAE, then
the denoiser and the text encoder. Eight and nine are left for the demo. Needs scikit-learn, which includes the scans,
and takes about seven minutes on two CPU cores.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

if __name__ == "__main__":  # before the imports that take long
    from scripts.terminal import prepare_terminal

    prepare_terminal()

from PIL import Image

from modules.config.ConceptConfig import ConceptConfig
from modules.config.errors import UserError
from modules.config.files import config_from_values
from modules.config.installation import ROOT
from modules.sampling.image_grid import image_grid
from modules.session.printing import print_line, print_text
from modules.session.RunFolder import RunFolder

if TYPE_CHECKING:
    import numpy as np
    from diffusers.pipelines.stable_diffusion.pipeline_stable_diffusion import StableDiffusionPipeline
    from transformers import CLIPTextModel, CLIPTokenizer

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
KNOWN = range(8)  # what the base model learns
NEW = range(8, 10)  # what the demo teaches it
SIDE = 32  # pixels of an enlarged scan
SEED = 20240501
PREVIEW_ROWS = 4
SAMPLING = {"width": SIDE, "height": SIDE, "num_inference_steps": 20, "guidance_scale": 2.0}


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    try:
        with tempfile.TemporaryDirectory() as temporary:
            made = make_demo(args.work or Path(temporary), args.vae_steps, args.base_steps, args.regularisation_count)
            replace_entries(made, args.out)
    except UserError as error:
        print_text(error, sys.stderr)
        return 1
    print_line(f"The demo is in {args.out}")
    return 0


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Make the demo's base model and pictures.")
    parser.add_argument("--vae-steps", type=int, default=400, metavar="N", help="steps of the autoencoder (400)")
    parser.add_argument("--base-steps", type=int, default=1500, metavar="N", help="steps of the denoiser (1500)")
    parser.add_argument(
        "--regularisation-count", type=int, default=25, metavar="N", help="pictures of each known digit (25)"
    )
    parser.add_argument(
        "--work",
        type=Path,
        metavar="FOLDER",
        help="where the two runs are kept; one that is finished there is not repeated (a temporary folder)",
    )
    parser.add_argument("--out", type=Path, default=ROOT / "resources/demo", metavar="FOLDER", help="where to write")
    return parser.parse_args(argv)


def make_demo(work: Path, vae_steps: int, base_steps: int, regularisation_count: int) -> Path:
    """A folder in `work` with everything that the demo ships."""
    made, known = work / "made", work / "known"
    shutil.rmtree(made, ignore_errors=True)
    write_scans(known, KNOWN)
    write_scans(made / "pictures", NEW)
    blank = make_random_model(work / "random")
    with_vae = train(work / "vae", blank, known, vae_steps, vae_values())
    scale_latents(with_vae, known)
    base = train(work / "base", with_vae, known, base_steps, base_values())
    shutil.copytree(base, made / "model")
    draw_known_digits(made, regularisation_count)
    return made


def replace_entries(made: Path, out: Path) -> None:
    """Puts what was made in the place of what was there; other files in `out` stay."""
    out.mkdir(parents=True, exist_ok=True)
    for entry in made.iterdir():
        if entry.is_dir():
            shutil.rmtree(out / entry.name, ignore_errors=True)
        shutil.move(entry, out / entry.name)


# --- pictures ---------------------------------------------------------------------------------------------------------


def caption(digit: int) -> str:
    return f"a handwritten {NAMES[digit]}"


def write_scans(folder: Path, digits: range) -> None:
    """The scans of these digits as pictures with captions, named by their position in scikit-learn's data."""
    from sklearn.datasets import load_digits

    scans = load_digits()
    for number, (ink, digit) in enumerate(zip(scans.images, scans.target, strict=True)):
        if digit in digits:
            write_captioned(folder, f"{number:04d}", enlarge(ink), digit)


def enlarge(ink: np.ndarray) -> Image.Image:
    """A scan, 8x8 amounts of ink from 0 to 16, as dark ink on white paper, SIDE pixels wide and high."""
    small = Image.fromarray((255 - ink * (255 / 16)).round().astype("uint8"))
    return small.resize((SIDE, SIDE), Image.Resampling.BICUBIC)


def write_captioned(folder: Path, name: str, image: Image.Image, digit: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    image.save(folder / f"{name}.png", optimize=True)
    (folder / f"{name}.txt").write_text(caption(digit) + "\n", encoding="utf-8")


def draw_known_digits(demo: Path, count: int) -> None:
    """What the base model draws of the digits it knows, `count` of each, and a preview of all ten."""
    from diffusers import StableDiffusionPipeline

    pipe = StableDiffusionPipeline.from_pretrained(demo / "model")
    pipe.set_progress_bar_config(disable=True)
    for digit in KNOWN:
        for number, image in enumerate(draw(pipe, digit, count)):
            write_captioned(demo / "regularisation", f"{NAMES[digit]}_{number:02d}", image.convert("L"), digit)
    columns = [draw(pipe, digit, PREVIEW_ROWS) for digit in range(10)]
    image_grid(list(zip(*columns, strict=True)), NAMES).convert("L").save(demo / "before.png", optimize=True)


def draw(pipe: StableDiffusionPipeline, digit: int, count: int) -> list[Image.Image]:
    import torch

    generators = [torch.Generator().manual_seed(SEED + number) for number in range(count)]
    return pipe([caption(digit)] * count, generator=generators, **SAMPLING).images


# --- the model --------------------------------------------------------------------------------------------------------


def make_random_model(path: Path) -> Path:
    """A Stable Diffusion of 1.4 million random weights: its parts and file layout, none of its size."""
    import torch
    from diffusers import AutoencoderKL, DDIMScheduler, UNet2DConditionModel

    from modules.weights.libraries import import_pipeline

    torch.manual_seed(SEED)
    tokenizer = byte_tokenizer()
    vae = AutoencoderKL(
        block_out_channels=(16, 32, 32),
        layers_per_block=1,
        latent_channels=4,
        norm_num_groups=8,
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
        sample_size=SIDE,
    )
    unet = UNet2DConditionModel(
        sample_size=SIDE // 4,
        block_out_channels=(32, 64),
        layers_per_block=1,
        norm_num_groups=8,
        down_block_types=("CrossAttnDownBlock2D",) * 2,
        up_block_types=("CrossAttnUpBlock2D",) * 2,
        cross_attention_dim=64,
        attention_head_dim=4,
    )
    scheduler = DDIMScheduler(
        beta_start=0.00085,
        beta_end=0.012,
        beta_schedule="scaled_linear",
        clip_sample=False,
        set_alpha_to_one=False,
        steps_offset=1,
        timestep_spacing="trailing",
    )
    parts = {
        "vae": vae,
        "text_encoder": text_encoder(tokenizer),
        "tokenizer": tokenizer,
        "unet": unet,
        "scheduler": scheduler,
        "safety_checker": None,
        "feature_extractor": None,
        "requires_safety_checker": False,
    }
    import_pipeline("StableDiffusionPipeline")(**parts).save_pretrained(path)
    return path


def byte_tokenizer() -> CLIPTokenizer:
    """CLIP's tokenizer with bytes for words, so that no vocabulary has to be learnt."""
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import CLIPTokenizer

    letters = sorted(ByteLevel.alphabet())
    tokens = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    # 32 tokens: the captions have 19, and the cost of the text encoder grows with them
    return CLIPTokenizer(vocab={token: number for number, token in enumerate(tokens)}, merges=[], model_max_length=32)


def text_encoder(tokenizer: CLIPTokenizer) -> CLIPTextModel:
    from transformers import CLIPTextConfig, CLIPTextModel

    return CLIPTextModel(
        CLIPTextConfig(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=128,
            projection_dim=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=tokenizer.model_max_length,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def scale_latents(model: Path, pictures: Path) -> None:
    """Sets the autoencoder's scaling factor so that the latents of `pictures` have unit variance, as noise has."""
    import numpy as np
    import torch
    from diffusers import AutoencoderKL

    from modules.data.images import load_image, to_array

    vae = AutoencoderKL.from_pretrained(model / "vae")
    pixels = np.stack([to_array(load_image(str(path))) for path in sorted(pictures.glob("*.png"))])
    with torch.no_grad():
        latents = torch.cat([vae.encode(chunk).latent_dist.mode() for chunk in torch.from_numpy(pixels).split(64)])
    vae.register_to_config(scaling_factor=round(1 / latents.std().item(), 5))
    vae.save_config(model / "vae")


# --- training ---------------------------------------------------------------------------------------------------------


def train(run: Path, base: Path, pictures: Path, steps: int, values: dict[str, Any]) -> Path:
    """Trains `base` on `pictures` in the run folder `run`, unless that is done; returns the trained model's folder."""
    from modules.launch.run import FINISHED
    from modules.launch.start import start_training

    config = config_from_values(values, source="make_demo_model.py")
    config.workspace_dir, config.cache_dir = str(run), str(run / "cache")
    config.model.base = str(base)
    config.concepts = [ConceptConfig(path=str(pictures))]
    config.max_steps = steps
    ended = RunFolder(run).read_exit()
    if ended is None or ended["status"] != "finished":
        shutil.rmtree(run, ignore_errors=True)
        if start_training(config) != FINISHED:
            raise UserError(f"The training of the {config.output.name} has not finished: see the message above.")
    return run / "models" / config.output.name


def common_values() -> dict[str, Any]:
    return {
        "seed": SEED,
        "epochs": 10_000,  # max_steps ends the run
        "batch_size": 64,
        "data": {"resolution": SIDE, "bucketing": False, "bucket_step": 8},
        "schedule": {"name": "cosine", "warmup": 0.05},
        "ema": {"enabled": True, "decay": 0.995},
        "backup": {"at_end": False},
        "output": {"name": "demo", "format": "diffusers"},
        "tensorboard": False,
    }


def vae_values() -> dict[str, Any]:
    values = common_values()
    values["optimizer"] = {"learning_rate": 2e-3}
    return {**values, "method": "vae", "vae": {"kl_weight": 1e-4}}


def base_values() -> dict[str, Any]:
    values = common_values()
    values["optimizer"] = {"learning_rate": 2e-3}
    values["data"]["caption_dropout"] = 0.1
    return {**values, "method": "full", "text_encoder": {"train": True}}


if __name__ == "__main__":
    sys.exit(main())
