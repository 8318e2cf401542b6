"""The sound of clips, which a model of videos with sound learns beside them.

A clip without an audio track, such as one of a folder of frames or at another frame rate than the model's, is trained
as a video alone, apart from those with one, or, by models that always see sound, with the latents of silence. So is an
image. Silence, also that of a track in which nothing can be heard, is no part of the loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from modules.config.counted import counted
from modules.data.clips import clip_of, num_clips
from modules.data.ClipWithAudio import Audio, ClipWithAudio
from modules.data.conditions.ConditionData import ConditionData
from modules.data.draws import torch_seed
from modules.data.sounds import read_sound
from modules.families.conditions import Sound

if TYPE_CHECKING:
    from diffusers.pipelines.pipeline_utils import DiffusionPipeline
    from torch import Tensor

    from modules.data.buckets import Buckets
    from modules.data.conditions.ConditionData import Decoded, Rows
    from modules.data.Dataset import Dataset
    from modules.data.ImageRequest import ImageRequest
    from modules.data.LatentEncoder import LatentEncoder

# In a cache entry and in `Batch.given`.
SOUND, NOISE, HEARD = "sound", "sound_noise", "sound_heard"


class _Sound(ConditionData[Sound]):
    def passes(self, dataset: Dataset) -> Sequence[str] | None:
        if self.spec.needed or not dataset.videos:
            return None
        return ["with sound" if self._has_track(dataset, sample) else "" for sample in range(len(dataset))]

    def describe(self, dataset: Dataset) -> tuple[str, str] | None:
        if not dataset.videos:
            return None
        count = sum(self._has_track(dataset, sample) for sample in dataset.images_of(range(len(dataset))))
        total = counted(num_clips(dataset), "clip")
        return "Sound", f"of {count} of {total}" if count else f"none: no audio track at {self.family.fps:g} frames/s"

    def key_parts(
        self, dataset: Dataset, buckets: Buckets, sample: int, contents: Mapping[str, str | None]
    ) -> list[object]:
        is_seen = self.spec.needed or self._has_track(dataset, sample)
        return [{"sound": self.spec.sampling_rate}] if is_seen else []

    def load(self, dataset: Dataset, buckets: Buckets, sample: int, mask: np.ndarray | None) -> np.ndarray | None:
        """float32[2, samples], zeros for silence; None of a sample that is trained without."""
        if not (self.spec.needed or self._has_track(dataset, sample)):
            return None
        clip, rate = clip_of(dataset, sample), self.spec.sampling_rate
        if clip is not None and self._has_track(dataset, sample):
            found = read_sound(dataset.paths[sample], clip.start, clip.num_frames / clip.fps, rate)
            if found is not None:
                return found
        return np.zeros((2, round((clip.num_frames if clip else 1) / self.family.fps * rate)), np.float32)

    def encode(self, decoded: Decoded, latents: Tensor, encoder: LatentEncoder) -> dict[str, Tensor]:
        import torch

        waveform = decoded.loaded[self.spec.name]
        if waveform is None:
            return {}
        with torch.no_grad():
            length = self.spec.length(decoded.num_frames)
            encoded = self.spec.encode(encoder.pipe, torch.from_numpy(waveform), length)
        return {SOUND: encoded, HEARD: torch.tensor(bool(waveform.any()))}

    def given(self, rows: Rows) -> dict[str, Tensor | list[list[Tensor]]]:
        import torch

        if SOUND not in rows.records[0]:  # which then all are without, by `passes`
            return {}
        sound = torch.stack([record[SOUND] for record in rows.records])
        generators = [torch.Generator().manual_seed(torch_seed(*draw, "sound noise")) for draw in rows.draws]
        noise = torch.stack([torch.randn(sound.shape[1:], generator=generator) for generator in generators])
        return {SOUND: sound, NOISE: noise, HEARD: torch.stack([record[HEARD] for record in rows.records])}

    def made(self, samples: list[Any], output: Any, pipe: DiffusionPipeline, request: ImageRequest) -> list[Any]:
        """Clips with what the model has made them sound like, unless they are played at another rate than its own."""
        heard, fps = getattr(output, "audio", None), self.family.fps
        if heard is None or not isinstance(samples[0], list) or request.fps not in (0, fps):
            return samples
        rate = self.spec.output_rate(pipe) if self.spec.output_rate else self.spec.sampling_rate
        heard = heard if heard.ndim == 3 else heard[:, None].expand(-1, 2, -1)
        waveforms = heard.float().cpu().clamp(-1, 1).numpy()
        pairs = zip(samples, waveforms, strict=True)
        return [ClipWithAudio(clip, Audio(_fitted(found, len(clip) / fps, rate), rate)) for clip, found in pairs]

    def _has_track(self, dataset: Dataset, sample: int) -> bool:
        """Whether the sample is a clip of a file with an audio track, at the model's frame rate."""
        clip, info = clip_of(dataset, sample), dataset.videos.get(dataset.paths[sample])
        is_like_model = clip is not None and clip.num_frames > 1 and clip.fps == self.family.fps
        return is_like_model and info is not None and info.has_audio


def _fitted(waveform: np.ndarray, seconds: float, rate: int) -> np.ndarray:
    """[2, seconds * rate], cut or with silence at its end."""
    count = round(seconds * rate)
    return np.pad(waveform[:, :count], ((0, 0), (0, max(0, count - waveform.shape[1]))))


CONDITION = _Sound
