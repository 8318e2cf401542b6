"""What the components of a base model are read from, as BaseModel sees it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from diffusers.pipelines.pipeline_utils import DiffusionPipeline


class Components(Protocol):
    """`path`: the folder or file. `pipe`: a plain diffusers pipeline, with None for components that are not loaded.

    `own_parts`: component -> the file, or the folder with a config.json, that it is read from instead of there.
    """

    path: Path
    pipe: DiffusionPipeline
    own_parts: Mapping[str, Path]

    @property
    def names(self) -> list[str]:
        """All components of this model that training or saving may need."""

    @property
    def stored_quantized(self) -> Sequence[str]:
        """The components whose files are quantized."""

    def missing(self, names: Iterable[str]) -> list[str]:
        """Those of `names` that can be loaded and are not."""

    def load(self, names: Iterable[str], lazily: bool = False) -> None:
        """Loads components to the CPU, frozen and in evaluation mode, with casts of weights that wait (deferred_casts).

        lazily: as in `BaseModel.require`.
        """

    def unload(self, names: Iterable[str]) -> list[str]:
        """Frees components; returns those that stay, because they could not be loaded again."""

    def put(self, modules: Mapping[str, Any]) -> None:
        """Puts `modules` in place of these components; None for one that the pipeline is to lack."""

    def on_meta(self, name: str) -> Any:
        """A module on the meta device, without weights, for a component that is not loaded; None for other kinds."""

    def files(self, names: Iterable[str]) -> list[Path]:
        """The files that determine what these components compute, sorted; a single file is always one of them."""
