"""What a family's denoiser sees beside text and latents: the entries of `Family.conditions`, without torch.

Each gives its tensors in `Batch.given`; how is told in `modules/data/conditions`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from modules.config.setting import MAX_FRAMES

if TYPE_CHECKING:
    from diffusers.models.modeling_utils import ModelMixin
    from diffusers.pipelines.pipeline_utils import DiffusionPipeline
    from PIL.Image import Image
    from torch import Tensor

    from modules.families.Family import Family
    from modules.families.reference_sizes import Size

# How a denoiser sees a mask: as one channel in the resolution of the latents, or with a channel for each pixel of a
# latent cell; "" for families without a mask.
MaskResolution = Literal["", "latents", "pixels"]


class Condition:
    """One kind of what a denoiser sees; its classes below are frozen dataclasses.

    What training and sampling do with it stands in the file of its `name` in modules/data/conditions.
    exact: the names in `Batch.given` that stay in float32, whatever the denoiser computes in.
    components: those of the pipeline, beside the VAE, that the condition is encoded with.
    exact_components: components that are loaded and saved in float32, whatever the others are.
    """

    exact: ClassVar[frozenset[str]] = frozenset()
    components: tuple[str, ...] = ()
    exact_components: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """That of its class in snake_case."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", type(self).__name__).lower()

    @property
    def facts(self) -> dict[str, Any]:
        """What settings and the window read of it in resources/families.json."""
        return {"max_images": self.max_images}

    @property
    def max_images(self) -> int:
        """How many images of their settings samples can start from."""
        return 0

    @property
    def precedes_prompt(self) -> bool:
        """Whether the pipeline takes the images before it encodes the prompt, or refuses to go on without them."""
        return False


C = TypeVar("C", bound=Condition)


@dataclass(frozen=True)
class Sizes(Condition):
    """The original size, crop and bucket of each image."""

    exact = frozenset({"sizes"})  # float32 represents numbers of pixels exactly


@dataclass(frozen=True)
class References(Condition):
    """Reference images beside the noised latents; the pipeline's `__call__` takes them as its `argument`.

    most: how many the denoiser can see. needed: whether it sees at least one in each forward pass.
    size: aspect ratio (width / height) -> the size in which it sees a reference, to which the pipeline resizes it; None
        if that depends on the size of the image to be made.
    has_shape_of_image: whether a reference has to be as wide and tall as the image, whose further channels it is, so
        that it is cropped if its own aspect ratio is another; only where `size` is None. Others are further tokens.
    is_control: whether they show what the image is to have, such as edges or depth, so that they keep their colors.
    """

    most: int = 1
    needed: bool = False
    size: Callable[[float], Size] | None = None
    has_shape_of_image: bool = False
    is_control: bool = False

    @property
    def argument(self) -> str:
        return "control_image" if self.is_control else "image"

    @property
    def facts(self) -> dict[str, Any]:
        """pixels: the area in which it sees a reference; 0 for that of the image. as_channels: not as tokens."""
        pixels = math.prod(self.size(1.0)) if self.size else 0
        return {**super().facts, "needed": self.needed, "pixels": pixels, "as_channels": self.has_shape_of_image}

    @property
    def max_images(self) -> int:
        return self.most

    @property
    def precedes_prompt(self) -> bool:
        return self.is_control


@dataclass(frozen=True)
class Layers(Condition):
    """The layers that the model decomposes an image into.

    The frames of their latents are the image and its layers, and their only reference, which has to be declared, too,
    is the image itself.
    options: (number of layers, width, height of the image) -> arguments for the pipeline's `__call__`.
    """

    options: Callable[[int, int, int], Mapping[str, Any]]

    @property
    def precedes_prompt(self) -> bool:
        return True


