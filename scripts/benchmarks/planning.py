"""What many pictures cost: planning, a dry run, and making the batches of a step."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from modules.config.errors import UserError
from scripts.benchmarks.material import model_folder
from scripts.benchmarks.results import Comparison, Figure, Found, Target
from scripts.benchmarks.worker import peak_bytes

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from modules.data.buckets import Buckets
    from modules.data.records import CachedRecords

ROOT = Path(__file__).resolve().parents[2]
NUM_PLANNED = 1_000_000
NUM_DRY = 1_000
BATCH_COUNTS = (100, 10_000, 1_000_000)  # of images
GLOBAL_BATCH = 4
NUM_ENTRIES = 64  # different cache entries among which the samples are shared out
STEPS_OF_A_BLOCK = 40
PLANNING_SECONDS, PLANNING_GIB = 5.0, 1.0
FLAT = Target(1.05)  # however many images there are


def measure_planning(folder: Path, blocks: int) -> Iterator[Found]:
    """All results of this file. Each is taken in a process of its own, so that memory is not mixed up.

    blocks: pairs of the comparison.
    """
    planning = _in_process("plan_many", str(NUM_PLANNED))
    what = f"planning {planning['pictures']:,} images"
    yield Figure(what, planning["seconds"], "s", PLANNING_SECONDS)
    if planning["peak_bytes"] is not None:
        yield Figure(f"{what}, peak memory", planning["peak_bytes"] / 2**30, "GiB", PLANNING_GIB)
    dry = dry_run(folder, NUM_DRY)
    has_torch = f"torch {'imported' if dry['imports_torch'] else 'not imported'}"
    yield Figure(f"dry run of {dry['pictures']:,} images", dry["seconds"], "s", details=has_torch)
    batches = _in_process("batch_seconds", str(blocks), *map(str, BATCH_COUNTS))
    fewest, *others = batches["counts"]
    for count in others:
        pairs = list(zip(batches["ms"][str(count)], batches["ms"][str(fewest)], strict=True))
        sides = (f"{count:,} images", f"{fewest:,} images")
        yield Comparison(f"batches of a step, {count:,} images", "ms", FLAT, pairs, sides)


def plan_many(pictures: str) -> dict[str, Any]:
    """Shapes and steps of one epoch, from the sizes of the pictures."""
    import numpy as np

    from modules.data.epoch_plan import plan_epoch

    count = int(pictures)
    widths, heights = np.random.default_rng(0).integers(400, 2000, (2, count), np.int32)
    started = time.perf_counter()
    buckets = _buckets(widths, heights)
    plan = plan_epoch(buckets.index, np.ones(count), seed=1, epoch=0, global_batch=GLOBAL_BATCH)
    seconds = time.perf_counter() - started
    return {"pictures": count, "steps": plan.num_steps, "seconds": seconds, "peak_bytes": peak_bytes()}


def batch_seconds(blocks: str, *counts: str) -> dict[str, Any]:
    """Milliseconds to make what one step trains on, with few and with many images, taking turns.

    Each block gives, for each number of images, the median of its steps.
    """
    ms: dict[str, list[float]] = {count: [] for count in counts}
    with tempfile.TemporaryDirectory() as cache_dir:
        makers = {count: _batch_maker(int(count), cache_dir) for count in counts}
        for number in range(int(blocks)):
            seconds: dict[str, list[float]] = {count: [] for count in counts}
            for step in range(STEPS_OF_A_BLOCK):
                for count in counts[:: 1 if step % 2 else -1]:
                    started = time.perf_counter()
                    makers[count](number * STEPS_OF_A_BLOCK + step)
                    seconds[count].append(time.perf_counter() - started)
            for count in counts:
                ms[count].append(1000 * median(seconds[count]))
    return {"counts": [int(count) for count in counts], "ms": ms}


def dry_run(folder: Path, count: int) -> dict[str, Any]:
    """Seconds of `scripts/train.py --dry-run` on `count` pictures, process start included, and whether it has torch."""
    from PIL import Image

    program = "import sys; from scripts.train import main; main(sys.argv[1:]); print('torch' in sys.modules)"
    with tempfile.TemporaryDirectory(prefix="pictures-", dir=folder) as pictures:
        for number in range(count):
            name = Path(pictures) / f"{number:06d}"
            Image.new("RGB", (64 + 8 * (number % 5), 64), (number % 256, 0, 0)).save(name.with_suffix(".png"))
            name.with_suffix(".txt").write_text(f"picture {number}", encoding="utf-8")
        config = Path(pictures) / "config.json"
        values = {
            "model": {"base": str(model_folder(folder))},
            "concepts": [{"path": pictures}],
            "workspace_dir": str(Path(pictures) / "run"),
            "cache_dir": str(Path(pictures) / "cache"),
        }
        config.write_text(json.dumps(values), encoding="utf-8")
        started = time.perf_counter()
        lines = _run([sys.executable, "-c", program, "--config", str(config), "--dry-run"])
        seconds = time.perf_counter() - started
    return {"pictures": count, "seconds": seconds, "imports_torch": lines[-1] == "True"}


def _batch_maker(count: int, cache_dir: str) -> Callable[[int], object]:
    """A function that makes the batches of a step."""
    import numpy as np
    import torch

    from modules.config.ConceptConfig import ConceptConfig
    from modules.data.CaptionSource import CaptionSource
    from modules.data.Dataset import Dataset
    from modules.data.epoch_plan import plan_epoch, shard
    from modules.data.records import CachedRecords
    from modules.data.SampleSource import SampleSource

    widths = np.full(count, 512, np.int32)
    paths = [f"{number}.png" for number in range(count)]
    dataset = Dataset([ConceptConfig()], paths, np.zeros(count, np.int32), widths, widths, [])
    buckets = _buckets(widths, widths)
    latents = _records(cache_dir, "latents", {"latents": torch.zeros(4, 64, 64)}, count)
    captions = [f"picture {number}" for number in range(count)]
    records = _records(cache_dir, "text", {"prompt_embeds": torch.zeros(77, 768)}, count)
    text = CachedRecords(records.cache, dict(zip(captions, records.keys.values(), strict=True)), records.remake)
    drawn = CaptionSource(dataset, [(caption,) for caption in captions], 1, 1)
    source = SampleSource(dataset, buckets, latents, drawn, text, 0.0, 1, torch.float32)
    plan = plan_epoch(buckets.index, dataset.repeats, seed=1, epoch=0, global_batch=GLOBAL_BATCH)

    def make(number: int) -> object:
        samples = plan.step(number % plan.num_steps)
        return [source.batch(part, epoch=0) for part in shard(samples, buckets.index, 0, 1, accumulation=1)]

    return make


def _records(cache_dir: str, kind: str, record: dict[str, Tensor], count: int) -> CachedRecords[int]:
    from modules.data.records import CachedRecords
    from modules.data.TensorCache import TensorCache

    cache = TensorCache(cache_dir, kind, rank=0)
    for number in range(NUM_ENTRIES):
        cache.put(f"{number:04d}", record)
    return CachedRecords(cache, {number: f"{number % NUM_ENTRIES:04d}" for number in range(count)}, lambda: None)


def _buckets(widths: np.ndarray, heights: np.ndarray) -> Buckets:
    from modules.data.buckets import assign_buckets

    return assign_buckets(widths, heights, resolution=512, step=64, max_aspect=2.0, bucketing=True)


def _in_process(function: str, *arguments: str) -> dict[str, Any]:
    return json.loads(_run([sys.executable, "-m", "scripts.benchmarks.planning", function, *arguments])[-1])


def _run(command: list[str]) -> list[str]:
    """What the command prints, by line."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8")
    if done.returncode:
        raise UserError(f"{' '.join(command)} failed: {done.stderr.strip()}")
    return done.stdout.strip().splitlines()


FUNCTIONS: dict[str, Callable[..., dict[str, Any]]] = {"plan_many": plan_many, "batch_seconds": batch_seconds}

if __name__ == "__main__":
    print(json.dumps(FUNCTIONS[sys.argv[1]](*sys.argv[2:])))
