"""What precedes a section of a clip, for models that make videos section by section.

The cache has the latents of all sections of a clip. Which of them a step trains, and what it sees of those before, is
drawn by hash for each time that the clip is shown.
Source: PKU-YuanGroup/Helios, helios/utils/utils_helios_base.py, which draws history, noise and levels alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from modules.data.clips import clip_of
from modules.data.conditions.ConditionData import ConditionData
from modules.data.conditions.first_frame import without_stills
from modules.data.draws import torch_seed, uniform
from modules.families.conditions import SectionHistory

if TYPE_CHECKING:
    from torch import Tensor

    from modules.config.TrainConfig import TrainConfig
    from modules.data.buckets import Buckets
    from modules.data.conditions.ConditionData import Draw, Rows
    from modules.data.Dataset import Dataset

HISTORY = "history"  # in `Batch.given`


class _SectionHistory(ConditionData[SectionHistory]):
    def select(self, dataset: Dataset, config: TrainConfig) -> Dataset:
        return without_stills(dataset, self.family.label, self.spec.section)

    def frames_in_pass(self, dataset: Dataset) -> Sequence[int] | None:
        return [self.spec.section] * len(dataset)

    def describe(self, dataset: Dataset) -> tuple[str, str] | None:
        sections = sum(self._num_sections(dataset, sample) for sample in dataset.images_of(range(len(dataset))))
        return "Sections", f"{sections} of {self.spec.section} frames, one of each clip in a step"

    def cached_pixels(self, dataset: Dataset, sample: int, pixels: float) -> float:
        return (self._num_sections(dataset, sample) - 1) * pixels  # beside the section that goes through the denoiser

    def key_parts(
        self, dataset: Dataset, buckets: Buckets, sample: int, contents: Mapping[str, str | None]
    ) -> list[object]:
        return [{"section": self.spec.section}]  # of the same VAE, other models have a clip's latents as a whole

    def part(self, record: dict[str, Tensor], draw: Draw) -> dict[str, Tensor]:
        latents, size = record["latents"], self.spec.latents
        number = int(uniform(*draw, "section") * (latents.shape[1] // size))
        start = number * size
        history = self._noised(history_of(latents[:, :start], self.spec.before, self._seen(draw)), draw)
        return {**record, "latents": latents[:, start : start + size], HISTORY: history}

    def given(self, rows: Rows) -> dict[str, Tensor | list[list[Tensor]]]:
        import torch

        return {HISTORY: torch.stack([record[HISTORY] for record in rows.records])}

    def _num_sections(self, dataset: Dataset, sample: int) -> int:
        clip = clip_of(dataset, sample)
        return (clip.num_frames if clip else 1) // self.spec.section

    def _seen(self, draw: Draw) -> int | None:
        """How many latent frames before a section are seen, where there are as many; None for no history at all."""
        spec = self.spec
        if uniform(*draw, "no history") < spec.absent:
            return None
        if uniform(*draw, "shortened history") >= spec.shortened:
            return spec.before
        most = spec.before // spec.latents
        return int(uniform(*draw, "sections of history") * (most + 1)) * spec.latents

    def _noised(self, history: Tensor, draw: Draw) -> Tensor:
        """With noise in the frames that there are, or as it is."""
        import torch

        if uniform(*draw, "clean history") < self.spec.clean:
            return history
        generator = torch.Generator().manual_seed(torch_seed(*draw, "history noise"))
        noise = torch.randn(history.shape, generator=generator)
        numbers = range(history.shape[1])
        levels = torch.tensor([self.spec.noise * uniform(*draw, f"history level {number}") for number in numbers])
        levels = torch.where(history.flatten(2).any(2).any(0), levels, 0.0).view(1, -1, 1, 1)
        return ((1 - levels) * history + levels * noise).to(history.dtype)


def history_of(latents: Tensor, before: int, seen: int | None) -> Tensor:
    """What a section sees of all latents before it, [C, F, h, w]: [C, 1 + before, h, w], with zeros for the rest.

    First comes the first latent frame of the clip, and at the end the one before the section.
    seen: how many of these are seen at most; None for nothing, not even the first.
    """
    channels, num_before, height, width = latents.shape
    history = latents.new_zeros(channels, 1 + before, height, width)
    if seen is None or not num_before:
        return history
    history[:, 0] = latents[:, 0]
    if count := min(seen, before, num_before):
        history[:, -count:] = latents[:, -count:]
    return history


CONDITION = _SectionHistory
