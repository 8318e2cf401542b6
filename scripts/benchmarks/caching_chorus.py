"""Chorus's caching under comparison: what a run does from the listing of its images to the last caption.

    python -m scripts.benchmarks.caching_chorus --folder DIR --run-folder DIR --method lora --steps 1 --turns 5

Under torchrun it is one of several ranks.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scripts.benchmarks.caching import photos_folder
from scripts.benchmarks.chorus_run import make_callbacks, run_values
from scripts.benchmarks.worker import Turns, WorkerArguments

if TYPE_CHECKING:
    from PIL.Image import Image

    from modules.config.TrainConfig import TrainConfig
    from modules.distributed.Runtime import Runtime
    from modules.trainer.StartProgress import StartProgress


def main(arguments: WorkerArguments) -> None:
    from modules.config.files import config_from_values
    from modules.distributed.setup_distributed import cleanup_distributed, create_runtime, setup_distributed
    from modules.machine.processor_time import displaced_seconds
    from modules.session.RunFolder import RunFolder
    from modules.session.TrainCommands import TrainCommands
    from modules.trainer.heap import keep_freed_memory
    from modules.trainer.StartProgress import StartProgress

    config = config_from_values(caching_values(arguments))
    folder = RunFolder(config.workspace_dir)
    folder.create()
    slow_down_decoding(arguments.decoder_seconds)
    with ExitStack() as stack:
        callbacks = make_callbacks(folder, stack)
        setup_distributed(config, callbacks.on_status, callbacks.on_warning)
        runtime = create_runtime(config)
        if runtime.device.type == "cpu":
            keep_freed_memory()
        progress = StartProgress(runtime, callbacks, TrainCommands())
        size = arguments.steps, arguments.total_steps, runtime.device.type, runtime.world_size
        turns = Turns(*size, displaced_seconds)
        turns.wait()
        for number in range(1, arguments.total_steps + 1):
            cache_all(config, arguments.run_folder / f"cache-{number}", runtime, progress)
            turns.after_step(number)
        runtime.close()
        cleanup_distributed()


def caching_values(arguments: WorkerArguments) -> dict[str, Any]:
    """The settings under which Chorus caches what the loop written by hand does."""
    return {**run_values(arguments), "concepts": [{"path": str(photos_folder(arguments.folder))}]}


def cache_all(config: TrainConfig, cache: Path, runtime: Runtime, progress: StartProgress) -> None:
    from modules.data.CaptionSource import CaptionSource
    from modules.data.concepts import captions
    from modules.data.DatasetEncoder import DatasetEncoder
    from modules.data.prepare import prepare_data
    from modules.families.registry import FAMILIES
    from modules.weights.BaseModel import BaseModel

    family = FAMILIES[config.family]
    dataset, buckets = prepare_data(config, family)
    texts = captions(dataset)
    base = BaseModel(family, config.model, runtime.device, runtime.loading_turn)
    is_shared = config.distributed_data_loading
    report = progress.report_or_stop
    encoder = DatasetEncoder(base, dataset, buckets, cache, runtime, is_shared, report, progress.report)
    encoder.latents()
    encoder.text(CaptionSource(dataset, texts, config.seed, config.data.caption_variants).all_texts())


def slow_down_decoding(seconds: float) -> None:
    """Makes a thread wait for so long before it decodes an image."""
    if not seconds:
        return
    from modules.data import decoding

    load_image = decoding.load_image

    def slow_load(path: str, at_least: tuple[int, int] | None = None) -> Image:
        time.sleep(seconds)
        return load_image(path, at_least)

    decoding.load_image = slow_load


if __name__ == "__main__":
    main(WorkerArguments.parse())
