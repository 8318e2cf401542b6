"""The components of a diffusers folder, or of a model of the Hub, loaded one by one."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modules.config.errors import ModelFileError
from modules.config.model_index import names_component, read_json, read_model_index
from modules.families.long_prompts import extend_prompts
from modules.layers.quiet_imports import imported_when_used
from modules.weights.component_classes import component_class, component_names, no_code
from modules.weights.component_faults import reason_with_file
from modules.weights.errors import WeightsError, loading_reason, refusing
from modules.weights.files_below import files_below
from modules.weights.frozen import frozen
from modules.weights.hub_models import download_folder
from modules.weights.inspect import BaseInfo, check_fits, component_error, inspect_base
from modules.weights.libraries import import_pipeline
from modules.weights.load_component import is_cast, is_of_transformers, load_component
from modules.weights.own_parts import check_places, load_own_part, replaced_parts
from modules.weights.prequantized import load_prequantized, stored_quantization
from modules.weights.processors import check_tokenizer, without_videos
from modules.weights.quantization import quantization_of
from modules.weights.schedulers import adapted_scheduler, scheduler_by_files

if TYPE_CHECKING:
    import torch
    from diffusers.pipelines.pipeline_utils import DiffusionPipeline

    from modules.config.ModelConfig import ModelConfig
    from modules.families.Family import Family
    from modules.weights.libraries import Model


class FolderComponents:
    """Components. info: of `config.base`.

    Raises WeightsError if the model can't be downloaded, is incomplete, or can't be trained.
    """

    def __init__(
        self, family: Family, config: ModelConfig, dtype: torch.dtype, info: BaseInfo, own_parts: Mapping[str, Path]
    ):
        self.family, self.config, self.dtype = family, config, dtype
        self.own_parts = own_parts
        self._looked_at: dict[str, Any] = {}  # components without weights, as in `_described`
        self._pipeline_class = import_pipeline(family.pipeline)
        self.path = self._local_folder()
        if info.kind == "hub":
            check_fits(config.base, inspect_base(str(self.path)), family, replaced=replaced_parts(family, config))
        index, taken = read_model_index(self.path), component_names(self._pipeline_class)
        parts = {name: tuple(value) for name, value in index.items() if name in taken and names_component(value)}
        # a component that the model lacks, such as the T5 of an SD 3, is stored as [null, null]
        self._classes = {
            name: value for name, value in parts.items() if value[0] is not None and name not in family.unused
        }
        arguments = inspect.signature(self._pipeline_class.__init__).parameters
        for name in self._classes:
            self._check_stored_quantization(name)
        self._options = {
            name: value
            for name, value in index.items()
            if name in arguments and name not in self._classes and not names_component(value)
        }
        self._loaded: dict[str, Any] = dict.fromkeys((*parts, *taken.intersection(family.unused)))
        check_places(family, own_parts, self._classes, config.base)
        self._check_arguments(arguments)
        if "scheduler" in self._classes:  # else the pipeline makes its own
            scheduler = scheduler_by_files(self._load("scheduler"), family, config)
            self._loaded["scheduler"] = adapted_scheduler(scheduler, family, config)
        self.pipe = self._new_pipe()
        if version := family.unsupported and family.unsupported(self._denoiser_config):
            raise WeightsError.at(
                "model.base",
                f"{config.base!r}: is {version}, which can't be trained yet; choose another {family.label}.",
            )

    @property
    def names(self) -> list[str]:
        return list(self._classes)

    @property
    def stored_quantized(self) -> list[str]:
        names = self._classes.keys() - self.own_parts.keys()
        return [name for name in sorted(names) if stored_quantization(self.path / name) != "none"]

    def missing(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if name in self._classes and getattr(self.pipe, name) is None]

    def load(self, names: Iterable[str], lazily: bool = False) -> None:
        from modules.weights.deferred_casts import deferred_casts

        for name in names:
            has_casts = name in self.own_parts or is_cast(self.path / name, self._dtype(name))
            with deferred_casts() if has_casts else contextlib.nullcontext():  # it looks at every operation
                self._loaded[name] = (lazily and self._lazy_denoiser(name)) or self._load(name)
        self.pipe = self._new_pipe()

    def unload(self, names: Iterable[str]) -> list[str]:
        self.put(dict.fromkeys(names))
        return []

    def put(self, modules: Mapping[str, Any]) -> None:
        self._loaded.update(modules)
        self.pipe = self._new_pipe()

    def files(self, names: Iterable[str]) -> list[Path]:
        return files_below(self.path, names)

    # --- loading ------------------------------------------------------------------------------------------------------

    def _local_folder(self) -> Path:
        """The folder of the base model; a Hub id is downloaded to the Hub's cache."""
        path = Path(os.path.expanduser(self.config.base))
        if path.is_dir():
            return path
        return download_folder(self.config.base, replaced=replaced_parts(self.family, self.config))

    def _load(self, name: str) -> Any:
        component_class = self._component_class(name)
        # a scheduler imports those that it can be exchanged for
        with refusing(partial(self._unreadable, name)), imported_when_used():
            if not hasattr(component_class, "forward"):
                self._check_vocabulary(name, component_class)
                component = component_class.from_pretrained(self.path, subfolder=name, **no_code(component_class))
                check_tokenizer(component)
                return component
            if name in self.own_parts:
                own = self.own_parts[name], self.path / name, self.dtype, self.config
                return self._ready(name, load_own_part(self.family, name, component_class, *own))
            if stored_quantization(self.path / name) != "none":
                stored = load_prequantized(component_class, self.path / name, self.dtype)
                return frozen(stored, self.config.channels_last)
            component, missing = load_component(component_class, self.path, name, self._dtype(name))
        if missing:
            raise self._error(name, f"its weights lack {missing}")
        return self._ready(name, component)

    def _dtype(self, name: str) -> torch.dtype:
        import torch

        return torch.float32 if name in self.family.exact_components else self.dtype

    def _lazy_denoiser(self, name: str) -> Model | None:
        """A denoiser whose weights are left in the files of its folder; None if they are elsewhere, or need changes."""
        from modules.weights.lazy_loading import load_lazily

        folder, is_file = self._config_folder(name), name in self.own_parts and not self.own_parts[name].is_dir()
        if name not in self.family.denoisers or is_file or stored_quantization(folder) != "none":
            return None
        with refusing(partial(self._unreadable, name)):
            denoiser = load_lazily(self._component_class(name), folder, self.dtype)
        if denoiser is not None:
            self.family.adapt(denoiser)
        return denoiser

    def _ready(self, name: str, component: Any) -> Model:
        if name in self.family.denoisers:
            self.family.adapt(component)
        return frozen(component, self.config.channels_last)

    def _component_class(self, name: str) -> type[Any]:
        try:
            return without_videos(component_class(self._pipeline_class, name, self._classes[name], self.family))
        except ValueError as error:
            raise self._error(name, str(error)) from error

    # --- without weights ----------------------------------------------------------------------------------------------

    def on_meta(self, name: str) -> Any:
        import torch

        component_class = self._component_class(name)
        if not hasattr(component_class, "forward"):
            return None
        with refusing(partial(self._unreadable, name)), torch.device("meta"):
            if is_of_transformers(component_class):
                return component_class(component_class.config_class.from_pretrained(self.path, subfolder=name))
            return component_class.from_config(component_class.load_config(self._config_folder(name)))

    def _described(self, name: str) -> Any:
        """A component for a pipeline to look at when it is created: a module without weights, or all of another."""
        if hasattr(self._component_class(name), "forward"):
            return self.on_meta(name)
        if name not in self._looked_at:
            self._looked_at[name] = self._load(name)
        return self._looked_at[name]

    def _config_folder(self, name: str) -> Path:
        """The folder with the config.json of a component."""
        own = self.own_parts.get(name)
        return own if own and own.is_dir() else self.path / name

    @functools.cached_property
    def _denoiser_config(self) -> dict:
        name = self.family.denoisers[0]
        try:
            return read_json(self._config_folder(name) / "config.json")
        except (OSError, ModelFileError) as error:
            raise self._error(name, "its config.json can't be read") from error

    # --- the pipeline -------------------------------------------------------------------------------------------------

    def _new_pipe(self) -> DiffusionPipeline:
        # created again after every change, because pipelines read the VAE's scale factor when they are created
        absent = [name for name in self.family.read_when_built if self._loaded[name] is None]
        described = {name: self._described(name) for name in absent}
        with refusing(self._index_error):
            pipe = self._pipeline_class(**{**self._loaded, **described}, **self._options)
        for name in absent:
            setattr(pipe, name, None)
        pipe.set_progress_bar_config(disable=True)
        text = self.family.text
        if text.reads_denoiser or any(encoder not in self._classes for encoder in text.encoders):
            pipe.denoiser_config = self._denoiser_config  # for encode_text
        extend_prompts(self.family, pipe)
        return pipe

    # --- refusals -----------------------------------------------------------------------------------------------------

    def _check_stored_quantization(self, name: str) -> None:
        """Raises WeightsError for stored formats that can't be read, and for settings that ask for another."""
        if name in self.own_parts:
            return
        try:
            stored = stored_quantization(self.path / name)
        except ValueError as error:
            raise self._error(name, str(error)) from error
        wanted = quantization_of(self.family, name, self.config)
        if stored != "none" and wanted not in ("none", stored):
            part = "text_encoder" if name in self.family.text.encoders else "denoiser"
            raise WeightsError.at(
                f"model.{part}_quantization",
                f"{wanted!r}: the {name} of model.base {self.config.base!r} is stored in "
                f"{stored}; set it to none, or choose a base model that is not quantized.",
            )
        if stored == "nf4" and find_spec("bitsandbytes") is None:
            raise WeightsError.at(
                "model.base",
                f"{self.config.base!r}: its {name} is stored in nf4, which needs the package bitsandbytes; "
                "run `pip install bitsandbytes`, or choose a base model that is not quantized.",
            )

    def _check_arguments(self, arguments: Mapping[str, inspect.Parameter]) -> None:
        """Raises WeightsError if the index lacks an argument that the pipeline needs."""
        for name, argument in arguments.items():
            is_needed = name != "self" and argument.default is inspect.Parameter.empty
            if is_needed and name not in (*self._loaded, *self._options):
                raise self._error(name, "model_index.json does not name it")

    def _check_vocabulary(self, name: str, component_class: type[Any]) -> None:
        """Raises WeightsError for a tokenizer without vocabulary, which would be loaded as an empty one."""
        files: Collection[str] = getattr(component_class, "vocab_files_names", {}).values()
        if files and not any((self.path / name / file).is_file() for file in files):
            raise self._error(name, f"it has none of {', '.join(files)}")

    def _unreadable(self, name: str, error: Exception) -> WeightsError:
        """The refusal of a component that a library could not load."""
        if isinstance(error, ImportError) and "torchvision" in str(error).lower():
            return WeightsError.at(
                "model.base",
                f"{self.config.base!r}: its {name} needs the package torchvision, which Chorus does not "
                "install; install the version for its torch with pip, or choose another base.",
            )
        return self._error(name, reason_with_file(error, self.path / name))

    def _index_error(self, error: Exception) -> WeightsError:
        return WeightsError.at(
            "model.base",
            f"{self.config.base!r}: the settings in its model_index.json don't make a "
            f"{self.family.pipeline} ({loading_reason(error)}); download the model again or choose another.",
        )

    def _error(self, name: str, reason: str) -> WeightsError:
        return component_error("model.base", repr(self.config.base), name, reason)
