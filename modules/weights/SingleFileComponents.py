"""The components of a single-file checkpoint, which is read completely at once."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from modules.weights.errors import WeightsError, loading_reason, refusing
from modules.weights.files_below import files_below
from modules.weights.frozen import frozen
from modules.weights.inspect import check_config_folder
from modules.weights.libraries import import_pipeline
from modules.weights.own_parts import put_own_parts, take_missing
from modules.weights.safe import read_header, tensor_shapes
from modules.weights.schedulers import adapted_scheduler, scheduler_by_files
from modules.weights.single_file_parts import check_single_file

if TYPE_CHECKING:
    import torch
    from diffusers.loaders.single_file import FromSingleFileMixin
    from diffusers.pipelines.pipeline_utils import DiffusionPipeline

    from modules.config.ModelConfig import ModelConfig
    from modules.families.Family import Family

    class SingleFilePipeline(DiffusionPipeline, FromSingleFileMixin):
        """What the pipelines of families that can be read from a single file are."""


DESCRIBE = "set model.config_folder to a diffusers folder of the same kind"
CHOOSE_COMPLETE = "choose a checkpoint that contains the complete model"


class SingleFileComponents:
    """Components. Raises WeightsError if the file can't be read as a model of the family."""

    def __init__(self, family: Family, config: ModelConfig, dtype: torch.dtype, own_parts: Mapping[str, Path]):
        from modules.weights.deferred_casts import deferred_casts

        self.family, self.config, self.dtype, self.own_parts = family, config, dtype, own_parts
        self.path = Path(os.path.expanduser(config.base))
        check_config_folder(config, family)
        check_single_file(config, family)
        with deferred_casts():
            self.pipe = self._load(dict(own_parts))

    @property
    def names(self) -> list[str]:
        return [name for name, value in self.pipe.components.items() if value is not None]

    @property
    def stored_quantized(self) -> list[str]:
        return []

    def missing(self, names: Iterable[str]) -> list[str]:
        return []  # what the file has not can't be loaded

    def load(self, names: Iterable[str], lazily: bool = False) -> None:
        """Everything is loaded already."""

    def unload(self, names: Iterable[str]) -> list[str]:
        return list(names)

    def put(self, modules: Mapping[str, Any]) -> None:
        for name, module in modules.items():
            setattr(self.pipe, name, module)

    def on_meta(self, name: str) -> None:
        return None

    def files(self, names: Iterable[str]) -> list[Path]:
        folder = self.config.config_folder  # its configs and tokenizers matter, too, but not its weights
        described = files_below(Path(os.path.expanduser(folder)), names) if folder else []
        return [self.path, *(path for path in described if path.suffix in (".json", ".txt", ".model"))]

    def _load(self, own: dict[str, Path]) -> DiffusionPipeline:
        folder = self.config.config_folder
        options: dict[str, Any] = {"config": os.path.expanduser(folder)} if folder else {}
        names = tensor_shapes(read_header(self.path))
        given = {start for part, start in self.family.optional.items() if part in own}
        lacking = [
            part
            for part, start in self.family.optional.items()
            if start not in given and not any(name.startswith(start) for name in names)
        ]
        options |= dict.fromkeys((*self.family.unused, *lacking))
        with refusing(partial(self._unreadable, "check both" if folder else DESCRIBE)):
            options |= take_missing(own, names, self.family, self.config, self.dtype)
            pipe = cast("type[SingleFilePipeline]", import_pipeline(self.family.pipeline)).from_single_file(
                str(self.path), torch_dtype=self.dtype, local_files_only=bool(folder), **options
            )
        put_own_parts(pipe, self.family, own, self.config)
        for name, component in pipe.components.items():
            if hasattr(component, "parameters") and any(param.is_meta for param in component.parameters()):
                raise self._error(f"tensors of its {name} are missing", CHOOSE_COMPLETE)
            if hasattr(component, "tie_weights"):
                component.tie_weights()  # diffusers loads the tied vocabulary of T5 as two tensors
            frozen(component, self.config.channels_last)
        scheduler = scheduler_by_files(pipe.scheduler, self.family, self.config)
        pipe.scheduler = adapted_scheduler(scheduler, self.family, self.config)
        pipe.set_progress_bar_config(disable=True)
        return pipe

    def _unreadable(self, remedy: str, error: Exception) -> WeightsError:
        from diffusers.loaders.single_file_utils import SingleFileComponentError

        if isinstance(error, NotImplementedError):  # casting tensors that have no data
            return self._error("tensors are missing", CHOOSE_COMPLETE)
        lacks_part = isinstance(error, SingleFileComponentError)
        return self._error(loading_reason(error), CHOOSE_COMPLETE if lacks_part else remedy)

    def _error(self, reason: str, remedy: str) -> WeightsError:
        folder = self.config.config_folder
        described = f" with model.config_folder {folder!r}" if folder else ""
        return WeightsError.at(
            "model.base", f"{self.config.base!r}{described} can't be read as {self.family.label}: {reason}; {remedy}."
        )
