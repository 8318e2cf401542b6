"""An image or video to generate."""

from __future__ import annotations

from dataclasses import dataclass

from modules.config.SampleConfig import DEFAULT_LAYERS


@dataclass(frozen=True)
class ImageRequest:
    """One image or video to generate.

    seed: of its initial noise, independent of the batch. width, height: in pixels; None for the model's default.
    references: paths of the images that the model sees. clip_skip: as in ModelConfig, for models that have it.
    frames: of the video; 1 for an image. Models of images ignore it.
    last_frame: path of the image that the video ends with, for models that take one; "" if it is the second reference
        or open. fps: frames per second of the video, by which a last frame is looked for in a video; 0: the family's.
    layers: how many to decompose the reference into; other models ignore it.
    mask: path of the mask, for models that paint in the reference; the reference itself if its alpha channel is the
        mask; "" as in SampleConfig.
    """

    prompt: str
    negative_prompt: str
    seed: int
    width: int | None
    height: int | None
    steps: int
    guidance: float
    references: tuple[str, ...] = ()
    clip_skip: int = 1
    frames: int = 1
    mask: str = ""
    last_frame: str = ""
    layers: int = DEFAULT_LAYERS
    fps: float = 0.0

    def batch_key(self) -> tuple:
        """Images of one batch must have the same key."""
        size = self.width, self.height, self.frames, self.layers, self.fps
        shared = *size, self.steps, self.guidance, self.references, self.last_frame, self.mask, self.clip_skip
        # from references they are made one at a time: pipelines differ in how they take several
        apart = (self.prompt, self.seed) if self.references and not self.mask else None
        return *shared, bool(self.negative_prompt), apart
