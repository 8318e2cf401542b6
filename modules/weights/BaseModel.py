"""The base model of a run: a diffusers pipeline whose components are loaded on demand."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modules.layers.device_memory import free_memory
from modules.weights.blocks import keep_in_place, repeated_blocks, swapped_blocks
from modules.weights.Components import Components
from modules.weights.files_below import files_below
from modules.weights.FolderComponents import FolderComponents
from modules.weights.gguf_files import is_gguf
from modules.weights.hub_parts import with_downloaded_parts
from modules.weights.inspect import check_base
from modules.weights.own_parts import own_parts, replaced_parts
from modules.weights.quantization import multiply_in_8_bits, quantizable_layers, quantization_of, quantize_layers
from modules.weights.SingleFileComponents import SingleFileComponents

if TYPE_CHECKING:
    import torch
    from diffusers.models.modeling_utils import ModelMixin
    from diffusers.pipelines.pipeline_utils import DiffusionPipeline
    from torch import nn
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from modules.config.ModelConfig import ModelConfig
    from modules.families.Family import Family
    from modules.layers.BlockSwap import BlockSwap
    from modules.layers.HostBlocks import HostBlocks
    from modules.layers.SharedSlabs import SharedSlabs
    from modules.layers.transfers import Transfers
    from modules.weights.inspect import BaseInfo
    from modules.weights.libraries import Model


class BaseModel:
    """The components of `config.base`, each on the CPU or on `device`.

    Components of a folder are loaded one by one; a single-file checkpoint is read completely at once. Components to be
    quantized get QuantizedLinear layers when they first move to the device.
    loading_turn: a context that is entered while components are loaded and moved to the device.
    shared_slabs: for a component, memory that the ranks on this machine share for its swapped blocks; None: they don't.
    components: what to take in place of `config.base`. info: what it is, if `check_base` has been asked.
    Raises WeightsError if the base model is missing or has another architecture.
    """

    def __init__(
        self,
        family: Family,
        config: ModelConfig,
        device: torch.device,
        loading_turn: Callable[[], AbstractContextManager] = contextlib.nullcontext,
        shared_slabs: Callable[[str, Transfers], SharedSlabs | None] = lambda component, transfers: None,
        components: Components | None = None,
        info: BaseInfo | None = None,
    ):
        self.family = family
        self.config = config = with_downloaded_parts(config)
        self.device = device
        self.num_swapped = config.blocks_to_swap or 0  # blocks of each denoiser that stay in system memory
        self.swaps: dict[str, BlockSwap] = {}  # of the denoisers whose blocks are swapped
        self._held: dict[str, HostBlocks] = {}  # of denoisers whose blocks are to be swapped
        self._lock = threading.RLock()
        self._quantized: set[str] = set()
        self._loading_turn = loading_turn
        self._shared_slabs = shared_slabs
        self._components = components or _open(family, config, self.dtype, info)
        self._own_parts = self._components.own_parts
        # those of which the file has a part only, so that the rest is the base's
        self._added_to = self._own_parts.keys() - replaced_parts(family, config)

    @property
    def pipe(self) -> DiffusionPipeline:
        """A plain diffusers pipeline, with None for components that are not loaded."""
        return self._components.pipe

    @property
    def path(self) -> Path:
        """The folder or file of the base model on this machine."""
        return self._components.path

    @property
    def component_names(self) -> list[str]:
        """All components of this model that training or saving may need."""
        return self._components.names

    @property
    def stored_quantized(self) -> list[str]:
        """The components whose files are quantized."""
        own = [name for name, path in self._own_parts.items() if is_gguf(path)]
        return own + list(self._components.stored_quantized)

    def require(self, *names: str, on_device: bool = True, lazily: bool = False, to_swap: bool = False) -> None:
        """Loads missing components, frozen and in evaluation mode, and by default moves modules to the device.

        Components that this model lacks are ignored. lazily: leaves the weights of denoisers in their files as
        `placeholders`, where possible. to_swap: puts blocks that are to be swapped where they are copied from. All
        ranks on a machine must then do so.
        """
        with self._lock:
            missing = self._components.missing(names)
            with self._loading_turn() if missing else contextlib.nullcontext():
                if missing:
                    self._components.load(missing, lazily)
                for name in names:
                    if hasattr(self.module(name), "parameters"):
                        self._place(name, on_device, lazily, to_swap)

    def _place(self, name: str, on_device: bool, lazily: bool, to_swap: bool) -> None:
        """Casts, quantizes and moves the weights of a module one after the other, as far as they are not yet in the
        form in which they stay."""
        from modules.weights.deferred_casts import compute, leave_in_files

        module: nn.Module = self.module(name)
        if not on_device:
            if lazily and name in self.family.denoisers:
                leave_in_files(module)
            compute(module)
            return
        names = quantizable_layers(self.family, name, module) if self._is_to_be_quantized(name) else []
        swapped = self._swapped(name)
        starts = tuple(f"{path}." for path in swapped)
        self._quantize(name, [layer for layer in names if not layer.startswith(starts)])
        blocks = self._in_their_form(name, swapped, names)
        if to_swap and swapped and name not in (*self._held, *self.swaps):
            self._hold(name, blocks, list(swapped.values()))
        else:
            for _ in blocks:
                pass
        if names:
            self._quantized.add(name)
        if name in (*self.family.denoisers, *self.family.guidance_denoisers):
            multiply_in_8_bits(module, self.config, self.device)
        compute(module, self.device)
        self._move(name, self.device)

    def _in_their_form(self, name: str, blocks: Mapping[str, nn.Module], names: Sequence[str]) -> Iterator[nn.Module]:
        """Each of the blocks once its weights are on the CPU in the form in which they stay. names: of the layers of
        the component that are to be quantized."""
        from modules.weights.deferred_casts import compute

        for path, block in blocks.items():
            self._quantize(name, [layer for layer in names if layer.startswith(f"{path}.")], on_cpu=True)
            compute(block)
            keep_in_place(block)
            yield block

    def _quantize(self, name: str, layers: Sequence[str], on_cpu: bool = False) -> None:
        quantize_layers(self.family, name, self.module(name), self.config, layers, self.device, on_cpu)

    def _hold(self, name: str, in_their_form: Iterator[nn.Module], blocks: Sequence[nn.Module]) -> None:
        """Moves blocks one by one to where they are copied from, so that no rank has all of them twice, or alone."""
        from modules.layers.HostBlocks import HostBlocks, frozen_bytes
        from modules.layers.transfers import transfers_to

        transfers = transfers_to(self.device)
        self._held[name] = held = HostBlocks(transfers, self._shared_slabs(name, transfers))
        held.take(in_their_form, list(map(frozen_bytes, blocks)))

    def _move(self, name: str, device: torch.device | str) -> None:
        module: nn.Module = self.module(name)  # both libraries declare their own `to` without the binding to the module
        module.to(device)

    def _is_to_be_quantized(self, name: str) -> bool:
        is_wanted = quantization_of(self.family, name, self.config) != "none"
        return is_wanted and name not in self._quantized and name not in self.stored_quantized

    def _swapped(self, name: str) -> dict[str, nn.Module]:
        is_swapped = self.num_swapped and name in self.family.denoisers
        return swapped_blocks(self.family, self.module(name), self.num_swapped) if is_swapped else {}

    def swap_blocks(self, name: str) -> str:
        """Begins to swap blocks of a denoiser that is on the device; returns a sentence that says how many.

        Call it after adding adapters, which stay on the device.
        """
        from modules.layers.BlockSwap import BlockSwap
        from modules.layers.transfers import transfers_to

        blocks, held = self._swapped(name), self._held.pop(name, None)
        compiled = self.config.compile != "off"
        self.swaps[name] = BlockSwap(list(blocks.values()), self.device, transfers_to(self.device), compiled, held)
        total = len(repeated_blocks(self.family, self.module(name)))
        memory = "system memory that the ranks on this machine share" if held and held.is_shared else "system memory"
        return f"Swapping {len(blocks)} of the {total} blocks of the {name} between {memory} and the device"

    def release(self, *names: str) -> None:
        """Frees the device memory of components; components of a folder are unloaded completely."""
        with self._lock:
            stay = self._components.unload(names)
            self._quantized.difference_update(set(names).difference(stay))
            for name in names:
                self._held.pop(name, None)
            for name in stay:
                if hasattr(self.module(name), "parameters"):
                    self._move(name, "cpu")
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
            self._components.put(modules)
            try:
                yield
            finally:
                self._components.put(own)

    def meta_module(self, name: str) -> Any:
        """The component if its weights are loaded; otherwise, for modules, one on the meta device: without weights."""
        from modules.distributed.placeholders import has_placeholders

        module = self.module(name)
        without_weights = module is None or has_placeholders(module)
        return self._components.on_meta(name) if without_weights and name in self.component_names else module

    def component_files(self, *names: str) -> list[Path]:
        """The files that determine what these components compute, sorted."""
        others = [name for name in names if name not in self._own_parts or name in self._added_to]
        own = [self._own_parts[name] for name in names if name in self._own_parts]
        files = [file for path in own for file in (files_below(path, [""]) if path.is_dir() else [path])]
        return sorted(files) + (self._components.files(others) if others or not names else [])

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
        from modules.weights.deferred_casts import is_deferred

        component = self.module(name)
        if not hasattr(component, "parameters"):
            return component is not None
        is_here = next(component.parameters()).device == self.device
        return is_here and not self._is_to_be_quantized(name) and not is_deferred(component)


def _open(family: Family, config: ModelConfig, dtype: torch.dtype, info: BaseInfo | None) -> Components:
    info = info or check_base(config.base, family, replaced=replaced_parts(family, config))
    parts = own_parts(family, config)
    if info.kind == "single_file":
        return SingleFileComponents(family, config, dtype, parts)
    return FolderComponents(family, config, dtype, info, parts)
