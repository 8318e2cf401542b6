"""The sound of clips, which a model of videos with sound learns beside them.

A clip without any, such as one of a folder of frames or at another frame rate than the model's, has the latents of
silence, which are no part of the loss. So does an image.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from modules.data.clips import clip_of
from modules.data.conditions.ConditionData import ConditionData
from modules.data.draws import torch_seed
from modules.data.sounds import read_sound
from modules.families.conditions import Sound

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from modules.data.buckets import Buckets
    from modules.data.conditions.ConditionData import Decoded, Rows
    from modules.data.Dataset import Dataset
    from modules.data.LatentEncoder import LatentEncoder

# In a cache entry and in `Batch.given`.
SOUND, NOISE, HEARD = "sound", "sound_noise", "sound_heard"


class _Sound(ConditionData[Sound]):
    def key_parts(
        self, dataset: Dataset, buckets: Buckets, sample: int, contents: Mapping[str, str | None]
    ) -> list[object]:
        return [{"sound": self.spec.sampling_rate}]

    def load(self, dataset: Dataset, buckets: Buckets, sample: int, mask: np.ndarray | None) -> np.ndarray | None:
        """float32[2, samples], None for silence."""
        clip = clip_of(dataset, sample)
        if clip is None or clip.num_frames == 1 or clip.fps != self.family.fps:
            return None
        return read_sound(dataset.paths[sample], clip.start, clip.num_frames / clip.fps, self.spec.sampling_rate)

    def encode(self, decoded: Decoded, latents: Tensor, encoder: LatentEncoder) -> dict[str, Tensor]:
        import torch

        waveform = decoded.loaded[self.spec.name]
        count = round(decoded.num_frames / self.family.fps * self.spec.sampling_rate)
        heard = torch.zeros(2, count) if waveform is None else torch.from_numpy(waveform)
        with torch.no_grad():
            encoded = self.spec.encode(encoder.pipe, heard, self.spec.length(decoded.num_frames))
        return {SOUND: encoded, HEARD: torch.tensor(waveform is not None)}

    def given(self, rows: Rows) -> dict[str, Tensor | list[list[Tensor]]]:
        import torch

        sound = torch.stack([record[SOUND] for record in rows.records])
        generators = [torch.Generator().manual_seed(torch_seed(*draw, "sound noise")) for draw in rows.draws]
        noise = torch.stack([torch.randn(sound.shape[1:], generator=generator) for generator in generators])
        return {SOUND: sound, NOISE: noise, HEARD: torch.stack([record[HEARD] for record in rows.records])}


CONDITION = _Sound
