"""What samples take of a GPU's memory beside what the training holds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from modules.config.clips import sample_frames
from modules.config.image_sizes import sample_size
from modules.config.rules.conditions import rules_of
from modules.machine.architectures import correction

if TYPE_CHECKING:
    from modules.config.SampleConfig import SampleConfig
    from modules.config.TrainConfig import TrainConfig
    from modules.machine.memory.RunMemory import RunMemory

ALLOCATOR = 1.1
"""Fragmentation: activations of many sizes are allocated and freed."""
_DECODER_WIDTH = 256  # channels of the decoder at its widest point, which is at the image's full size
_DENOISER_WIDTH = 2 * 228  # values of the denoiser per image pixel at its widest point, doubled by guidance
_TRAINED_SIZE, _OTHER_SIZE = "samples", "samples of another size"


@dataclass(frozen=True)
class SampleMemory:
    """Bytes on one GPU, of the ranks that share the samples of `run`.

    Prompts are encoded before the training, and the VAE is loaded while it decodes. So it is the larger of two: the
    activations of the denoiser for one batch of images, or the VAE with those of its decoder for one image.
    """

    run: RunMemory

    @property
    def peak(self) -> float:
        """0 if the run makes no samples."""
        run = self.run
        if not run.config.sampling.makes_samples:
            return 0
        trains_denoiser = run.method.uses_denoiser
        absent = 0 if trains_denoiser else run.denoiser
        absent += run.model.guidance_denoisers * run.whole_denoiser
        vae = run.model.vae * run.weight_bytes if trains_denoiser else 0
        passing = absent + max(self._denoising * ALLOCATOR, vae + self._decoding * ALLOCATOR)
        return passing * self.correction

    @property
    def kind(self) -> str:
        """For `load_corrections`."""
        is_own = any(sample.enabled and (sample.width or sample.height) for sample in self.run.config.sampling.samples)
        return _OTHER_SIZE if is_own else _TRAINED_SIZE

    @property
    def correction(self) -> float:
        """Of a kind that no preset has, that of samples of another size."""
        return correction(self.run.config, self.kind, _TRAINED_SIZE if self.kind == _OTHER_SIZE else _OTHER_SIZE)

    @property
    def _enabled(self) -> list[SampleConfig]:
        return [sample for sample in self.run.config.sampling.samples if sample.enabled]

    @property
    def _sizes(self) -> list[tuple[int, int]]:
        """(pixels of an image or frame, number of frames) of each sample."""
        config = self.run.config
        return [(math.prod(sample_size(each, config.data)), sample_frames(each, config)) for each in self._enabled]

    @property
    def _denoising(self) -> float:
        """Of one batch: at least 456 bytes per pixel in half precision, doubled by guidance. scripts/model_counts.py
        counts more for some models, in half precision for one of the two passes that guidance needs."""
        run = self.run
        count = sum(sample.count for sample in self._enabled)
        pictures = min(run.config.sampling.batch_size, math.ceil(count / run.num_ranks))
        pixels = max(size * run.latent_frames(frames) for size, frames in self._sizes) * images_at_once(run.config)
        value_bytes = 2 if run.is_mixed else run.weight_bytes
        return pictures * pixels * max(_DENOISER_WIDTH, run.model.held["denoiser"]) * value_bytes

    @property
    def _decoding(self) -> float:
        """Of one image. At full size, 256 channels go into a norm, 256 come out of it and 256 out of the activation
        behind it: in float32 3 x 256 x 4 = 3,072 bytes per pixel, more in video models. Mixed precision applies to the
        denoiser only. Source: scripts/model_counts.py.
        """
        run = self.run
        # SDXL's pipeline decodes in float32 if the weights are float16, in which its VAE overflows
        value_bytes = 4 if run.config.model.weight_dtype == "float16" else run.weight_bytes
        if all(frames == 1 for _, frames in self._sizes):
            pixels = max(size for size, _ in self._sizes)
            return pixels * max(_DECODER_WIDTH * 3, run.model.held["vae"] / 4) * value_bytes
        decoder, of_frame = run.model.clip["decoder"], run.model.clip["decoder_frame"]
        return max(size * (decoder + of_frame * frames) / 4 * value_bytes for size, frames in self._sizes)


def images_at_once(config: TrainConfig) -> int:
    """How many images the latents of a sample hold, beside the frames of a clip: an image and its layers, for one."""
    return math.prod(rules.images_at_once(config) for rules in rules_of(config))
