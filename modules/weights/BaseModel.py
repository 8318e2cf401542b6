"""The base model of a run: a diffusers pipeline whose components are loaded when they are needed."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import json
import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from modules.weights.device_memory import free_memory
from modules.weights.errors import WeightsError, loading_reason
from modules.weights.inspect import check_base, check_fits, inspect_base
from modules.weights.libraries import import_diffusers, import_pipeline
from modules.weights.safe import read_header, tensor_shapes
from modules.weights.single_file import V_PREDICTION_MARK, ZERO_SNR_MARK

if TYPE_CHECKING:
    import torch
    from diffusers import DiffusionPipeline
    from torch import nn

    from modules.config.ModelConfig import ModelConfig
    from modules.families.Family import Family

# Whose classes a model may name; any other would be code of the model's own.
LIBRARIES = ("diffusers", "transformers")
WHOLE = "choose a checkpoint that holds the whole model"


class BaseModel:
    """Components of `config.base`, on the CPU or on `device`.

    A folder's components are loaded one by one; a single-file checkpoint is read whole at the first need.
    `pipe` is a plain diffusers pipeline that holds None where a component is not in memory.
    loading_turn: entered while components of a folder are loaded and put on the device.
    Raises WeightsError where the base is missing or holds another architecture.
    """

    def __init__(
        self,
        family: Family,
        config: ModelConfig,
        device: torch.device,
        loading_turn: Callable[[], AbstractContextManager] = contextlib.nullcontext,
    ):
        info = check_base(config.base, family)
        self.family = family
        self.config = config
        self.device = device
        self._lock = threading.RLock()
        self._loading_turn = loading_turn
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
            index = self._pipeline_class.load_config(self.path)
            parts = {name: tuple(value) for name, value in index.items() if isinstance(value, list | tuple)}
            # a part that the model goes without, as an SD 3 without its T5, is written as [null, null]
            self._classes = {
                name: value for name, value in parts.items() if value[0] is not None and name not in family.unused
            }
            options = inspect.signature(self._pipeline_class.__init__).parameters
            self._options = {
                name: value
                for name, value in index.items()
                if name in options and not isinstance(value, list | tuple)
            }
            self._components = dict.fromkeys((*parts, *family.unused))
            self._components["scheduler"] = self._scheduler(self._load_component("scheduler"))
            self.pipe = self._new_pipe()

    @property
    def component_names(self) -> list[str]:
        """Every component that this model has and training or saving may need."""
        if self.is_single_file:
            return [name for name, value in self.pipe.components.items() if value is not None]
        return list(self._classes)

    def require(self, *names: str, on_device: bool = True) -> None:
        """Loads what is not in memory, frozen and in evaluation mode, and puts modules on the device if asked.

        Parts that this model goes without are passed over.
        """
        with self._lock:
            missing = [name for name in names if name in self._classes and getattr(self.pipe, name) is None]
            with self._loading_turn() if missing else contextlib.nullcontext():
                for name in missing:
                    self._components[name] = self._load_component(name)
                if missing:
                    self.pipe = self._new_pipe()
                for name in names if on_device else ():
                    if hasattr(self.module(name), "parameters"):
                        self.module(name).to(self.device)

    def release(self, *names: str) -> None:
        """Takes components out of device memory; those of a folder leave memory altogether."""
        with self._lock:
            if self.is_single_file:
                for name in names:
                    if hasattr(self.module(name), "parameters"):
                        self.module(name).to("cpu")
            else:
                self._components.update(dict.fromkeys(names))
                self.pipe = self._new_pipe()
        free_memory(self.device)

    @contextlib.contextmanager
    def using(self, *names: str, on_device: bool = True) -> Iterator[DiffusionPipeline]:
        """Inside, these components are in memory, on the device if asked; those that came for it leave afterwards.

        The prefetching thread may ask while the main thread samples: one waits for the other.
        """
        with self._lock:
            absent = [name for name in names if not self._is_on_device(name)]
            try:
                self.require(*absent, on_device=on_device)  # where one does not fit, those before it have to leave
                yield self.pipe
            finally:
                if absent:
                    self.release(*absent)

    def meta_module(self, name: str):
        """The component if it is loaded; otherwise, for modules, one on the meta device: shapes without weights."""
        import torch

        if self.module(name) is not None or name not in self._classes:
            return self.module(name)
        component_class = self._component_class(name)
        if not hasattr(component_class, "forward"):
            return None
        with torch.device("meta"):
            if self._classes[name][0] == "diffusers":
                return component_class.from_config(component_class.load_config(self.path, subfolder=name))
            return component_class(component_class.config_class.from_pretrained(self.path, subfolder=name))

    def component_files(self, *names: str) -> list[Path]:
        """The files that decide what these components compute, sorted."""
        if self.is_single_file:
            folder = self.config.config_folder  # its configs and tokenizers decide, too, but not its weights
            described = _files_below(Path(os.path.expanduser(folder)), names) if folder else []
            return [self.path, *(path for path in described if path.suffix in (".json", ".txt", ".model"))]
        return _files_below(self.path, names)

    def module(self, name: str) -> nn.Module:
        return getattr(self.pipe, name)

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
        """The base's folder; a Hub id is downloaded into the Hub's cache."""
        path = Path(os.path.expanduser(self.config.base))
        if path.is_dir():
            return path
        try:
            return Path(self._pipeline_class.download(self.config.base))
        except OSError as error:
            raise WeightsError(
                f"model.base {self.config.base!r} can't be fetched from the Hub: {loading_reason(error)}; "
                "check the name and the connection, or give a folder."
            ) from error

    def _load_component(self, name: str):
        component_class = self._component_class(name)
        try:
            if not hasattr(component_class, "forward"):
                self._check_vocabulary(name, component_class)
                return component_class.from_pretrained(self.path, subfolder=name)
            options = {"dtype" if self._classes[name][0] == "transformers" else "torch_dtype": self.dtype}
            component, report = component_class.from_pretrained(
                self.path, subfolder=name, output_loading_info=True, **options
            )
        except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: of sizes that are not the config's
            raise self._component_error(name, loading_reason(error)) from error
        if report["missing_keys"]:
            # the libraries would go on with random numbers in their place
            raise self._component_error(name, f"its weights lack {min(report['missing_keys'])}")
        return self._frozen(component)

    def _component_class(self, name: str) -> type:
        library, class_name = self._classes[name]
        component_class = getattr(importlib.import_module(library), class_name, None) if library in LIBRARIES else None
        if component_class is None:
            raise self._component_error(name, f"there is no {library}.{class_name}")
        return component_class

    def _check_vocabulary(self, name: str, component_class: type) -> None:
        """Without its files a tokenizer loads too, and knows no word."""
        files = getattr(component_class, "vocab_files_names", {}).values()
        if files and not any((self.path / name / file).is_file() for file in files):
            raise self._component_error(name, f"it has none of {', '.join(files)}")

    def _component_error(self, name: str, reason: str) -> WeightsError:
        return WeightsError(
            f"model.base {self.config.base!r}: its {name} can't be loaded ({reason}); "
            "fetch the model again or choose another."
        )

    def _load_single_file(self):
        from diffusers.loaders.single_file_utils import SingleFileComponentError

        check_config_folder(self.config)
        folder = self.config.config_folder
        options = {"config": os.path.expanduser(folder)} if folder else {}
        names = tensor_shapes(read_header(self.path))
        lacking = [
            part for part, start in self.family.optional.items() if not any(name.startswith(start) for name in names)
        ]
        unused = dict.fromkeys((*self.family.unused, *lacking))
        try:
            pipe = self._pipeline_class.from_single_file(
                str(self.path), torch_dtype=self.dtype, local_files_only=bool(options), **options, **unused
            )
        except NotImplementedError as error:  # of tensors that are still without data when they get their dtype
            raise self._single_file_error("tensors are missing", WHOLE) from error
        except SingleFileComponentError as error:
            raise self._single_file_error(loading_reason(error), WHOLE) from error
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            remedy = "check both" if options else "set model.config_folder to a diffusers folder of the same kind"
            raise self._single_file_error(loading_reason(error), remedy) from error
        for name, component in pipe.components.items():
            if hasattr(component, "parameters") and any(param.is_meta for param in component.parameters()):
                raise self._single_file_error(f"tensors of its {name} are missing", WHOLE)
            if hasattr(component, "tie_weights"):
                component.tie_weights()  # T5 has its vocabulary twice; diffusers reads it as two
            self._frozen(component)
        pipe.scheduler = self._scheduler(_as_marked(pipe.scheduler, names))
        pipe.set_progress_bar_config(disable=True)
        return pipe

    def _scheduler(self, scheduler):
        """With the prediction type and noise of the settings: training, samples and the saved model must agree."""
        if self.family.objective != "ddpm":
            return scheduler
        if self.config.prediction_type != "auto":
            scheduler = type(scheduler).from_config(scheduler.config, prediction_type=self.config.prediction_type)
        return self._with_zero_terminal_snr(scheduler) if self.config.zero_terminal_snr else scheduler

    def _with_zero_terminal_snr(self, scheduler):
        """Lin et al. 2023, arXiv 2305.08891: the last step is noise alone, and sampling starts there."""
        if scheduler.config.prediction_type == "epsilon":
            raise WeightsError(
                "model.zero_terminal_snr: this base predicts epsilon, which says nothing of the picture where there is "
                "noise alone; set model.prediction_type to v_prediction, or switch it off."
            )
        taken = inspect.signature(type(scheduler).__init__).parameters
        options = {"rescale_betas_zero_snr": True, "timestep_spacing": "trailing"}
        if "rescale_betas_zero_snr" in taken:
            return type(scheduler).from_config(scheduler.config, **options)
        if "clip_sample" not in scheduler.config:
            options["clip_sample"] = False  # DDIM's default is for pixels in [-1, 1]; latents go beyond
        return import_diffusers().DDIMScheduler.from_config(scheduler.config, **options)

    def _single_file_error(self, reason: str, remedy: str) -> WeightsError:
        folder = self.config.config_folder
        described = f" with model.config_folder {folder!r}" if folder else ""
        return WeightsError(
            f"model.base {self.config.base!r}{described} can't be read as {self.family.label}: {reason}; "
            f"{remedy}."
        )

    def _frozen(self, component):
        if hasattr(component, "requires_grad_"):
            component.requires_grad_(False).eval()
            if self.config.channels_last and component.__class__.__module__.startswith("diffusers"):
                import torch

                for layer in component.modules():
                    if isinstance(layer, torch.nn.Conv2d):  # the layout is for four axes; Conv3d has five
                        layer.to(memory_format=torch.channels_last)
        return component

    def _new_pipe(self) -> DiffusionPipeline:
        # made anew after every change: a pipeline takes the VAE's scale factor when it is made
        pipe = self._pipeline_class(**self._components, **self._options)
        pipe.set_progress_bar_config(disable=True)
        if any(encoder not in self._classes for encoder in self.family.text.encoders):
            pipe.denoiser_config = self._denoiser_config  # for encode_text
        return pipe

    @functools.cached_property
    def _denoiser_config(self) -> dict:
        name = self.family.denoisers[0]
        try:
            return json.loads((self.path / name / "config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise self._component_error(name, "its config.json can't be read") from error


def check_config_folder(config: ModelConfig) -> None:
    """Raises WeightsError where the folder that describes a single file is not there."""
    if config.config_folder and not os.path.isdir(os.path.expanduser(config.config_folder)):
        raise WeightsError(
            f"model.config_folder {config.config_folder!r}: no such folder; name a diffusers folder of the same kind."
        )


def _files_below(folder: Path, names: Iterable[str]) -> list[Path]:
    return sorted(path for name in names for path in (folder / name).rglob("*") if path.is_file())


def _as_marked(scheduler, names: Collection[str]):
    """The scheduler of a single file that says by its tensors' names what its model was trained for."""
    marks = {
        V_PREDICTION_MARK: {"prediction_type": "v_prediction"},
        # trailing: sampling has to start at the last step, which is noise alone
        ZERO_SNR_MARK: {"rescale_betas_zero_snr": True, "timestep_spacing": "trailing"},
    }
    changes = {name: value for mark, values in marks.items() if mark in names for name, value in values.items()}
    return type(scheduler).from_config(scheduler.config, **changes) if changes else scheduler
