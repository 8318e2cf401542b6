"""The families' published models, built without weights on torch's meta device, and calls of them.

Neither a download nor a GPU is needed for them: scripts/model_counts.py counts their weights and activations, and
scripts/simulated_run.py runs them.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from modules.families.conditions import FirstFrame, Inpainting, References, SourceClip
from modules.families.Family import DenoiserCall, Family
from modules.families.inpainting import num_mask_channels, num_source_channels
from modules.families.PublishedModel import Component, PublishedModel
from modules.methods.layers import Preset, preset_layers
from modules.weights.libraries import import_diffusers
from modules.weights.quantization import quantizable_layers

if TYPE_CHECKING:
    from diffusers.models.modeling_utils import ModelMixin

    from modules.families.TextEncoding import Conditioning


def published_model(family: Family) -> PublishedModel:
    assert family.published is not None  # families of unknown size are neither counted nor simulated
    return family.published


def build(part: Component, dtype: torch.dtype) -> nn.Module:
    """A component on the meta device, in training mode."""
    import_diffusers()
    library, _, class_name = part.class_name.rpartition(".")
    module = import_module(library)
    component_class = getattr(module, class_name)
    with torch.device("meta"):
        if part.config_class:
            component = component_class(getattr(module, part.config_class)(**part.config))
        else:
            component = component_class(**part.config)
        return component.to(dtype).train()


def read_text(encoder: Callable[[Tensor], Any], ids: Tensor) -> Any:
    """The output of a text encoder for these tokens, [B, tokens], whose values can't be seen."""
    from unittest.mock import patch

    # transformers looks for several texts in a row, as some trainers pack them, by the values of positions
    with patch("transformers.masking_utils.find_packed_sequence_indices", lambda position_ids: None):
        return encoder(ids)


def build_denoiser(family: Family) -> ModelMixin:
    denoiser = cast("ModelMixin", build(published_model(family).denoiser, torch.bfloat16))
    family.adapt(denoiser)
    return denoiser


def build_vae(family: Family) -> ModelMixin:
    return cast("ModelMixin", build(published_model(family).vae, torch.float32))


