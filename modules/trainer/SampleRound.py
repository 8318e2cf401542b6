"""One round of sample images, generated during training."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from modules.distributed.Runtime import Runtime, shard
from modules.session.names import safe_file_name
from modules.trainer.sampling import ImageRequest, generate_images, image_requests, save_image
from modules.weights.device_memory import fits_in_memory

if TYPE_CHECKING:
    from modules.config.SamplingConfig import SamplingConfig
    from modules.session.TrainCallbacks import TrainCallbacks
    from modules.session.TrainCommands import TrainCommands
    from modules.weights.BaseModel import BaseModel


@dataclass(frozen=True, eq=False)
class SampleRound:
    """Generates the configured sample images, split over the ranks. A stop request on any rank ends the round."""

    settings: SamplingConfig
    base: BaseModel
    runtime: Runtime
    callbacks: TrainCallbacks
    commands: TrainCommands

    def make(self, folder: Path, step: int, weights: AbstractContextManager) -> None:
        """Generates the images inside the context `weights`. step: passed to the callbacks.

        Running out of memory, or a file that can't be written, is only a warning.
        """
        requests = [r for sample in self.settings.samples if sample.enabled for r in image_requests(sample)]
        own = shard(self.runtime, list(enumerate(requests)))
        if own:
            self.callbacks.on_status(f"Generating {len(own)} samples")
            make = partial(self._make_own, dict(own), folder, step, weights)
            if not fits_in_memory(make, self.runtime.device):
                self.callbacks.on_warning(
                    "Not enough memory for the samples: lower sampling.batch_size, or their width and height."
                )
        self.runtime.barrier("sampling")
        if requests and self.runtime.is_main:
            self.callbacks.on_samples(folder, step)

    def _make_own(
        self, requests: dict[int, ImageRequest], folder: Path, step: int, weights: AbstractContextManager
    ) -> None:
        """requests: number over all ranks -> request, in order."""
        with self.base.using(*self.base.component_names) as pipe, weights:
            images = generate_images(pipe, list(requests.values()), self.settings.batch_size)
            for number, (request, image) in zip(requests, images, strict=True):
                self.runtime.heartbeat.beat()
                path = folder / f"{number:03d}_{safe_file_name(request.prompt, 60)}_seed{request.seed}.png"
                try:
                    save_image(path, image, request)
                except OSError as error:
                    self.callbacks.on_warning(f"A sample could not be written to {path} ({error.strerror or error}).")
                    continue
                self.callbacks.on_sample(path, request.prompt, step)
                if self._stop_asked():
                    break

    def _stop_asked(self) -> bool:
        """Whether any rank was asked to stop; needed because no step exchanges requests during sampling."""
        if self.commands.stopping:
            self.runtime.announce_stop()
        return self.runtime.stop_announced
