"""One round of samples, generated during training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from modules.config.counted import counted
from modules.distributed.Runtime import Runtime, shard
from modules.layers.device_memory import fits_in_memory
from modules.sampling.generation import ImageRequest, batches, generate_images, image_requests, save_sample
from modules.session.names import safe_file_name

if TYPE_CHECKING:
    from PIL.Image import Image

    from modules.config.SamplingConfig import SamplingConfig
    from modules.data.SampleParts import SampleParts
    from modules.sampling.generation import Video
    from modules.sampling.SamplePrompts import SamplePrompts
    from modules.session.RunFolder import RunFolder
    from modules.session.TrainCallbacks import TrainCallbacks
    from modules.session.TrainCommands import TrainCommands
    from modules.weights.BaseModel import BaseModel

Requests = dict[int | None, ImageRequest]  # by number over all ranks, in order; None: the image is not saved


@dataclass(frozen=True, eq=False)
class SampleRound:
    """Generates the configured samples, split over the ranks. A stop request on any rank ends the round.

    fps: of videos. run_folder: of the training that the samples belong to, if any; once it is gone, none are written.
    """

    settings: SamplingConfig
    prompts: SamplePrompts[BaseModel]
    runtime: Runtime
    callbacks: TrainCallbacks
    commands: TrainCommands
    fps: float = 16.0
    run_folder: RunFolder | None = None
    _obstacles: set[str] = field(default_factory=set, init=False)  # why files could not be written, each told once

    def make(self, folder: Path, step: int, weights: AbstractContextManager) -> None:
        """Generates the images inside the context `weights`. step: passed to the callbacks.

        Running out of memory, or a file that can't be written, is only a warning.
        """
        requests = self._requests()
        own = shard(self.runtime, requests)
        rounds = self._rounds(requests)
        if own:
            self.callbacks.on_status(f"Generating {counted(len(own), 'sample')}")
        if self.runtime.shards and requests:
            # a rank that runs out of memory fails the run, because the others wait within a pass
            self._make_own(rounds, folder, step, weights)
        elif own:
            make = partial(self._make_own, rounds, folder, step, weights)
            if not fits_in_memory(make, self.runtime.device):
                self.callbacks.on_warning(
                    "Not enough memory for the samples: lower sampling.batch_size, or their width and height."
                )
        self.runtime.barrier("sampling")
        if requests and self.runtime.is_main and (not self._obstacles or folder.is_dir()):
            self.callbacks.on_samples(folder, step)

    def encode_prompts(self) -> None:
        """Encodes the prompts of this rank's images ahead of the first round, while the denoiser is not loaded."""
        self._encode(self._rounds(self._requests()))

    def _encode(self, rounds: Sequence[Requests]) -> None:
        size = self.settings.batch_size
        known = [batch for requests in rounds for batch in batches(list(requests.values()), size)]
        self.prompts.encode(known, self.runtime.heartbeat.beat)

    def _requests(self) -> list[tuple[int, ImageRequest]]:
        """The images of all ranks, numbered."""
        enabled = [sample for sample in self.settings.samples if sample.enabled]
        clip_skip = self.prompts.base.config.least_clip_skip
        requests = (request for sample in enabled for request in image_requests(sample, clip_skip, self.fps))
        return list(enumerate(requests))

    def _rounds(self, requests: list[tuple[int, ImageRequest]]) -> list[Requests]:
        """The images of this rank, in rounds between which the ranks may stop."""
        return list(self._shared_rounds(requests)) if self.runtime.shards else [dict(shard(self.runtime, requests))]

    def _shared_rounds(self, numbered_requests: list[tuple[int, ImageRequest]]) -> Iterator[Requests]:
        """Rounds in which every rank generates one batch with the same forward passes.

        A rank without a request in a round generates another rank's image, with no number.
        """
        for _, alike in groupby(numbered_requests, lambda pair: pair[1].batch_key()):
            numbered = list(alike)
            size = self.runtime.world_size * self.settings.batch_size
            for start in range(0, len(numbered), size):
                chunk = numbered[start : start + size]
                yield dict(shard(self.runtime, chunk)) or {None: chunk[0][1]}

    def _make_own(self, rounds: Sequence[Requests], folder: Path, step: int, weights: AbstractContextManager) -> None:
        self._encode(rounds)
        with self.prompts.pipeline() as pipe, weights:
            for requests in rounds:
                images = generate_images(pipe, list(requests.values()), self.settings.batch_size, self.settings.sampler)
                for number, (request, image) in zip(requests, images, strict=True):
                    self.runtime.heartbeat.beat()
                    if number is not None:
                        self._save(folder, number, request, image, step)
                    if not self.runtime.shards and self._stop_asked():
                        return
                if self.runtime.shards and any(self.runtime.gather(self._stop_asked(), "sampling")):
                    return

    def _save(
        self, folder: Path, number: int, request: ImageRequest, sample: Image | Video | SampleParts, step: int
    ) -> None:
        path = folder / f"{number:03d}_{safe_file_name(request.prompt, 60)}_seed{request.seed}.png"
        try:
            if self.run_folder is not None:
                self.run_folder.look_for_run()
            save_sample(path, sample, request, self.fps)
        except OSError as error:
            if (obstacle := error.strerror or str(error)) not in self._obstacles:
                self._obstacles.add(obstacle)
                self.callbacks.on_warning(f"Samples could not be written to {folder} ({obstacle}).")
        else:
            self.callbacks.on_sample(path, request.prompt, step)

    def _stop_asked(self) -> bool:
        """Whether any rank was asked to stop; needed because no step exchanges requests during sampling."""
        if self.commands.stopping:
            self.runtime.announce_stop()
        return self.runtime.stop_announced
