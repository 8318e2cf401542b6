"""The samples of a run, and what belongs to each."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from modules.config.ConceptConfig import ConceptConfig
    from modules.data.unread_files import Unread
    from modules.data.videos import VideoInfo


@dataclass(frozen=True, eq=False)
class Column:
    """What each sample of a dataset has beside its image, such as its mask or its clip.

    values: of each sample.
    files: value -> the files beside the image that it is read from.
    identity: value -> what of it may not change while a run is resumed, as text.
    """

    values: Sequence[Any]
    files: Callable[[Any], Iterable[str]] = lambda value: ()
    identity: Callable[[Any], Iterable[str]] = lambda value: ()

    def take(self, rows: Sequence[int]) -> Column:
        """The column of these samples."""
        return replace(self, values=[self.values[row] for row in rows])


@dataclass(frozen=True, eq=False)
class Views:
    """Describes the samples of a dataset whose images have several views.

    first: int64[N], sample id of the first view of the same image; the other views follow it.
    variant: int32[N], number of the augmented variant, -1 for the original image.
    seed: the seed that augmentations are drawn from.
    """

    first: np.ndarray
    variant: np.ndarray
    seed: int


@dataclass(frozen=True, eq=False)
class Dataset:
    """All readable images of the enabled concepts; row i of each field describes sample i.

    concepts: all configured concepts, including disabled ones, so that concept_index is the N of `concepts.N`.
    paths: the paths of the images, starting with the path of their concept.
    concept_index: int32[N].
    widths, heights: int32[N], in pixels, of the upright image; of its crop, if it has one (crops.py).
    unreadable: (path, reason) of skipped images and subfolders.
    stills: (path, reason) of readable images that are skipped because the model learns from videos only.
    views: None if each image is one sample.
    held_out: bool[N], validation samples, which are never trained on; None if there are none.
    columns: name -> what each sample has beside its image, such as its mask or clip, in a run that uses it.
    videos: path of each video -> its size and duration; empty unless the run trains on clips.
    captionless: (concept index, path) of the images without a caption although their concept reads captions from files
        or a table; also of those that were left out later.
    unread_captions: (concept index, path) of an image -> a caption file beside it that is not read, because the image
        has another one or because of its extension.
    num_masks: number of files skipped because their names mark them as masks.
    run_images: run folder inside a concept's folder -> number of its images, which are skipped.
    unread: the paths of what looks like images but is not read, by kind, and of hidden and system folders.
    set_aside: the paths of the images that are left out because a person has said so (ImageSettings.py).
    """

    concepts: Sequence[ConceptConfig]
    paths: list[str]
    concept_index: np.ndarray
    widths: np.ndarray
    heights: np.ndarray
    unreadable: list[tuple[str, str]]
    views: Views | None = None
    held_out: np.ndarray | None = None
    columns: Mapping[str, Column] = field(default_factory=dict)
    videos: Mapping[str, VideoInfo] = field(default_factory=dict)
    captionless: Set[tuple[int, str]] = frozenset()
    unread_captions: Mapping[tuple[int, str], str] = field(default_factory=dict)
    num_masks: int = 0
    run_images: Mapping[str, int] = field(default_factory=dict)
    stills: Sequence[tuple[str, str]] = ()
    unread: Mapping[Unread, Sequence[str]] = field(default_factory=dict)
    set_aside: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.paths)

    def column(self, name: str) -> Sequence[Any] | None:
        """What each sample has in a column; None in a run without that."""
        return self.columns[name].values if name in self.columns else None

    def value(self, name: str, sample: int) -> Any:
        """What a sample has in a column; None in a run without that."""
        return self.columns[name].values[sample] if name in self.columns else None

    def files(self) -> list[str]:
        """The files that samples consist of beside their images, each once."""
        found = (column.files(value) for column in self.columns.values() for value in column.values)
        return list(dict.fromkeys(itertools.chain.from_iterable(found)))

    def files_of(self, sample: int) -> dict[str, list[str]]:
        """Name of a column -> the files that a sample has in it beside its image, in those with any."""
        found = {name: list(column.files(column.values[sample])) for name, column in self.columns.items()}
        return {name: files for name, files in found.items() if files}

    def identities(self) -> Iterator[str]:
        """What may not change in the columns while a run is resumed."""
        for column in self.columns.values():
            for value in column.values:
                yield from column.identity(value)

    def with_column(self, name: str, column: Column) -> Dataset:
        """The same samples with a further column."""
        assert len(column.values) == len(self)
        return replace(self, columns={**self.columns, name: column})

    def take(self, rows: Sequence[int] | np.ndarray, lost: Sequence[tuple[str, str]] = ()) -> Dataset:
        """Only the samples `rows` of a dataset without views, with all that they have; a sample may be repeated.

        lost: path and reason of the images that are left out.
        """
        assert self.views is None  # they number samples
        index = np.asarray(rows, np.int64)
        order = index.tolist()
        return replace(
            self,
            paths=[self.paths[row] for row in order],
            concept_index=self.concept_index[index],
            widths=self.widths[index],
            heights=self.heights[index],
            held_out=None if self.held_out is None else self.held_out[index],
            columns={name: column.take(order) for name, column in self.columns.items()},
            unreadable=[*self.unreadable, *lost],
        )

    @property
    def missing_captions(self) -> list[str]:
        """The paths of the `captionless` images that are in the dataset, once for each concept."""
        images = zip(self.concept_index.tolist(), self.paths, strict=True)
        return [path for _, path in dict.fromkeys(image for image in images if image in self.captionless)]

    @property
    def left_out(self) -> list[tuple[str, str]]:
        """(path, reason) of all skipped images and subfolders, readable or not."""
        return [*self.unreadable, *self.stills]

    @property
    def first_views(self) -> np.ndarray:
        """int64[N], the id of the first view of each sample's image."""
        return np.arange(len(self)) if self.views is None else self.views.first

    @property
    def num_views(self) -> np.ndarray:
        """int64[N], the number of views of an image at its first sample; 0 at its other samples."""
        return np.bincount(self.first_views, minlength=len(self))

    @property
    def num_images(self) -> int:
        return int(np.count_nonzero(self.num_views))

    def images_of(self, samples: Collection[int]) -> list[int]:
        """The sorted ids of the first views of the images that `samples` belong to."""
        first = self.first_views
        return sorted({int(first[sample]) for sample in samples})

    @property
    def repeats(self) -> np.ndarray:
        """float64[N], how often an epoch uses each image, at its first sample; 0 at other and validation samples.

        Regularization concepts together are used as often as all others (prior preservation: Ruiz et al. 2022,
        arXiv 2208.12242, section 3.3, has one prior sample per instance sample). Then `share` settings are applied.
        """
        repeats = np.array([concept.repeats for concept in self.concepts], np.float64)[self.concept_index]
        repeats[self.num_views == 0] = 0
        if self.held_out is not None:
            repeats[self.held_out] = 0
        is_prior = np.array([concept.regularisation for concept in self.concepts], bool)[self.concept_index]
        if repeats[is_prior].any() and repeats[~is_prior].any():
            repeats[is_prior] *= repeats[~is_prior].sum() / repeats[is_prior].sum()
        shares = np.array([concept.share or 0 for concept in self.concepts], np.float64)
        return repeats if not shares.any() else _with_shares(repeats, self.concept_index, shares)


def _with_shares(repeats: np.ndarray, concept_index: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Scales the repeats of concepts with a share (above 0) so that each makes up that fraction of an epoch.

    Concepts without a share keep their repeats and make up the rest. If there are none, the epoch keeps its length and
    the shares are relative to their sum.
    """
    samples = np.bincount(concept_index, repeats, len(shares))
    shares = np.where(samples > 0, shares, 0)
    others = samples[shares == 0].sum()
    total = others / (1 - shares.sum()) if others else samples.sum() / shares.sum()
    factor = np.divide(shares * total, samples, out=np.ones_like(samples), where=shares > 0)
    return repeats * factor[concept_index]
