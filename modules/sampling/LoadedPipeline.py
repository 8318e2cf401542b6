"""A pipeline in system memory that makes images on a device."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from torch import nn

from modules.layers.device_memory import free_memory
from modules.sampling.generation import as_many_as_fit, batches, generate_images
from modules.sampling.SamplePrompts import SamplePrompts

if TYPE_CHECKING:
    import torch
    from diffusers.pipelines.pipeline_utils import DiffusionPipeline
    from torch import Tensor

    from modules.config.SamplingConfig import Sampler
    from modules.families.Family import Family
    from modules.sampling.generation import ImageRequest, Sample


class LoadedPipeline:
    """A pipeline of `family` whose parts, all loaded, are on `device` only while they are used.

    It has what SamplePrompts needs of a BaseModel, which loads parts when they are used. Here they stay in system
    memory, because LoRAs and embeddings have changed them.
    """

    def __init__(self, pipe: DiffusionPipeline, family: Family, device: torch.device):
        self.pipe = pipe
        self.family = family
        self.device = device
        for name in self.component_names:
            if isinstance(module := self.module(name), nn.Module):
                module.requires_grad_(False)  # or it would count as trained, and its results as different each time

    def generate(
        self, requests: list[ImageRequest], batch_size: int, sampler: Sampler, tell: Callable[[str], None]
    ) -> Iterator[Sample]:
        """As `generate_images`; one at a time, and told, if `batch_size` images don't fit in memory together.

        All prompts are encoded before the denoiser is on the device.
        """
        prompts: SamplePrompts[LoadedPipeline] = SamplePrompts(self)

        def generate(requests: Sequence[ImageRequest], batch_size: int) -> Generator[Sample, None, None]:
            prompts.encode(list(batches(requests, batch_size)))
            with prompts.pipeline() as pipe:
                yield from generate_images(pipe, list(requests), batch_size, sampler)

        text = f"Not enough memory to generate {batch_size} images at once: the rest is generated one at a time."
        yield from as_many_as_fit(generate, requests, batch_size, self.device, lambda: tell(text))

    @property
    def component_names(self) -> list[str]:
        return [name for name, part in self.pipe.components.items() if part is not None]

    def module(self, name: str) -> Any:
        return getattr(self.pipe, name)

    meta_module = module  # its weights are there

    @property
    def dtype(self) -> torch.dtype:
        return next(self.module(name).dtype for name in self.family.denoisers if self.module(name) is not None)

    @contextmanager
    def using(self, *names: str, on_device: bool = True) -> Iterator[DiffusionPipeline]:
        """Inside, these modules are on the device, if `on_device`."""
        modules = [self.module(name) for name in names if on_device]
        with ExitStack() as stack:
            for module in modules:
                if isinstance(module, nn.Module):
                    stack.enter_context(_on_device(module, self.device))
            yield self.pipe

    @contextmanager
    def replaced(self, modules: Mapping[str, Any]) -> Iterator[None]:
        """Inside, `modules` take the place of these components; None for one that the pipeline is to lack."""
        own = {name: self.module(name) for name in modules}
        try:
            for name, module in modules.items():
                setattr(self.pipe, name, module)
            yield
        finally:
            for name, module in own.items():
                setattr(self.pipe, name, module)


@contextmanager
def _on_device(module: nn.Module, device: torch.device) -> Iterator[None]:
    """Inside, the module has copies of its tensors that are on the device.

    Its own stay in system memory, so that nothing is copied back: weights that are mapped from a file take none.
    """
    own: list[tuple[Any, str, Tensor]] = [
        (place, name, tensor)
        for part in module.modules()
        for place in (part._parameters, part._buffers)
        for name, tensor in place.items()
        if tensor is not None
    ]
    copies: dict[int, Tensor] = {}  # by the id of a tensor, which several modules may share
    try:
        for place, name, tensor in own:
            if tensor.device == device:
                continue
            if id(tensor) not in copies:
                is_plain = type(tensor) is nn.Parameter  # one of bitsandbytes moves more than its values
                copies[id(tensor)] = nn.Parameter(tensor.data.to(device), False) if is_plain else tensor.to(device)
            place[name] = copies[id(tensor)]
        yield
    finally:
        for place, name, tensor in own:
            place[name] = tensor
        del copies
        free_memory(device)
