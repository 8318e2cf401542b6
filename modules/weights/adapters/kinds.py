"""What a kind of adapters does: each file of this folder has an instance of a class below, called KIND.

A kind is loaded when it is first asked for, because its layers need torch and peft.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from modules.config.adapters import ADAPTERS
from modules.weights.LoraSource import NORM_PARTS
from modules.weights.pipeline_adapters import add_adapter

if TYPE_CHECKING:
    import torch
    from peft import PeftConfig
    from torch import Tensor, nn

    from modules.config.LoraConfig import LoraConfig
    from modules.weights.libraries import Model

ADAPTER = "default"  # PEFT's name for the adapters that train
NORM = "norm"  # the kind of norm layers, beside adapters of any other


class AdapterKind(ABC):
    """One kind of adapters. name: as in modules/config/adapters.py."""

    name: ClassVar[str]

    @abstractmethod
    def add_new(
        self, module: Model, targets: list[str], settings: LoraConfig, patterns: Mapping[str, Mapping[str, Any]]
    ) -> None:
        """Gives layers of a module, by name, new adapters called ADAPTER, which change nothing yet.

        patterns: PEFT's `rank_pattern` and `alpha_pattern`, layer -> the value that replaces the one in the settings.
        """


class LycorisKind(ABC):
    """A kind that files in LyCORIS's format hold.

    Its layers are of a subclass of PEFT's LycorisLayer, whose `adapter_layer_names` begin with `parameter`, or
    with the first of `tensors`.
    """

    name: ClassVar[str]
    parameter: ClassVar[str] = ""

    # in all of its methods, `parts` are those of one layer: name of the tensor in the file -> its values

    @property
    def tensors(self) -> tuple[str, ...]:
        return ADAPTERS[self.name].tensors

    def is_whole(self, parts: Collection[str]) -> bool:
        """Whether a layer has these parts."""
        return set(parts) == set(self.tensors)

    def rank(self, parts: Mapping[str, Tensor]) -> int | None:
        """None if the parts have none, so that the scale is always 1."""
        return None

    def scale(self, layer: LycorisLayer) -> float:
        """What the product of the parts is multiplied by."""
        return 1.0 if layer.rank is None or layer.alpha is None else layer.alpha / layer.rank

    @abstractmethod
    def fits(self, parts: Mapping[str, Tensor], module: nn.Module) -> bool:
        """Whether the parts are of the size of this layer, which may have other adapters."""

    def read(self, parts: Mapping[str, Tensor], alpha: float | None) -> LycorisLayer:
        """The layer of a file. alpha: None if the file has none.

        Raises ValueError, with what is wrong with "its" adapter and the remedy, if it can't be used.
        """
        # without an alpha, or with 0 as LyCORIS reads it, the scale is 1
        return LycorisLayer(self.name, parts, float(alpha or self.rank(parts) or 1))

    def layer_of(self, adapted: Any, adapter: str) -> LycorisLayer:
        """What a layer of a model gives a file."""
        held = {name: getattr(adapted, name) for name in self.tensors}
        parts = {name: of_adapter[adapter].detach() for name, of_adapter in held.items() if adapter in of_adapter}
        return LycorisLayer(self.name, parts, float(adapted.scaling[adapter]) * (self.rank(parts) or 1))

    @abstractmethod
    def add(
        self, module: Model, layers: Mapping[str, LycorisLayer], adapter: str, dtype: torch.dtype | None = None
    ) -> None:
        """Adds adapters of this kind, which fit, to layers of a module, by their paths in it.

        dtype: of their weights; None: as in `layers`.
        """


class PeftKind(AdapterKind, LycorisKind):
    """A kind whose layers PEFT has."""

    @abstractmethod
    def config(self, **values: Any) -> PeftConfig:
        """PEFT's configuration of the adapters."""

    @abstractmethod
    def options(self, settings: LoraConfig) -> dict[str, Any]:
        """What the settings change in `config`, beside rank and alpha."""

    def add_new(
        self, module: Model, targets: list[str], settings: LoraConfig, patterns: Mapping[str, Mapping[str, Any]]
    ) -> None:
        options = {**self.options(settings), **patterns}
        config = self.config(r=settings.rank, alpha=settings.alpha, target_modules=targets, **options)
        add_adapter(module, config, ADAPTER)

    def add(
        self, module: Model, layers: Mapping[str, LycorisLayer], adapter: str, dtype: torch.dtype | None = None
    ) -> None:
        rank = most_common_rank(layers)
        add_adapter(module, self.config(r=rank, alpha=rank, target_modules=list(layers)), adapter)
        fill(module, layers, adapter, dtype)


