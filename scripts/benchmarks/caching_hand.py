"""The caching that one would write by hand for this one model: a file of tensors for each image and for each caption.

    python -m scripts.benchmarks.caching_hand --folder DIR --run-folder DIR --method lora --steps 1 --turns 5

Under torchrun, each rank takes its share.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable, Iterator
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from modules.machine.processor_time import displaced_seconds
from scripts.benchmarks.caching import photos_folder
from scripts.benchmarks.material import model_folder
from scripts.benchmarks.worker import BATCH_SIZE, Turns, WorkerArguments, num_ranks

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import nn

T = TypeVar("T")


def main(arguments: WorkerArguments) -> None:
    import torch

    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    turns = Turns(arguments.steps, arguments.total_steps, device.type, num_ranks(), displaced_seconds)
    turns.wait()
    for number in range(1, arguments.total_steps + 1):
        cache_all(arguments.run_folder / f"cache-{number}", device, arguments)
        turns.after_step(number)


def cache_all(cache: Path, device: torch.device, arguments: WorkerArguments) -> None:
    """What this rank has of all images and captions."""
    rank = int(os.environ.get("RANK", "0"))
    cache.mkdir(exist_ok=True)
    paths = sorted(path for path in photos_folder(arguments.folder).iterdir() if path.suffix != ".txt")
    cache_images(paths[rank :: num_ranks()], cache, device, arguments)
    captions = {path.with_suffix(".txt").read_text(encoding="utf-8") for path in paths}
    cache_captions(["", *sorted(captions)][rank :: num_ranks()], cache, device, arguments)


def cache_images(paths: list[Path], cache: Path, device: torch.device, arguments: WorkerArguments) -> None:
    import numpy as np
    import torch
    from diffusers import AutoencoderKL
    from safetensors.torch import save_file

    vae = AutoencoderKL.from_pretrained(model_folder(arguments.folder), subfolder="vae").eval()
    vae.to(device, memory_format=torch.channels_last)
    shapes = {path: bucket_of(path) for path in paths}
    with torch.no_grad():
        for shape, of_shape in groupby(sorted(paths, key=shapes.__getitem__), shapes.__getitem__):
            for chunk in chunks(of_shape):
                pixels_BHWC = torch.from_numpy(np.stack([load(path, shape, arguments) for path in chunk]))
                pixels_BCHW = (pixels_BHWC.permute(0, 3, 1, 2).float() / 127.5 - 1).contiguous().to(device)
                latents = vae.encode(pixels_BCHW).latent_dist.mode() * vae.config.scaling_factor
                for path, latent in zip(chunk, latents.cpu().contiguous(), strict=True):
                    save_file({"latents": latent}, cache / f"{path.stem}.safetensors")


def cache_captions(captions: list[str], cache: Path, device: torch.device, arguments: WorkerArguments) -> None:
    import torch
    from safetensors.torch import save_file
    from transformers import CLIPTextModel, CLIPTokenizer

    text_encoder: nn.Module = CLIPTextModel.from_pretrained(model_folder(arguments.folder), subfolder="text_encoder")
    text_encoder.to(device).eval()
    tokenizer = CLIPTokenizer.from_pretrained(model_folder(arguments.folder), subfolder="tokenizer")
    with torch.no_grad():
        for chunk in chunks(captions, 16):  # as Chorus
            tokens = tokenizer(chunk, padding="max_length", truncation=True, return_tensors="pt").input_ids
            for caption, embedding in zip(chunk, text_encoder(tokens.to(device))[0].cpu().contiguous(), strict=True):
                name = hashlib.sha256(caption.encode()).hexdigest()
                save_file({"prompt_embeds": embedding}, cache / f"{name}.safetensors")


def bucket_of(path: Path) -> tuple[int, int]:
    from PIL import Image

    with Image.open(path) as image:
        return image.width // 2, image.height // 2


def load(path: Path, shape: tuple[int, int], arguments: WorkerArguments) -> np.ndarray:
    """uint8[H, W, 3] with the size of the bucket."""
    import numpy as np
    from PIL import Image

    time.sleep(arguments.decoder_seconds)
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB").resize(shape, Image.Resampling.LANCZOS))


def chunks(items: Iterable[T], size: int = BATCH_SIZE) -> Iterator[list[T]]:
    items = iter(items)
    while chunk := list(islice(items, size)):
        yield chunk


if __name__ == "__main__":
    main(WorkerArguments.parse())