@dataclass(frozen=True)
class FirstFrame(Condition):
    """The first frame of a clip, which samples start from.

    pipeline: the diffusers class for videos whose first frame is given as an image.
    needed: whether the denoiser always sees it, so that it trains clips only, and samples start from an image; else
        some clips keep their first latent frame without noise.
    clean: whether it takes the place of the clip's first latent frame, which then has no noise and no loss; only where
        it is `needed`.
    beside: whether clips that are given it have noise in their first latent frame as well, and the denoiser sees what
        `encode` makes of it beside the latents; only where it is not `needed`. Clips with and without it then go
        through the denoiser apart.
    beside_pixels: the area of an image of as many tokens as that takes, where it isn't the clip's.
    last: whether the last frame can be given, too, or always is; the pipeline's `__call__` takes it as `last_image`.
    encode: (family, VAE, first frame [1, 3, H, W] in [-1, 1]) -> the `first_frame` of one clip, [1, C, 1, h, w]; None
        if that is the clip with gray behind its first frame.
    components: an image encoder that sees the first frame beside the VAE, and its processor; () for none.
    features: (pipeline, images) -> what the denoiser takes of the image encoder, [tokens, width]; None unless there are
        `components`. images: the first frame, in the size of the clip, and the last one where it is needed.
    """

    pipeline: str
    needed: bool = False
    clean: bool = False
    beside: bool = False
    beside_pixels: int = 0
    last: Literal["", "optional", "needed"] = ""
    encode: Callable[[Family, ModelMixin, Tensor], Tensor] | None = None
    components: tuple[str, ...] = ()
    features: Callable[[DiffusionPipeline, list[Image]], Tensor] | None = None

    @property
    def facts(self) -> dict[str, Any]:
        facts = {"needed": self.needed, "last": self.last, "takes_last": self.last != ""}
        beside = {"beside": True, "beside_pixels": self.beside_pixels} if self.beside else {}
        return {**super().facts, **facts, **beside}

    @property
    def max_images(self) -> int:
        return 2 if self.last else 1

    @property
    def precedes_prompt(self) -> bool:
        return self.needed


@dataclass(frozen=True)
class SourceClip(Condition):
    """A clip beside each clip, of the same length: before the edit, or what controls it.

    An image has an image beside it, as a clip of one frame. The pipeline takes the frames as its `argument`.
    is_control: whether it shows what the clip is to have, such as poses, so that it keeps its colors.
    needed: whether it is always seen; else clips without one train apart from the others, and it is seen as
        further tokens, not as further channels.
    pipeline: the diffusers class for videos from a source clip; "" for the family's.
    arguments: the frames of a source -> arguments of that pipeline's `__call__`, if it does not take them so.
    masked: whether it can have a mask, white where the video is made anew and black where the source stays; the
        pipeline takes its frames as `mask`. The denoiser then sees the latents of the source with gray in place of
        what is white, those with gray in place of what is black, and a mask channel for each pixel of a latent cell.
        Without a mask, the source is control alone.
    """

    is_control: bool = False
    needed: bool = True
    pipeline: str = ""
    arguments: Callable[[list[Image]], Mapping[str, Any]] | None = None
    masked: bool = False

    @property
    def argument(self) -> str:
        return "control_video" if self.is_control else "video"

    @property
    def facts(self) -> dict[str, Any]:
        of_masks = {"takes_masks": True, "takes_mask_clips": True} if self.masked else {}
        return {**super().facts, "needed": self.needed, **of_masks}

    @property
    def max_images(self) -> int:
        """A file, or as many images as a clip has frames."""
        return MAX_FRAMES

    @property
    def precedes_prompt(self) -> bool:
        return self.needed


@dataclass(frozen=True)
class Inpainting(Condition):
    """A mask and what it leaves of an image, for models that paint a part of it.

    resolution: of the mask. The pipeline's `__call__` takes `image` and `mask_image`.
    """

    resolution: MaskResolution

    @property
    def facts(self) -> dict[str, Any]:
        return {**super().facts, "takes_masks": True}

    @property
    def max_images(self) -> int:
        return 1


