"""What it costs to encode images and captions into the caches, beside a loop written by hand that does the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from modules.session.atomic import new_folder
from scripts.benchmarks.results import Comparison, Target
from scripts.benchmarks.worker import WorkerArguments
from scripts.benchmarks.workers import take_turns

CHORUS, BY_HAND = "caching_chorus", "caching_hand"
PROCESSOR_TIME, SLOW_DECODER = Target(1.00), Target(1.50, at_least=True)
NUM_PHOTOS = 36
SIZES = ((512, 512), (576, 448), (448, 576))  # twice those of their buckets, so that both sides resize alike
SLOW_SECONDS = 0.1  # to decode an image, as from a network or a large file


def photos_folder(folder: Path) -> Path:
    return folder / "photos"


def compare_caching(
    folder: Path, device: str, pairs: int, num_ranks: int = 1, decoder_seconds: float = 0.0
) -> Iterator[Comparison]:
    """Seconds and processor seconds (of all threads and ranks) to load the encoders and to cache all photos and their
    captions; with a decoder that makes a thread wait, the images per second of the undisturbed time,
    because what other programs add to encoding would hide the waiting."""
    make_photos(folder)
    ranks = f", {num_ranks} ranks" if num_ranks > 1 else ""
    arguments = WorkerArguments(folder, "lora", 1, pairs + 1, decoder_seconds=decoder_seconds)
    answers = take_turns([(CHORUS, arguments), (BY_HAND, arguments)], pairs, device, num_ranks)
    if decoder_seconds:
        count = sum(path.suffix != ".txt" for path in photos_folder(folder).iterdir())
        speeds = [(count / ours.undisturbed_seconds, count / theirs.undisturbed_seconds) for ours, theirs in answers]
        yield Comparison(f"caching with a slow decoder, {device}{ranks}", "images/s", SLOW_DECODER, speeds)
        return
    used = [(ours.cpu_seconds, theirs.cpu_seconds) for ours, theirs in answers]
    yield Comparison(
        f"caching, {device}{ranks}", "s", None, [(ours.seconds, theirs.seconds) for ours, theirs in answers]
    )
    yield Comparison(f"caching, {device}{ranks}, processor time", "s", PROCESSOR_TIME, used)


def make_photos(folder: Path) -> None:
    """Makes captioned JPEGs of three shapes below `folder`, not in their order, where they are not there yet."""
    import numpy as np
    from PIL import Image

    if photos_folder(folder).exists():
        return
    rng = np.random.default_rng(1)
    with new_folder(photos_folder(folder)) as temporary:
        for number in range(NUM_PHOTOS):
            width, height = SIZES[number % len(SIZES)]
            coarse = Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8))
            pixels_HWC = np.asarray(coarse.resize((width, height))) + rng.normal(0, 8, (height, width, 3))
            photo = Image.fromarray(pixels_HWC.clip(0, 255).astype(np.uint8))
            photo.save(temporary / f"{number:03d}.jpg", quality=95)
            (temporary / f"{number:03d}.txt").write_text(f"photo number {number}", encoding="utf-8")
