"""What each kind of condition does with a run's data, from the files of a dataset to the arguments of a sample."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from modules.families.conditions import Condition

if TYPE_CHECKING:
    import numpy as np
    import torch
    from diffusers.pipelines.pipeline_utils import DiffusionPipeline
    from PIL.Image import Image
    from torch import Tensor

    from modules.config.DataConfig import DataConfig
    from modules.config.SampleConfig import SampleConfig
    from modules.config.TrainConfig import TrainConfig
    from modules.data.buckets import Buckets
    from modules.data.Dataset import Dataset
    from modules.data.Finding import Finding
    from modules.data.ImageRequest import ImageRequest
    from modules.data.LatentEncoder import LatentEncoder
    from modules.families.Family import Family

S = TypeVar("S", bound=Condition)

Draw = tuple[int, int, int, int]  # (seed, epoch, sample, repeat)


@dataclass(frozen=True, eq=False)
class Decoded:
    """A sample as it is read, fitted to its training size.

    pixels: as from `load_pixels`; None of a clip. frames: of a clip, as LatentEncoder.encode_clip takes them; None of
    an image. num_frames: of the clip. mask: float32[1, H, W]; None without one.
    loaded: name of a condition -> what its `load` has returned.
    """

    pixels: np.ndarray | None
    mask: np.ndarray | None
    loaded: Mapping[str, Any]
    frames: Callable[[], Iterator[np.ndarray]] | None = None
    num_frames: int = 1


@dataclass(frozen=True, eq=False)
class Rows:
    """The samples of a batch.

    records: their cache entries. draws: what random numbers are hashed from. shape: of the latents of one.
    """

    records: list[dict[str, Tensor]]
    draws: list[Draw]
    shape: tuple[int, ...]
    dataset: Dataset
    buckets: Buckets
    data: DataConfig


@dataclass(frozen=True, eq=False)
class ConditionData(Generic[S]):
    """A condition of a family: each kind overrides what it does, in the file of its name in this folder.

    That of `Depth(Condition)` is depth.py, whose class is called CONDITION there. Torch is imported only where it is
    used: summaries and checks have none.
    """

    spec: S
    family: Family

    replaces_image: ClassVar[bool] = False  # whether `load_pixels` and `encode_pixels` take the place of the image's
    folder_setting: ClassVar[str] = ""  # of a concept: the folder of files that belong to its images by their names
    takes_videos: ClassVar[bool] = False  # whether videos are among these files

    # --- the dataset --------------------------------------------------------------------------------------------------

    def find(self, dataset: Dataset, config: TrainConfig) -> Dataset:
        """The images and videos with a Column of what the condition needs of each. Raises DataError."""
        return dataset

    def select(self, dataset: Dataset, config: TrainConfig) -> Dataset:
        """Likewise, once videos are divided into clips."""
        return dataset

    def latent_frames(self, dataset: Dataset) -> Sequence[int] | None:
        """How many images the latents of each sample hold, if not one."""
        return None

    def passes(self, dataset: Dataset) -> Sequence[str] | None:
        """Of each sample, words, or "", that are the same for those which can share a forward pass; None if all can."""
        return None

    def apart(self, dataset: Dataset, buckets: Buckets) -> Sequence[Hashable] | None:
        """Of each sample, what is equal for those which share a forward pass, where a batch may take several passes,
        one for each shape of what `given` has in lists; None if a batch takes one."""
        return None

    def frames_in_pass(self, dataset: Dataset) -> Sequence[int] | None:
        """How many frames of each sample go through the denoiser at once, if not all."""
        return None

    def describe(self, dataset: Dataset) -> tuple[str, str] | None:
        """A line of the summary, its label first; None if the run does without the condition."""
        return None

    def findings(self, dataset: Dataset, unusable: Mapping[int, str]) -> Iterator[Finding]:
        """What the dataset check reports. unusable: samples that can't be read."""
        return iter(())

    def cached_pixels(self, dataset: Dataset, sample: int, pixels: float) -> float:
        """How many pixels are encoded for the condition, for the estimate of disk space. pixels: of the sample."""
        return 0.0

    @staticmethod
    def previews(
        config: TrainConfig, number: int, path: str, picture: Image, shape: tuple[int, int]
    ) -> Iterator[tuple[str, Image]]:
        """What the model sees of an image beside itself, each with a title, for the window: without the family.

        number: of its concept. picture: the image at `path`. shape: the width and height in which it is trained.
        """
        return iter(())

    # --- the cache ----------------------------------------------------------------------------------------------------

    def key_parts(
        self, dataset: Dataset, buckets: Buckets, sample: int, contents: Mapping[str, str | None]
    ) -> list[object]:
        """What of a cache entry depends on the condition, for its key; [] for a sample without it.

        contents: path of each file in the dataset's columns -> hash.
        """
        return []

    def load_pixels(self, dataset: Dataset, buckets: Buckets, sample: int) -> np.ndarray:
        """What is decoded in place of the image. Raises ImageError."""
        raise NotImplementedError

    def encode_pixels(self, pixels: np.ndarray, encoder: LatentEncoder) -> Tensor:
        """The latents of `load_pixels`."""
        raise NotImplementedError

    def load(self, dataset: Dataset, buckets: Buckets, sample: int, mask: np.ndarray | None) -> Any:
        """What `encode` needs of the condition's files; called by threads. mask: as in Decoded.

        Raises ImageError, whose reason is a whole clause, such as "its mask can't be read: ...".
        """
        return None

    def encode(self, decoded: Decoded, latents: Tensor, encoder: LatentEncoder) -> dict[str, Tensor]:
        """What the cache entry of a sample has for the condition. latents: those of the sample."""
        return {}

    def text_key_parts(
        self, dataset: Dataset, buckets: Buckets, sample: int, contents: Mapping[str, str | None]
    ) -> list[object]:
        """Likewise what a caption's embeddings depend on, if the text encoders see the condition's images."""
        return []

    def images_of_text(self, dataset: Dataset, buckets: Buckets, sample: int) -> list[Image]:
        """The images that text encoders see with the caption of a sample, if they see any. Raises ImageError."""
        return []

    # --- batches ------------------------------------------------------------------------------------------------------

    def part(self, record: dict[str, Tensor], draw: Draw) -> dict[str, Tensor]:
        """What a step trains of a sample's cache entry, in its place. draw: as of Rows."""
        return record

    def given(self, rows: Rows) -> dict[str, Tensor | list[list[Tensor]]]:
        """What the condition adds to `Batch.given`. Random numbers are draws by hash (draws.py)."""
        return {}

    def clean(self, given: Mapping[str, Any], shape: tuple[int, ...]) -> Tensor | None:
        """`Batch.clean`. given: as from `given`."""
        return None

    # --- samples ------------------------------------------------------------------------------------------------------

    def sample_settings(self, dataset: Dataset, sample: int) -> dict[str, Any]:
        """The settings of a SampleConfig with which it starts from what a sample of the dataset has."""
        return {}

    def further_images(self, sample: SampleConfig) -> dict[str, str]:
        """Name of a setting -> its path: images beside the `reference` that a sample starts from."""
        return {}

    def why_too_few(self, num_images: int) -> str:
        """What a model does that can't start from so few images, and what to do; "" if it can."""
        return ""

    def check_sample(self, sample: SampleConfig, path: str) -> None:
        """Raises DataError if a further setting of the sample can't be used. path: of the sample."""

    def claims(self, request: ImageRequest) -> bool:
        """Whether the images of a request are for this condition alone, and not for others of the family."""
        return False

    def pipeline(self, request: ImageRequest) -> str:
        """The diffusers class that generates in place of the family's; "" for none."""
        return ""

    def sample_arguments(self, request: ImageRequest, count: int) -> dict[str, Any]:
        """Arguments of the pipeline for `count` images that differ in their seed alone. Raises ImageError."""
        return {}

    def made(self, samples: list[Any], output: Any, pipe: DiffusionPipeline, request: ImageRequest) -> list[Any]:
        """The samples, of what the pipeline has returned.

        samples: its images or videos. request: of one of them.
        """
        return samples


def marked(rows: Sequence[bool]) -> torch.Tensor | None:
    """bool[B]; None if no row is marked."""
    import torch

    return torch.tensor(rows) if any(rows) else None
