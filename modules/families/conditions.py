"""What a family's denoiser sees beside text and latents: the entries of `Family.conditions`, without torch.

Each gives its tensors in `Batch.given`. What samples need for them is in `modules/data`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

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
    """One kind of what a denoiser sees; its classes below are frozen dataclasses."""


C = TypeVar("C", bound=Condition)


@dataclass(frozen=True)
class Sizes(Condition):
    """The original size, crop and bucket of each image."""


@dataclass(frozen=True)
class References(Condition):
    """Reference images beside the noised latents; the pipeline's `__call__` takes them as `image`.

    most: how many the denoiser can see. needed: whether it sees at least one in each forward pass.
    size: aspect ratio (width / height) -> the size in which it sees a reference, to which the pipeline resizes it; None
        if that depends on the size of the image to be made.
    """

    most: int = 1
    needed: bool = False
    size: Callable[[float], Size] | None = None


@dataclass(frozen=True)
class Layers(Condition):
    """The layers that the model decomposes an image into.

    The frames of their latents are the image and its layers, and their only reference, which has to be declared, too,
    is the image itself.
    options: (number of layers, width, height of the image) -> arguments for the pipeline's `__call__`.
    """

    options: Callable[[int, int, int], Mapping[str, Any]]


@dataclass(frozen=True)
class FirstFrame(Condition):
    """The first frame of a clip, which samples start from.

    pipeline: the diffusers class for videos whose first frame is given as an image.
    needed: whether the denoiser always sees it, so that it trains clips only, and samples start from an image; else
        some clips keep their first latent frame without noise.
    last: whether the last frame can be given, too, or always is; the pipeline's `__call__` takes it as `last_image`.
    encode: (family, VAE, first frame [1, 3, H, W] in [-1, 1]) -> the `first_frame` of one clip, [1, C, 1, h, w]; None
        if that is the clip with gray behind its first frame.
    components: an image encoder that sees the first frame beside the VAE, and its processor; () for none.
    features: (pipeline, images) -> what the denoiser takes of the image encoder, [tokens, width]; None unless there are
        `components`. images: the first frame, in the size of the clip, and the last one where it is needed.
    """

    pipeline: str
    needed: bool = False
    last: Literal["", "optional", "needed"] = ""
    encode: Callable[[Family, ModelMixin, Tensor], Tensor] | None = None
    components: tuple[str, ...] = ()
    features: Callable[[DiffusionPipeline, list[Image]], Tensor] | None = None


@dataclass(frozen=True)
class Inpainting(Condition):
    """A mask and what it leaves of an image, for models that paint a part of it.

    resolution: of the mask. The pipeline's `__call__` takes `image` and `mask_image`.
    """

    resolution: MaskResolution


class Conditioned:
    """What is asked of a family by its conditions; FamilyInfo answers some of it under the same names."""

    conditions: tuple[Condition, ...]

    def condition(self, kind: type[C]) -> C | None:
        """The family's condition of this kind; None if it has none."""
        return next((one for one in self.conditions if isinstance(one, kind)), None)

    def conditions_with(self, changed: Condition) -> tuple[Condition, ...]:
        """The family's conditions with `changed` in place of that of its kind."""
        return tuple(changed if type(one) is type(changed) else one for one in self.conditions)

    @property
    def takes_sizes(self) -> bool:
        return self.condition(Sizes) is not None

    @property
    def max_references(self) -> int:
        references = self.condition(References)
        return references.most if references else 0

    @property
    def needs_references(self) -> bool:
        references = self.condition(References)
        return references is not None and references.needed

    @property
    def reference_size(self) -> Callable[[float], Size] | None:
        references = self.condition(References)
        return references.size if references else None

    @property
    def layered(self) -> bool:
        """Whether it decomposes an image into transparent layers."""
        return self.layer_options is not None

    @property
    def layer_options(self) -> Callable[[int, int, int], Mapping[str, Any]] | None:
        layers = self.condition(Layers)
        return layers.options if layers else None

    @property
    def inpainting(self) -> MaskResolution:
        inpainting = self.condition(Inpainting)
        return inpainting.resolution if inpainting else ""

    @property
    def image_pipeline(self) -> str:
        """`FirstFrame.pipeline`; "" if the denoiser can't be given a frame."""
        first = self.condition(FirstFrame)
        return first.pipeline if first else ""

    @property
    def needs_first_frame(self) -> bool:
        first = self.condition(FirstFrame)
        return first is not None and first.needed

    @property
    def takes_last_frame(self) -> bool:
        first = self.condition(FirstFrame)
        return first is not None and first.last != ""

    @property
    def needs_last_frame(self) -> bool:
        first = self.condition(FirstFrame)
        return first is not None and first.last == "needed"

    @property
    def encode_first(self) -> Callable[[Family, ModelMixin, Tensor], Tensor] | None:
        first = self.condition(FirstFrame)
        return first.encode if first else None

    @property
    def image_components(self) -> tuple[str, ...]:
        first = self.condition(FirstFrame)
        return first.components if first else ()

    @property
    def image_features(self) -> Callable[[DiffusionPipeline, list[Image]], Tensor] | None:
        first = self.condition(FirstFrame)
        return first.features if first else None

    @property
    def max_input_images(self) -> int:
        """How many images a sample can start from: references, first and last frame of a video, or one to paint in."""
        if self.inpainting:
            return 1
        return 1 + self.takes_last_frame if self.image_pipeline else self.max_references
