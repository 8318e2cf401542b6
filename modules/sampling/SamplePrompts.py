"""The prompts of samples, encoded once, and the pipeline that generates images of them without the text encoders."""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
from PIL.Image import Image
from torch import nn
from torch.utils._pytree import tree_map

from modules.sampling.generation import ImageRequest, run_pipeline

if TYPE_CHECKING:
    from diffusers.pipelines.pipeline_utils import DiffusionPipeline

    from modules.families.Family import Family
    from modules.sampling.LoadedPipeline import LoadedPipeline
    from modules.weights.BaseModel import BaseModel

Model = TypeVar("Model", "BaseModel", "LoadedPipeline")

_PLACEMENT = ("device", "dtype")  # arguments of encode_prompt that don't change what the prompt means


class SamplePrompts(Generic[Model]):
    """The encoded prompts of samples, in system memory.

    Text encoders are the largest part of some models. They are loaded for prompts that are not encoded yet and unloaded
    again; keeping them in system memory instead would take many times the memory of the results, for prompts that
    stay the same during a run. Text encoders that train are on the device anyway, and their results change: nothing
    is kept of them.
    one_at_a_time: whether several images have turned out not to fit in memory together.
    """

    def __init__(self, base: Model):
        self.base: Model = base
        self.one_at_a_time = False
        self._encoded: dict[str, Any] = {}  # arguments of encode_prompt -> its result on the CPU
        self._known: set[tuple[ImageRequest, ...]] = set()

    @property
    def trains_text(self) -> bool:
        return any(_trains(self.base.module(name)) for name in self.base.family.text.encoders)

    def encode(self, batches: Sequence[Sequence[ImageRequest]], beat: Callable[[], None] = lambda: None) -> None:
        """Encodes the prompts of batches that are not known yet. beat: called after each batch.

        The pipeline itself is run up to its first prediction, because each one encodes prompts in its own way.
        """
        unknown = [batch for batch in batches if tuple(batch) not in self._known]
        if not unknown or self.trains_text:
            return
        base, family = self.base, self.base.family
        # some pipelines encode the image before the prompt
        encoding = family.text_components + family.condition_components
        if family.text.sees_first_frame:
            encoding += (family.vae,)
        later = {name: base.meta_module(name) for name in base.component_names if name not in encoding}
        models = {name: model for name, model in later.items() if isinstance(model, nn.Module)}
        helpers = later.keys() - models.keys()  # such as a second scheduler, set before the first prediction
        described = {name: _Description(model, base.dtype) for name, model in models.items()}
        with base.using(*encoding, *helpers), base.replaced(described), self._remembering(base.pipe):
            for batch in unknown:
                known = tuple(batch)
                if not (family.text.sees_images or any(one.precedes_prompt for one in family.conditions)):
                    batch = [replace(request, references=()) for request in batch]
                try:
                    run_pipeline(base.pipe, batch)
                except _PromptsEncoded:
                    self._known.add(known)
                beat()

    @contextmanager
    def pipeline(self) -> Iterator[DiffusionPipeline]:
        """The pipeline for batches that are encoded; its other models are on the device only while they are used."""
        base = self.base
        family: Family = base.family
        trains_text: bool = self.trains_text
        on_device = [*family.denoisers, *family.guidance_denoisers, *(family.text.encoders if trains_text else ())]
        absent = set() if trains_text else set(family.text.encoders)
        if any(request.references for batch in self._known for request in batch):
            absent.difference_update(family.condition_components)  # which see the images
        others = [name for name in base.component_names if name not in absent.union(on_device)]
        with base.using(*on_device), base.using(*others, on_device=False):
            loaded = {name: base.module(name) for name in others}
            models = {name: module for name, module in loaded.items() if isinstance(module, nn.Module)}
            on_demand = {name: _OnDemand(model, base.device) for name, model in models.items() if not _trains(model)}
            taken: dict[str, Any] = {**dict.fromkeys(absent), **on_demand}
            with base.replaced(taken), self._remembering(base.pipe):
                yield base.pipe

    @contextmanager
    def _remembering(self, pipe: DiffusionPipeline) -> Iterator[None]:
        """Inside, `pipe.encode_prompt` returns what it returned for the same arguments, unless text encoders train."""
        if self.trains_text:
            yield
            return
        encode, own = pipe.encode_prompt, vars(pipe).get("encode_prompt")
        signature = inspect.signature(encode)

        @functools.wraps(encode)
        def encode_prompt(*args, **kwargs):
            bound = signature.bind(*args, **kwargs)
            meaning = {name: value for name, value in bound.arguments.items() if name not in _PLACEMENT}
            key = repr(tree_map(_by_content, meaning))
            if key not in self._encoded:
                if "device" in signature.parameters:
                    bound.arguments["device"] = self.base.device
                self._encoded[key] = _moved(encode(*bound.args, **bound.kwargs), torch.device("cpu"))
            return _moved(self._encoded[key], self.base.device)

        vars(pipe)["encode_prompt"] = encode_prompt
        try:
            yield
        finally:
            del vars(pipe)["encode_prompt"]
            if own is not None:
                vars(pipe)["encode_prompt"] = own


class _PromptsEncoded(Exception):
    """A pipeline has reached its first prediction, or encodes an image behind the prompts."""


class _Description:
    """A module's attributes, such as its config, without its weights. No module, or pipelines would use its device."""

    def __init__(self, module: nn.Module, dtype: torch.dtype):
        self._module = module
        self.dtype = dtype

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def __call__(self, *args: object, **kwargs: object) -> None:
        raise _PromptsEncoded

    encode = __call__  # of a VAE


class _OnDemand:
    """A model in system memory that moves to the device to be used. Pipelines see an instance of its class there."""

    def __init__(self, model: Any, device: torch.device):
        self._model, self.device = model, device

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # some pipelines ask which class their VAE is of
        return type(self._model)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._model, name)
        return _OnDemand(value, self.device) if isinstance(value, nn.Module) else value  # such as a vision tower

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self._on_device():
            return self._model(*args, **kwargs)

    def encode(self, *args: Any, **kwargs: Any) -> Any:
        with self._on_device():
            return self._model.encode(*args, **kwargs)

    def decode(self, *args: Any, **kwargs: Any) -> Any:
        with self._on_device():
            return self._model.decode(*args, **kwargs)

    @contextmanager
    def _on_device(self) -> Iterator[None]:
        self._model.to(self.device)
        try:
            yield
        finally:
            self._model.to("cpu")


def _by_content(value: Any) -> Any:
    """An image as a digest of its pixels, which two of the same content share."""
    if not isinstance(value, Image):
        return value
    return value.mode, value.size, hashlib.sha256(value.tobytes()).hexdigest()


def _moved(values: Any, device: torch.device) -> Any:
    """A copy of all tensors in `values` on the device: pipelines may change their own."""
    return tree_map(lambda value: value.to(device, copy=True) if isinstance(value, torch.Tensor) else value, values)


def _trains(module: Any) -> bool:
    return hasattr(module, "parameters") and any(param.requires_grad for param in module.parameters())