def denoiser_call(family: Family, side: int, with_padding: bool = False) -> Callable[[ModelMixin], object]:
    """Takes one image of `side` x `side` pixels through a denoiser, or two of which one has a shorter text."""
    published, batch = published_model(family), 2 if with_padding else 1
    with torch.device("meta"):
        latents = torch.empty(batch, *family.codec.shape(build_vae(family), side, side, 1))
        outputs = {name: torch.empty(batch, *shape) for name, shape in published.text.items()}
        # masks with values, because some denoisers read the lengths of texts from them
        masks = {name: shape for name, shape in published.text.items() if "_mask" in name}
        if with_padding and family.text.mask and family.text.mask not in outputs:  # there only where texts are padded
            masks[family.text.mask] = outputs[next(filter(None, family.text.outputs))].shape[1:2]
        outputs |= {name: torch.ones(batch, *shape, dtype=torch.long, device="cpu") for name, shape in masks.items()}
        for name in masks:
            outputs[name][1:, -1:] = 0
        text: Conditioning = {**outputs}
        if family.text.collate == "list":
            text = {name: [*value[:1], *(each[:-1] for each in value[1:])] for name, value in outputs.items()}
        timestep, guidance = torch.empty(batch), torch.empty(batch)
        given: dict[str, Any] = {"sizes": torch.empty(batch, 6)}
    packed, shape = family.pack(latents), tuple(latents.shape)
    if family.fact(FirstFrame, "needed"):
        given["first_frame"] = latents[:, :, :1] if family.fact(FirstFrame, "encode") else latents
    if family.fact(References, "has_shape_of_image"):
        given["references"] = (latents,)
    if family.fact(SourceClip, "needed"):
        channels = num_source_channels(family.fact(SourceClip, "masked"), shape[1], side // shape[-1])
        given["source_clip"] = torch.empty(batch, channels, *shape[2:], device="meta")
    if published.image_features and family.fact(FirstFrame, "needed"):
        given["image_features"] = torch.empty(batch, *published.image_features, device="meta")
    if family.has(Inpainting):
        channels = num_mask_channels(family.fact(Inpainting, "resolution"), side // shape[-1]) + shape[1]
        given["inpainting"] = torch.empty(batch, channels, *shape[2:], device="meta")

    def call(model: ModelMixin) -> object:
        inputs = DenoiserCall(model, packed, timestep, text, shape, given, guidance)
        with _MasksFollow():
            return model(**family.inputs(inputs))

    return call


class _MasksFollow(TorchFunctionMode):
    """Moves masks to the meta device where they meet other tensors; indexing takes them as they are."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = [value for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
        if function is torch.all and given[0].is_meta:
            return torch.tensor(True)  # as for inputs that are zero because nothing is given
        if function is Tensor.repeat_interleave and args[0].is_meta and isinstance(args[1], Tensor):
            order = torch.arange(args[0].shape[kwargs["dim"]]).repeat_interleave(args[1])
            return args[0].index_select(kwargs["dim"], to_meta(order))
        if function not in (Tensor.__getitem__, Tensor.__setitem__) and any(value.is_meta for value in given):
            args, kwargs = tree_map(to_meta, (args, kwargs))
        return function(*args, **kwargs)


def to_meta(value: object) -> object:
    return value.to("meta") if isinstance(value, Tensor) else value


def vae_call(family: Family, side: int) -> Callable[[ModelMixin], object]:
    pixels = torch.empty(1, 3, side, side, device="meta")

    def call(vae: ModelMixin) -> Tensor:
        posterior = family.codec.encode(vae, pixels)
        return family.codec.decode(vae, posterior.mean + posterior.std * torch.empty_like(posterior.mean))

    return call


def decoder_call(family: Family, side: int) -> Callable[[ModelMixin], object]:
    latents = torch.empty(1, *family.codec.shape(build_vae(family), side, side, 1), device="meta")
    return lambda vae: family.codec.decode(vae, latents)


def num_weights(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def num_quantizable(family: Family, component: str, module: nn.Module) -> int:
    """The number of weights that a quantization of the component applies to."""
    layers = quantizable_layers(family, component, module)
    return sum(module.get_parameter(f"{name}.weight").numel() for name in layers)


class _Adapter(nn.Module):
    """A layer with a LoRA beside it."""

    def __init__(self, base: nn.Linear | nn.Conv2d, rank: int):
        super().__init__()
        self.base = base
        self.down: nn.Linear | nn.Conv2d
        self.up: nn.Linear | nn.Conv2d
        if isinstance(base, nn.Linear):
            self.down = nn.Linear(base.in_features, rank, bias=False, device="meta")
            self.up = nn.Linear(rank, base.out_features, bias=False, device="meta")
        else:
            sizes: dict[str, Any] = {"kernel_size": base.kernel_size, "stride": base.stride, "padding": base.padding}
            self.down = nn.Conv2d(base.in_channels, rank, bias=False, device="meta", **sizes)
            self.up = nn.Conv2d(rank, base.out_channels, 1, bias=False, device="meta")

    def forward(self, values: Tensor) -> Tensor:
        return self.base(values) + self.up(self.down(values.float()))


def add_adapters(family: Family, component: str, module: nn.Module, targets: Preset, rank: int) -> int:
    """Puts adapters on the layers that the family's tables name; how many weights they have."""
    added = 0
    for path in preset_layers(family, component, module, targets):
        parent, _, last = path.rpartition(".")
        layer: Any = module.get_submodule(path)  # a convolution in three dimensions, too, whose adapter counts alike
        adapter = _Adapter(layer, rank)
        added += num_weights(adapter.down) + num_weights(adapter.up)
        setattr(module.get_submodule(parent), last, adapter)
    return added
