"""Samples without image files, for methods that draw their latents themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from modules.config.ConceptConfig import ConceptConfig
from modules.config.methods import TARGET, facts_of, has_images
from modules.data.Dataset import Dataset

if TYPE_CHECKING:
    from torch import Tensor

    from modules.config.TrainConfig import TrainConfig
    from modules.data.buckets import Buckets

NUM_DRAWN = 100
"""Samples of an epoch without images."""


def draws_images(config: TrainConfig) -> bool:
    """Whether the run has no images, and needs none."""
    return facts_of(config).draws_images(config) and not has_images(config)


def drawn_dataset(config: TrainConfig) -> Dataset:
    """`NUM_DRAWN` squares of the resolution in a concept of their own, whose caption is the target prompt."""
    facts = facts_of(config)
    concept = ConceptConfig(name="no images", captions="prompt", prompt=facts.prompts(config).get(TARGET, ""))
    sides = np.full(NUM_DRAWN, config.data.resolution, np.int32)
    names = [f"drawn-{number:03d}" for number in range(NUM_DRAWN)]
    return Dataset([concept], names, np.zeros(NUM_DRAWN, np.int32), sides, sides, unreadable=[])


@dataclass(frozen=True, eq=False)
class DrawnRecords:
    """Latents of zeros, which stand for their shape alone. latent_shape: as of PixelRecords."""

    buckets: Buckets
    latent_shape: Callable[[int, int], tuple[int, ...]]

    def record(self, sample: int) -> dict[str, Tensor]:
        import torch

        return {"latents": torch.zeros(self.latent_shape(*self.buckets.shape_of(sample)))}

    def noise_shape(self, batch: dict[str, Tensor]) -> tuple[int, ...]:
        return tuple(batch["latents"].shape[1:])
