"""One round of samples, generated during training."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING

from modules.config.counted import counted
from modules.distributed.Runtime import Runtime, shard
from modules.families.sampling_package import SampleRefused, sampling_package_problem
from modules.layers.device_memory import fits_in_memory
from modules.sampling.generation import (
    ImageRequest,
    as_many_as_fit,
    batches,
    generate_images,
    image_requests,
    save_sample,
)
from modules.session.names import safe_file_name

if TYPE_CHECKING:
    from PIL.Image import Image

    from modules.config.SamplingConfig import SamplingConfig
    from modules.data.SampleParts import SampleParts
    from modules.sampling.generation import Sample, Video
    from modules.sampling.SamplePrompts import SamplePrompts
    from modules.session.RunFolder import RunFolder
    from modules.session.TrainCallbacks import TrainCallbacks
    from modules.session.TrainCommands import TrainCommands
    from modules.weights.BaseModel import BaseModel

Requests = dict[int | None, ImageRequest]  # by number over all ranks; None: the image is not saved
Weights = Callable[[], AbstractContextManager]


@dataclass(frozen=True, eq=False)
class SampleRound:
    """Generates the configured samples, split over the ranks. A stop request on any rank ends the round.

    fps: of videos. run_folder: of the training that the samples belong to, if any; once it is gone, none are written.
    only: the numbers of the images to make, as `make` returns them; None: all.
    """

    settings: SamplingConfig
    prompts: SamplePrompts[BaseModel]
    runtime: Runtime
    callbacks: TrainCallbacks
    commands: TrainCommands
    fps: float = 16.0
    run_folder: RunFolder | None = None
    only: Collection[int] | None = None
    _left: list[int] = field(default_factory=list, init=False)  # of this rank, what a stop request has left out
    _obstacles: set[str] = field(default_factory=set, init=False)  # why files could not be written, each told once

    def make(self, folder: Path, step: int, weights: Weights) -> list[int]:
        """Generates the images inside a context that `weights` makes. step: passed to the callbacks.

        Returns the numbers of the images that a stop request has left out, of all ranks and the same on each.
        Images that don't fit in memory together are generated one at a time. Running out of memory even then, or a file
        that can't be written, is only a warning, as are a family that can't sample here and a guardrail that refuses.
        """
        family = self.prompts.base.family
        if problem := sampling_package_problem(family.sampling_package, family.label):
            self.callbacks.on_warning(problem)
            return []
        requests = self._requests()
        rounds = self._rounds(requests)
        own = [number for of_round in rounds for number in of_round if self._is_asked(number)]
        if own:
            self.callbacks.on_status(f"Generating {counted(len(own), 'sample')}")
        if self.runtime.shards and requests:
            # a rank that runs out of memory fails the run, because the others wait within a pass
            with closing(self._images(_values(rounds), self._batch_size, weights)) as images:
                self._make_own(rounds, folder, step, images)
        elif own:
            make = partial(self._make_fitting, rounds, folder, step, weights)
            try:
                if not fits_in_memory(make, self.runtime.device):
                    self.callbacks.on_warning(
                        "Not enough memory for the samples, even one at a time: lower their width and height."
                    )
            except SampleRefused as error:
                self.callbacks.on_warning(str(error))
        left = self.runtime.gather(self._left, "sampling")
        if requests and self.runtime.is_main and (not self._obstacles or folder.is_dir()):
            self.callbacks.on_samples(folder, step)
        return sorted(number for of_rank in left for number in of_rank)

    def encode_prompts(self) -> None:
        """Encodes the prompts of this rank's images ahead of the first round, while the denoiser is not loaded."""
        self._encode(_values(self._rounds(self._requests())), self._batch_size)

    @property
    def _batch_size(self) -> int:
        return 1 if self.prompts.one_at_a_time else self.settings.batch_size

    def _encode(self, rounds: Sequence[Sequence[ImageRequest]], batch_size: int) -> None:
        known = [batch for requests in rounds for batch in batches(requests, batch_size)]
        self.prompts.encode(known, self.runtime.heartbeat.beat)

    def _requests(self) -> list[tuple[int, ImageRequest]]:
        """The images of all ranks, numbered in the order of the settings; those that can share a batch are together."""
        enabled = [sample for sample in self.settings.samples if sample.enabled]
        clip_skip = self.prompts.base.config.least_clip_skip
        requests = (request for sample in enabled for request in image_requests(sample, clip_skip, self.fps))
        alike: dict[tuple, list[tuple[int, ImageRequest]]] = {}
        for number, request in enumerate(requests):
            alike.setdefault(request.batch_key(), []).append((number, request))
        return [one for group in alike.values() for one in group]

    def _rounds(self, requests: list[tuple[int, ImageRequest]]) -> list[Requests]:
        """The images of this rank, in rounds between which the ranks may stop.

        With those of a batch that are not asked for but were made with others that are: in another batch, rounding
        would make others another image.
        """
        if self.runtime.shards:
            return list(self._shared_rounds(requests))
        own = dict(shard(self.runtime, requests))
        numbers, kept = iter(own), {}
        for batch in batches(list(own.values()), self._batch_size):
            of_batch = dict(zip(islice(numbers, len(batch)), batch, strict=True))
            kept.update(of_batch if any(map(self._is_asked, of_batch)) else {})
        return [kept]

    def _is_asked(self, number: int | None) -> bool:
        return number is not None and (self.only is None or number in self.only)

    def _shared_rounds(self, numbered_requests: list[tuple[int, ImageRequest]]) -> Iterator[Requests]:
        """Rounds in which every rank generates one batch with the same forward passes.

        A rank without a request in a round generates another rank's image, with no number.
        """
        for _, alike in groupby(numbered_requests, lambda pair: pair[1].batch_key()):
            numbered = list(alike)
            size = self.runtime.world_size * self._batch_size
            for start in range(0, len(numbered), size):
                chunk = numbered[start : start + size]
                if any(self._is_asked(number) for number, _ in chunk):
                    yield dict(shard(self.runtime, chunk)) or {None: chunk[0][1]}

    def _make_fitting(self, rounds: Sequence[Requests], folder: Path, step: int, weights: Weights) -> None:
        """`_make_own`, one image at a time where several don't fit in memory together."""
        (requests,) = rounds

        def generate(requests: Sequence[ImageRequest], batch_size: int) -> Generator[Sample, None, None]:
            return self._images([requests], batch_size, weights)

        def tell() -> None:
            self.prompts.one_at_a_time = True
            self.callbacks.on_warning(
                f"Not enough memory to generate {self.settings.batch_size} samples at once: from now on they are "
                "generated one at a time. To avoid this attempt, set sampling.batch_size to 1."
            )

        images = as_many_as_fit(generate, list(requests.values()), self._batch_size, self.runtime.device, tell)
        with closing(images):  # when asked to stop, too: it restores the weights
            self._make_own(rounds, folder, step, images)

    def _images(
        self, rounds: Sequence[Sequence[ImageRequest]], batch_size: int, weights: Weights
    ) -> Generator[Sample, None, None]:
        """What is generated for each request."""
        self._encode(rounds, batch_size)
        with self.prompts.pipeline() as pipe, weights():
            for requests in rounds:
                yield from generate_images(pipe, list(requests), batch_size, self.settings.sampler)

    def _make_own(self, rounds: Sequence[Requests], folder: Path, step: int, images: Iterator[Sample]) -> None:
        """Saves `images`, those of all rounds, as they are generated."""
        left = [number for requests in rounds for number in requests if number is not None and self._is_asked(number)]
        for requests in rounds:
            for number, (request, image) in zip(requests, images, strict=False):  # the other rounds' are left
                self.runtime.heartbeat.beat()
                if number is not None and self._is_asked(number):
                    self._save(folder, number, request, image, step)
                    left.remove(number)
                if not self.runtime.shards and self._stop_asked():
                    self._left.extend(left)
                    return
            if self.runtime.shards and any(self.runtime.gather(self._stop_asked(), "sampling")):
                self._left.extend(left)
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


def _values(rounds: Sequence[Requests]) -> list[list[ImageRequest]]:
    return [list(requests.values()) for requests in rounds]
