"""The base model of a run: a diffusers pipeline whose components are loaded on demand."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from modules.config.errors import ModelFileError
from modules.config.model_index import names_component, read_json, read_model_index
from modules.families.long_prompts import extend_prompts
from modules.weights.blocks import keep_in_place, repeated_blocks, swapped_blocks
from modules.weights.component_classes import component_class, component_names, no_code
from modules.weights.component_faults import reason_with_file
from modules.weights.device_memory import free_memory
from modules.weights.errors import WeightsError, loading_reason, refusing
from modules.weights.gguf_files import is_gguf
from modules.weights.hub_models import download_folder
from modules.weights.hub_parts import with_downloaded_parts
from modules.weights.inspect import check_base, check_config_folder, check_fits, component_error, inspect_base
from modules.weights.libraries import import_pipeline
from modules.weights.load_component import is_of_transformers, load_component
from modules.weights.own_parts import (
    check_places,
    load_own_part,
    own_parts,
    put_own_parts,
    replaced_parts,
    take_missing,
)
from modules.weights.prequantized import load_prequantized, stored_quantization
from modules.weights.processors import check_tokenizer, without_videos
from modules.weights.quantization import quantization_of, quantize_layers
from modules.weights.safe import read_header, tensor_shapes
from modules.weights.schedulers import adapted_scheduler, scheduler_by_files
from modules.weights.single_file_parts import check_single_file

if TYPE_CHECKING:
    import torch
    from diffusers.loaders.single_file import FromSingleFileMixin
    from diffusers.models.modeling_utils import ModelMixin
    from diffusers.pipelines.pipeline_utils import DiffusionPipeline
    from torch import nn
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from modules.config.ModelConfig import ModelConfig
    from modules.families.Family import Family
    from modules.weights.BlockSwap import BlockSwap
    from modules.weights.libraries import Model

    class SingleFilePipeline(DiffusionPipeline, FromSingleFileMixin):
        """What the pipelines of families that can be read from a single file are."""


DESCRIBE = "set model.config_folder to a diffusers folder of the same kind"
CHOOSE_COMPLETE = "choose a checkpoint that contains the complete model"


class BaseModel:
    """The components of `config.base`, each on the CPU or on `device`.

    Components of a folder are loaded one by one; a single-file checkpoint is read completely at once.
    `pipe` is a plain diffusers pipeline, with None for components that are not loaded. Components that the settings
    quantize have QuantizedLinear layers from when they are first moved to the device.
    loading_turn: a context that is entered while components of a folder are loaded and moved to the device.
    Raises WeightsError if the base model is missing or has another architecture.
    """

    def __init__(
        self,
        family: Family,
        config: ModelConfig,
        device: torch.device,
        loading_turn: Callable[[], AbstractContextManager] = contextlib.nullcontext,
    ):
        config = with_downloaded_parts(config)
        info = check_base(config.base, family, replaced=replaced_parts(family, config))
        self.family = family
        self.config = config
        self.device = device
        self._lock = threading.RLock()
        self._quantized: set[str] = set()
        self._looked_at: dict[str, Any] = {}  # components without weights, as in `_described`
        self.num_swapped = config.blocks_to_swap or 0  # blocks of each denoiser that stay in system memory
        self.swaps: dict[str, BlockSwap] = {}  # of the denoisers whose blocks are swapped
        self._loading_turn = loading_turn
        self._own_parts = own_parts(family, config)
        # those of which the file has a part only, so that the rest is the base's
        self._added_to = self._own_parts.keys() - replaced_parts(family, config)
        self._pipeline_class = import_pipeline(family.pipeline)
        self.is_single_file = info.kind == "single_file"
        if self.is_single_file:
            self.path = Path(os.path.expanduser(config.base))
            self.pipe = self._load_single_file()
            self._classes: dict[str, tuple[str, str]] = {}
        else:
            self.path = self._local_folder()
            if info.kind == "hub":
                check_fits(config.base, inspect_base(str(self.path)), family)
            index, taken = read_model_index(self.path), component_names(self._pipeline_class)
            parts = {name: tuple(value) for name, value in index.items() if name in taken and names_component(value)}
            # a component that the model lacks, such as the T5 of an SD 3, is stored as [null, null]
            self._classes = {
                name: value for name, value in parts.items() if value[0] is not None and name not in family.unused
            }
            options = inspect.signature(self._pipeline_class.__init__).parameters
            for name in self._classes:
                self._check_stored_quantization(name)
            self._options = {
                name: value
                for name, value in index.items()
                if name in options and name not in self._classes and not names_component(value)
            }
            self._components = dict.fromkeys((*parts, *family.unused))
            check_places(family, self._own_parts, self._classes, config.base)
            self._check_arguments(options)
            if "scheduler" in self._classes:  # else the pipeline makes its own
                scheduler = scheduler_by_files(self._load_component("scheduler"), family, config)
                self._components["scheduler"] = adapted_scheduler(scheduler, family, config)
            self.pipe = self._new_pipe()
            if version := family.unsupported and family.unsupported(self._denoiser_config):
                raise WeightsError(
                    f"model.base {config.base!r}: is {version}, which can't be trained yet; choose another "
                    f"{family.label}."
                )

    @property
    def component_names(self) -> list[str]:
        """All components of this model that training or saving may need."""
        if self.is_single_file:
            return [name for name, value in self.pipe.components.items() if value is not None]
        return list(self._classes)

    @property
    def stored_quantized(self) -> list[str]:
        """The components whose files are quantized."""
        names = self._classes.keys() - self._own_parts.keys()
        own = [name for name, path in self._own_parts.items() if is_gguf(path)]
        return own + [name for name in sorted(names) if stored_quantization(self.path / name) != "none"]

    def require(self, *names: str, on_device: bool = True, lazily: bool = False) -> None:
        """Loads missing components, frozen and in evaluation mode, and by default moves modules to the device.

        Components that this model lacks are ignored. lazily: leaves the weights of denoisers in their files as
        `placeholders`, where possible.
        """
        with self._lock:
            missing = [name for name in names if name in self._classes and getattr(self.pipe, name) is None]
            with self._loading_turn() if missing else contextlib.nullcontext():
                for name in missing:
                    self._components[name] = (lazily and self._lazy_denoiser(name)) or self._load_component(name)
                if missing:
                    self.pipe = self._new_pipe()
                for name in names if on_device else ():
                    if hasattr(self.module(name), "parameters"):
                        for block in self._swapped(name).values():
                            keep_in_place(block)
                        self._quantize(name)
                        self._move(name, self.device)

    def _move(self, name: str, device: torch.device | str) -> None:
        module: nn.Module = self.module(name)  # both libraries declare their own `to` without the binding to the module
        module.to(device)

    def _quantize(self, name: str) -> None:
        quantization = quantization_of(self.family, name, self.config)
        if quantization != "none" and name not in self._quantized and name not in self.stored_quantized:
            swapped = tuple(f"{block}." for block in self._swapped(name))
            quantize_layers(self.family, name, self.module(name), quantization, self.device, swapped)
            self._quantized.add(name)

    def _swapped(self, name: str) -> dict[str, nn.Module]:
        is_swapped = self.num_swapped and name in self.family.denoisers
        return swapped_blocks(self.family, self.module(name), self.num_swapped) if is_swapped else {}

    def swap_blocks(self, name: str) -> str:
        """Begins to swap blocks of a denoiser that is on the device; returns a sentence that says how many.

        Call it after adding adapters, which stay on the device.
        """
        from modules.weights.BlockSwap import BlockSwap
        from modules.weights.transfers import transfers_to

        blocks = self._swapped(name)
        self.swaps[name] = BlockSwap(list(blocks.values()), self.device, transfers_to(self.device))
        total = len(repeated_blocks(self.family, self.module(name)))
        return f"Swapping {len(blocks)} of the {total} blocks of the {name} between system memory and the device"

    def release(self, *names: str) -> None:
        """Frees the device memory of components; components of a folder are unloaded completely."""
        with self._lock:
            if self.is_single_file:
                for name in names:
                    if hasattr(self.module(name), "parameters"):
                        self._move(name, "cpu")
            else:
                self._components.update(dict.fromkeys(names))
                self._quantized.difference_update(names)
                self.pipe = self._new_pipe()
        free_memory(self.device)

    @contextlib.contextmanager
    def using(self, *names: str, on_device: bool = True) -> Iterator[DiffusionPipeline]:
        """Context in which these components are loaded; those that were not loaded before are released afterwards.

        The prefetching thread and the main thread, which may be sampling, exclude each other.
        """
        with self._lock:
            absent = [name for name in names if not self._is_on_device(name)]
            try:
                self.require(*absent, on_device=on_device)  # inside try: if one does not fit, the others are released
                yield self.pipe
            finally:
                if absent:
                    self.release(*absent)

    @contextlib.contextmanager
    def replaced(self, modules: Mapping[str, Any]) -> Iterator[None]:
        """Inside, `modules` take the place of these components; None for one that the pipeline is to lack."""
        with self._lock:
            own = {name: self.module(name) for name in modules}
            self._put(modules)
            try:
                yield
            finally:
                self._put(own)

    def _put(self, modules: Mapping[str, Any]) -> None:
        if self.is_single_file:
            for name, module in modules.items():
                setattr(self.pipe, name, module)
        else:
            self._components.update(modules)
            self.pipe = self._new_pipe()

    def meta_module(self, name: str):
        """The component if its weights are loaded; otherwise, for modules, one on the meta device: without weights."""
        from modules.distributed.placeholders import has_placeholders

        module = self.module(name)
        if name not in self._classes or not (module is None or has_placeholders(module)):
            return module
        return self._on_meta(name)

    def _on_meta(self, name: str):
        import torch

        component_class = self._component_class(name)
        if not hasattr(component_class, "forward"):
            return None
        with refusing(partial(self._unreadable, name)), torch.device("meta"):
            if is_of_transformers(component_class):
                return component_class(component_class.config_class.from_pretrained(self.path, subfolder=name))
            return component_class.from_config(component_class.load_config(self._config_folder(name)))

    def _described(self, name: str):
        """A component for a pipeline to look at when it is created: a module without weights, or all of another."""
        if hasattr(self._component_class(name), "forward"):
            return self._on_meta(name)
        if name not in self._looked_at:
            self._looked_at[name] = self._load_component(name)
        return self._looked_at[name]

    def _config_folder(self, name: str) -> Path:
        """The folder with the config.json of a component."""
        own = self._own_parts.get(name)
        return own if own and own.is_dir() else self.path / name

    def component_files(self, *names: str) -> list[Path]:
        """The files that determine what these components compute, sorted."""
        others = [name for name in names if name not in self._own_parts or name in self._added_to]
        own = [self._own_parts[name] for name in names if name in self._own_parts]
        files = [file for path in own for file in (_files_below(path, [""]) if path.is_dir() else [path])]
        return sorted(files) + (self._base_files(others) if others or not names else [])

    def _base_files(self, names: Sequence[str]) -> list[Path]:
        if self.is_single_file:
            folder = self.config.config_folder  # its configs and tokenizers matter, too, but not its weights
            described = _files_below(Path(os.path.expanduser(folder)), names) if folder else []
            return [self.path, *(path for path in described if path.suffix in (".json", ".txt", ".model"))]
        return _files_below(self.path, names)

    def module(self, name: str) -> Model:
        return getattr(self.pipe, name)

    def is_loaded(self, name: str) -> bool:
        return getattr(self.pipe, name) is not None

    @property
    def vae(self) -> ModelMixin:
        return getattr(self.pipe, self.family.vae)

    def denoiser(self, name: str) -> ModelMixin:
        return getattr(self.pipe, name)

    def text_encoder(self, name: str) -> PreTrainedModel:
        return getattr(self.pipe, name)

    def tokenizer_of(self, text_encoder: str) -> PreTrainedTokenizerBase:
        return getattr(self.pipe, self.family.tokenizer_of(text_encoder))

    @property
    def dtype(self) -> torch.dtype:
        import torch

        return getattr(torch, self.config.weight_dtype)

    def _is_on_device(self, name: str) -> bool:
        component = self.module(name)
        if hasattr(component, "parameters"):
            return next(component.parameters()).device == self.device
        return component is not None

    def _local_folder(self) -> Path:
        """The folder of the base model; a Hub id is downloaded to the Hub's cache."""
        path = Path(os.path.expanduser(self.config.base))
        if path.is_dir():
            return path
        return download_folder(self.config.base, replaced=replaced_parts(self.family, self.config))

    def _load_component(self, name: str):
        component_class = self._component_class(name)
        with refusing(partial(self._unreadable, name)):
            if not hasattr(component_class, "forward"):
                self._check_vocabulary(name, component_class)
                component = component_class.from_pretrained(self.path, subfolder=name, **no_code(component_class))
                check_tokenizer(component)
                return component
            if name in self._own_parts:
                own = self._own_parts[name], self.path / name, self.dtype
                return self._ready(name, load_own_part(self.family, name, component_class, *own))
            if stored_quantization(self.path / name) != "none":
                return self._frozen(load_prequantized(component_class, self.path / name, self.dtype))
            component, missing = load_component(component_class, self.path, name, self.dtype)
        if missing:
            raise self._component_error(name, f"its weights lack {missing}")
        return self._ready(name, component)

    def _lazy_denoiser(self, name: str) -> Model | None:
        """A denoiser whose weights are left in the files of its folder; None if they are elsewhere, or need changes."""
        from modules.weights.lazy_loading import load_lazily

        folder = self.path / name
        if name not in self.family.denoisers or name in self._own_parts or stored_quantization(folder) != "none":
            return None
        with refusing(partial(self._unreadable, name)):
            denoiser = load_lazily(self._component_class(name), folder, self.dtype)
        if denoiser is not None:
            self.family.adapt(denoiser)
        return denoiser

    def _ready(self, name: str, component: Any) -> Model:
        if name in self.family.denoisers:
            self.family.adapt(component)
        return self._frozen(component)

    def _check_stored_quantization(self, name: str) -> None:
        """Raises WeightsError for stored formats that can't be read, and for settings that ask for another."""
        if name in self._own_parts:
            return
        try:
            stored = stored_quantization(self.path / name)
        except ValueError as error:
            raise self._component_error(name, str(error)) from error
        wanted = quantization_of(self.family, name, self.config)
        if stored != "none" and wanted not in ("none", stored):
            part = "text_encoder" if name in self.family.text.encoders else "denoiser"
            raise WeightsError(
                f"model.{part}_quantization {wanted!r}: the {name} of model.base {self.config.base!r} is stored in "
                f"{stored}; set it to none, or choose a base model that is not quantized."
            )
        if stored == "nf4" and find_spec("bitsandbytes") is None:
            raise WeightsError(
                f"model.base {self.config.base!r}: its {name} is stored in nf4, which needs the package bitsandbytes; "
                "run `pip install bitsandbytes`, or choose a base model that is not quantized."
            )

    def _component_class(self, name: str) -> type[Any]:
        try:
            return without_videos(component_class(self._pipeline_class, name, self._classes[name], self.family))
        except ValueError as error:
            raise self._component_error(name, str(error)) from error

    def _check_arguments(self, options: Mapping[str, inspect.Parameter]) -> None:
        """Raises WeightsError if the index lacks what the pipeline can't be made without. options: its arguments."""
        for name, option in options.items():
            is_needed = name != "self" and option.default is inspect.Parameter.empty
            if is_needed and name not in (*self._components, *self._options):
                raise self._component_error(name, "model_index.json does not name it")

    def _check_vocabulary(self, name: str, component_class: type[Any]) -> None:
        """Raises WeightsError for a tokenizer without vocabulary, which would be loaded as an empty one."""
        files = getattr(component_class, "vocab_files_names", {}).values()
        if files and not any((self.path / name / file).is_file() for file in files):
            raise self._component_error(name, f"it has none of {', '.join(files)}")

    def _unreadable(self, name: str, error: Exception) -> WeightsError:
        """The refusal of a component that a library could not load."""
        if isinstance(error, ImportError) and "torchvision" in str(error).lower():
            return WeightsError(
                f"model.base {self.config.base!r}: its {name} needs the package torchvision, which Chorus does not "
                "install; install the version for its torch with pip, or choose another base."
            )
        return self._component_error(name, reason_with_file(error, self.path / name))

    def _component_error(self, name: str, reason: str) -> WeightsError:
        return component_error(f"model.base {self.config.base!r}", name, reason)

    def _load_single_file(self):
        check_config_folder(self.config, self.family)
        check_single_file(self.config, self.family)
        folder = self.config.config_folder
        options: dict[str, Any] = {"config": os.path.expanduser(folder)} if folder else {}
        names = tensor_shapes(read_header(self.path))
        given = {start for part, start in self.family.optional.items() if part in self._own_parts}
        lacking = [
            part
            for part, start in self.family.optional.items()
            if start not in given and not any(name.startswith(start) for name in names)
        ]
        options |= dict.fromkeys((*self.family.unused, *lacking))
        own = dict(self._own_parts)
        with refusing(partial(self._unreadable_file, "check both" if folder else DESCRIBE)):
            options |= take_missing(own, names, self.family, self.config, self.dtype)
            pipe = cast("type[SingleFilePipeline]", self._pipeline_class).from_single_file(
                str(self.path), torch_dtype=self.dtype, local_files_only=bool(folder), **options
            )
        put_own_parts(pipe, self.family, own, self.config.base)
        for name, component in pipe.components.items():
            if hasattr(component, "parameters") and any(param.is_meta for param in component.parameters()):
                raise self._single_file_error(f"tensors of its {name} are missing", CHOOSE_COMPLETE)
            if hasattr(component, "tie_weights"):
                component.tie_weights()  # diffusers loads the tied vocabulary of T5 as two tensors
            self._frozen(component)
        scheduler = scheduler_by_files(pipe.scheduler, self.family, self.config)
        pipe.scheduler = adapted_scheduler(scheduler, self.family, self.config)
        pipe.set_progress_bar_config(disable=True)
        return pipe

    def _unreadable_file(self, remedy: str, error: Exception) -> WeightsError:
        from diffusers.loaders.single_file_utils import SingleFileComponentError

        if isinstance(error, NotImplementedError):  # casting tensors that have no data
            return self._single_file_error("tensors are missing", CHOOSE_COMPLETE)
        lacks_part = isinstance(error, SingleFileComponentError)
        return self._single_file_error(loading_reason(error), CHOOSE_COMPLETE if lacks_part else remedy)

    def _single_file_error(self, reason: str, remedy: str) -> WeightsError:
        folder = self.config.config_folder
        described = f" with model.config_folder {folder!r}" if folder else ""
        return WeightsError(
            f"model.base {self.config.base!r}{described} can't be read as {self.family.label}: {reason}; {remedy}."
        )

    def _frozen(self, component):
        if hasattr(component, "requires_grad_"):
            component.requires_grad_(False).eval()
            if self.config.channels_last and component.__class__.__module__.startswith("diffusers"):
                import torch

                for layer in component.modules():
                    if isinstance(layer, torch.nn.Conv2d):  # not Conv3d, which has five axes
                        # torch declares `to` without this argument
                        cast("Callable[..., nn.Module]", layer.to)(memory_format=torch.channels_last)
        return component

    def _new_pipe(self) -> DiffusionPipeline:
        # created again after every change, because pipelines read the VAE's scale factor when they are created
        absent = [name for name in self.family.read_when_built if self._components[name] is None]
        described = {name: self._described(name) for name in absent}
        with refusing(self._index_error):
            pipe = self._pipeline_class(**{**self._components, **described}, **self._options)
        for name in absent:
            setattr(pipe, name, None)
        pipe.set_progress_bar_config(disable=True)
        text = self.family.text
        if text.reads_denoiser or any(encoder not in self._classes for encoder in text.encoders):
            pipe.denoiser_config = self._denoiser_config  # for encode_text
        extend_prompts(self.family, pipe)
        return pipe

    def _index_error(self, error: Exception) -> WeightsError:
        return WeightsError(
            f"model.base {self.config.base!r}: the settings in its model_index.json don't make a "
            f"{self.family.pipeline} ({loading_reason(error)}); download the model again or choose another."
        )

    @functools.cached_property
    def _denoiser_config(self) -> dict:
        name = self.family.denoisers[0]
        try:
            return read_json(self.path / name / "config.json")
        except (OSError, ModelFileError) as error:
            raise self._component_error(name, "its config.json can't be read") from error


def _files_below(folder: Path, names: Iterable[str]) -> list[Path]:
    return sorted(path for name in names for path in (folder / name).rglob("*") if path.is_file())