@dataclass(frozen=True)
class Sound(Condition):
    """The sound of a clip, which the denoiser sees with noise of its own, and predicts beside the video.

    sampling_rate: of waveforms, in samples per second.
    length: number of frames -> how many latents the sound has, or each of its channels.
    encode: (pipeline, waveform [2, samples] in [-1, 1], number of latents) -> normalized latents [R, latents, C].
    rows: R, 2 where each channel has latents of its own, else 1.
    components: those of the pipeline that `encode` needs.
    needed: whether the denoiser sees sound in each forward pass, which is silence where a clip has none; else clips
        whose files have no audio track are trained as videos alone.
    channels: in the denoiser's config, the number of channels of a latent.
    output_rate: pipeline -> samples per second of the `audio` of its output, [B, 2, samples], or [B, samples] if both
        channels are alike; None for `sampling_rate`.
    """

    sampling_rate: int
    length: Callable[[int], int]
    encode: Callable[[DiffusionPipeline | None, Tensor, int], Tensor]
    components: tuple[str, ...] = ()
    exact_components: tuple[str, ...] = ()
    rows: int = 2
    needed: bool = False
    channels: str = "audio_in_channels"
    output_rate: Callable[[DiffusionPipeline], int] | None = None


@dataclass(frozen=True)
class SectionHistory(Condition):
    """The sections of a clip, for models that make videos section by section, each from those before it.

    A step trains one section of each clip, which is drawn. Beside it, the denoiser sees the first latent frame of the
    clip and the latent frames before the section, with zeros in place of those that there are not.
    section, latents: how many frames and latent frames a section has; sections are encoded separately.
    before: how many latent frames before a section are seen.
    as_latents: how many latent frames have as many tokens as the history.
    absent: the fraction of samples without a history, as if the section was the first.
    shortened: likewise of the others, which see only so many whole sections before their own as is drawn, down to none.
    clean: likewise those whose history stays as it is. Each latent frame of the others gets noise of a level that is
        drawn for it, up to `noise`, so that the model learns to go on from what it has made itself.
    """

    section: int
    latents: int
    before: int
    as_latents: float
    absent: float = 0.0
    shortened: float = 0.0
    clean: float = 1.0
    noise: float = 0.0

    @property
    def facts(self) -> dict[str, Any]:
        return {**super().facts, "needed": True, "section": self.section, "as_latents": self.as_latents}


class Conditioned:
    """What is asked of a family by its conditions."""

    conditions: tuple[Condition, ...]

    def condition(self, kind: type[C]) -> C | None:
        """The family's condition of this kind; None if it has none."""
        return next((one for one in self.conditions if isinstance(one, kind)), None)

    def conditions_with(self, changed: Condition) -> tuple[Condition, ...]:
        """The family's conditions with `changed` in place of that of its kind."""
        return tuple(changed if type(one) is type(changed) else one for one in self.conditions)

    def has(self, kind: type[Condition]) -> bool:
        """Whether the denoiser can see a condition of this kind."""
        return self.condition(kind) is not None

    def fact(self, kind: type[Condition], name: str) -> Any:
        """A field of the family's condition of this kind; None if it has none."""
        return getattr(self.condition(kind), name, None)

    @property
    def condition_components(self) -> tuple[str, ...]:
        """The components, beside the VAE, that the conditions are encoded with."""
        return tuple(name for one in self.conditions for name in one.components)

    @property
    def exact_components(self) -> frozenset[str]:
        return frozenset(name for one in self.conditions for name in one.exact_components)

    @property
    def image_features(self) -> Callable[[DiffusionPipeline, list[Image]], Tensor] | None:
        first = self.condition(FirstFrame)
        return first.features if first else None

    @property
    def max_input_images(self) -> int:
        """How many images a sample can start from: references, first and last frame of a video, or one to paint in."""
        return sum(one.max_images for one in self.conditions)