@dataclass(frozen=True)
class LycorisLayer:
    """The adapter of one layer, as in a file. kind: the name of a LycorisKind. parts: name of the tensor -> its values.

    alpha: divided by the rank it gives the scale; None for kinds without one.
    """

    kind: str
    parts: Mapping[str, Tensor]
    alpha: float | None

    @property
    def is_norm(self) -> bool:
        return self.kind == NORM

    @property
    def rank(self) -> int | None:
        return lycoris_kind(self.kind).rank(self.parts)

    @property
    def scale(self) -> float:
        return lycoris_kind(self.kind).scale(self)

    def fits(self, module: nn.Module) -> bool:
        return lycoris_kind(self.kind).fits(self.parts, module)


def adapter_kind(name: str) -> AdapterKind:
    """The kind of this name, which `lora.adapter` chooses."""
    return _kind(name)


def lycoris_kind(name: str) -> LycorisKind:
    """The kind of this name, among those that files in LyCORIS's format hold, NORM included."""
    return _kind(name)


def _kind(name: str) -> Any:
    return import_module(f"{__package__}.{name}").KIND


def kinds_by_tensor() -> dict[str, str]:
    """Name of a tensor in LyCORIS's format, without that of its layer -> the name of the kind."""
    names = {tensor: facts.name for facts in ADAPTERS.values() for tensor in facts.tensors}
    return {**names, **dict.fromkeys(NORM_PARTS, NORM)}


def layers_in(module: Model, adapter: str) -> Iterator[tuple[str, LycorisLayer]]:
    """(path, what it gives a file) of each layer with adapters of these kinds."""
    from peft.tuners.lycoris_utils import LycorisLayer as AdaptedLayer

    kinds = [lycoris_kind(name) for name in dict.fromkeys(kinds_by_tensor().values())]
    by_parameter = {kind.parameter or kind.tensors[0]: kind for kind in kinds}
    for path, layer in module.named_modules():
        if isinstance(layer, AdaptedLayer):
            yield path, by_parameter[layer.adapter_layer_names[0]].layer_of(layer, adapter)


def most_common_rank(layers: Mapping[str, LycorisLayer]) -> int:
    return Counter(layer.rank or 1 for layer in layers.values()).most_common(1)[0][0]


def fill(module: Model, layers: Mapping[str, LycorisLayer], adapter: str, dtype: torch.dtype | None) -> None:
    """Gives layers that have an adapter the parts, rank and scale of those of a file, whatever shapes they had."""
    import torch
    from torch import nn

    for path, layer in layers.items():
        adapted: Any = module.get_submodule(path)
        for part in lycoris_kind(layer.kind).tensors:
            own = getattr(adapted, part)
            if adapter in own:
                del own[adapter]  # of the shape that PEFT would have chosen
            if part in layer.parts:
                values = layer.parts[part].to(adapted.get_base_layer().weight.device, dtype)
                own[adapter] = nn.Parameter(values.clone(memory_format=torch.contiguous_format))
        rank = layer.rank or 1
        adapted.r[adapter], adapted.alpha[adapter] = rank, layer.scale * rank
        adapted.scaling[adapter] = layer.scale


def replace_layer(module: Model, path: str, kind: type[nn.Module]) -> Any:
    """Puts a layer of a class of our own, with the one at this path inside, in its place, unless it is there already.

    Returns it. kind: a subclass of PEFT's LycorisLayer.
    """
    parent, _, name = path.rpartition(".")
    holder = module.get_submodule(parent) if parent else module
    layer = getattr(holder, name)
    if not isinstance(layer, kind):
        layer = kind(layer)
        setattr(holder, name, layer)
    return layer


def declare_adapter(module: Any, adapter: str) -> None:
    """Tells a model of diffusers or transformers that it has this adapter, as their `add_adapter` does."""
    from modules.weights.peft_layers import LycorisConfig

    module.peft_config = {**getattr(module, "peft_config", {}), adapter: LycorisConfig()}
    module._hf_peft_config_loaded = True


def adaptable_shape(module: nn.Module) -> torch.Size | None:
    """[out, in] or [out, in, kh, kw], of a layer's weight before quantization, whatever adapters it has.

    None for a layer that can't have an adapter.
    """
    import torch
    from peft.tuners.tuners_utils import BaseTunerLayer
    from torch import nn

    module = module.get_base_layer() if isinstance(module, BaseTunerLayer) else module
    if isinstance(module, nn.Linear):
        return torch.Size((module.out_features, module.in_features))
    return module.weight.shape if isinstance(module, nn.Conv2d) else None
