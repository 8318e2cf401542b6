"""Counts the weights and activations of a family's published model, for resources/families.json.

Activations that a step saves for the backward pass are counted with autograd hooks, once per tensor, as with mixed
precision on a GPU: matrix products and convolutions in bfloat16, norms in float32, attention without its matrix.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, TypeVar
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from modules.config.LoraConfig import TARGETS
from modules.families.Family import Family
from modules.layers.ActivationOffload import LEAST_BYTES
from modules.weights.blocks import repeated_blocks
from modules.weights.libraries import import_diffusers
from scripts.published_models import (
    add_adapters,
    build,
    build_denoiser,
    build_vae,
    decoder_call,
    denoiser_call,
    num_quantizable,
    num_weights,
    published_model,
    read_text,
    vae_call,
)

RANK = 16  # of the adapters that are counted with the denoiser
VAE_SIDE = 256  # of the pictures that autoencoders are counted on

_Storages = dict[int, torch.UntypedStorage]  # by the address of what PyTorch keeps of them
_Model = TypeVar("_Model", bound=nn.Module)
_MaybeTensor = TypeVar("_MaybeTensor", Tensor, Tensor | None)


def count(family: Family) -> dict[str, Any]:
    """Weights and activations of a family's published model; modules/machine/architectures.py says what they are."""
    published = published_model(family)
    encoders = [(build(part, torch.bfloat16), tokens) for part, tokens in published.text_encoders]
    connectors = published.connectors
    adapted = list(zip(family.text.encoders, encoders, strict=True))
    return {
        "denoiser": len(family.denoisers) * num_weights(build_denoiser(family)),
        "quantizable_denoiser": len(family.denoisers)
        * num_quantizable(family, family.denoisers[0], build_denoiser(family)),
        "text_encoders": [num_weights(encoder) for encoder, _ in encoders],
        "quantizable_text": [num_quantizable(family, name, encoder) for name, (encoder, _) in adapted],
        "vae": num_weights(build_vae(family)),
        "adapter": {
            targets: len(family.denoisers)
            * add_adapters(family, family.denoisers[0], build_denoiser(family), targets, rank=1)
            for targets in TARGETS
        },
        "text_bytes": [_kept_of_text(encoder, tokens) for encoder, tokens in encoders],
        "text_adapters": [add_adapters(family, name, encoder, "attention", rank=1) for name, (encoder, _) in adapted],
        "lora": _both(lambda checkpointing: activations(family, "lora", checkpointing)),
        "full": _both(lambda checkpointing: activations(family, "full", checkpointing)),
        "vae_activations": _both(lambda checkpointing: vae_activations(family, checkpointing))
        if family.can_train_vae
        else {"whole": 0, "part": 0},
        "held": count_held_in_sampling(family),
        "blocks": count_blocks(family),
        "matrix": max(param.numel() for param in build_denoiser(family).parameters()),
        "block_inputs": count_block_inputs(family),
        **({"clip": count_held_by_clips(family)} if family.frame_step else {}),
        **({"connectors": sum(num_weights(build(part, torch.bfloat16)) for part in connectors)} if connectors else {}),
        **({"guidance_denoisers": len(family.guidance_denoisers)} if family.guidance_denoisers else {}),
    }


def count_blocks(family: Family) -> dict[str, int]:
    """The blocks of a denoiser that can be swapped, their weights in all denoisers, and those of the largest one."""
    weights = [num_weights(block) for block in repeated_blocks(family, build_denoiser(family)).values()]
    return {"count": len(weights), "weights": len(family.denoisers) * sum(weights), "largest": max(weights, default=0)}


def count_held_in_sampling(family: Family) -> dict[str, int]:
    """Bytes a pixel at the most while samples are made: by the denoiser in mixed precision, by the VAE in float32."""
    side = published_model(family).side
    with mixed_precision():
        denoiser = count_held(build_denoiser(family).eval(), denoiser_call(family, side)) / side**2
    vae = count_held(build_vae(family).eval(), decoder_call(family, VAE_SIDE)) / VAE_SIDE**2
    return {"denoiser": round(denoiser), "vae": round(vae)}


def count_held_by_clips(family: Family) -> dict[str, int]:
    """Bytes a pixel of a frame at the most while the VAE encodes or decodes a clip, in float32.

    "encoder" and "decoder" are for any clip, "encoder_frame" and "decoder_frame" come on top for each of its frames. A
    VAE that encodes a clip in pieces never holds all of its frames.
    """
    lengths = [count * family.frame_step + family.frame_rest for count in (4, 8)]
    vae = build_vae(family).eval()

    def encode(frames: int) -> float:
        pixels = torch.empty(1, 3, frames, VAE_SIDE, VAE_SIDE, device="meta")
        return count_held(vae, lambda _: family.codec.encode(vae, pixels).mode()) / VAE_SIDE**2

    def decode(frames: int) -> float:
        latents = torch.empty(1, *family.codec.shape(vae, VAE_SIDE, VAE_SIDE, frames), device="meta")
        return count_held(vae, lambda _: family.codec.decode(vae, latents)) / VAE_SIDE**2

    counted: dict[str, int] = {}
    for name, count in (("encoder", encode), ("decoder", decode)):
        short, long = (count(frames) for frames in lengths)
        each = (long - short) / (lengths[1] - lengths[0])
        if name == "encoder" and family.codec.encode_pieces is not None:
            counted |= {name: round(short), f"{name}_frame": 0}
        else:
            counted |= {name: round(short - lengths[0] * each), f"{name}_frame": round(each)}
    return counted


def activations(family: Family, method: str, checkpointing: bool = False) -> float:
    """Bytes that a step keeps for each pixel of an image, while an adapter or all of the denoiser trains."""
    denoiser, side = build_denoiser(family), published_model(family).side
    if method == "lora":
        denoiser.requires_grad_(False)
        add_adapters(family, family.denoisers[0], denoiser, "attention", RANK)
    with mixed_precision():
        return count_kept(denoiser, denoiser_call(family, side), checkpointing) / side**2


def vae_activations(family: Family, checkpointing: bool = False) -> float:
    """Likewise of the autoencoder, in float32."""
    return count_kept(build_vae(family), vae_call(family, VAE_SIDE), checkpointing) / VAE_SIDE**2


def _kept_of_text(encoder: nn.Module, num_tokens: int) -> int:
    tokens = torch.zeros(1, num_tokens, dtype=torch.long, device="meta")
    with mixed_precision():
        return count_kept(encoder.eval(), lambda model: read_text(model, tokens))


def _both(counted: Callable[[bool], float]) -> dict[str, int]:
    return {"whole": round(counted(False)), "part": round(counted(True))}


def count_kept(module: _Model, call: Callable[[_Model], object], checkpointing: bool = False) -> int:
    """Bytes of what a forward pass keeps for the backward pass, weights apart; with checkpointing the largest block's
    tensors, which are there while it is computed again, and the inputs of all."""
    outside, inputs, largest = _kept(module, call, checkpointing)
    return _bytes(outside | inputs) + largest


def count_block_inputs(family: Family) -> int:
    """Bytes for each pixel that checkpointing keeps of an adapted denoiser for the sake of its blocks alone, and that
    are worth offloading."""
    denoiser, side = build_denoiser(family).requires_grad_(False), published_model(family).side
    add_adapters(family, family.denoisers[0], denoiser, "attention", RANK)
    with mixed_precision():
        outside, inputs, _ = _kept(denoiser, denoiser_call(family, side), checkpointing=True)
    sizes = (value.nbytes() for key, value in inputs.items() if key not in outside)
    return round(sum(size for size in sizes if size >= LEAST_BYTES) / side**2)


def _kept(module: _Model, call: Callable[[_Model], object], checkpointing: bool) -> tuple[_Storages, _Storages, int]:
    """What a forward pass keeps outside of checkpointed blocks, their inputs, and the bytes of the largest block."""
    import_diffusers()
    from diffusers.models.modeling_utils import ModelMixin

    weights = {parameter.untyped_storage()._cdata for parameter in module.parameters()}
    outside: _Storages = {}
    inputs: _Storages = {}
    largest = 0

    def keep(tensor: Tensor, kept: _Storages) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:
            kept[storage._cdata] = storage  # held, so that no other takes its place
        return tensor

    @contextmanager
    def counted(kept: _Storages) -> Iterator[None]:
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: keep(tensor, kept), lambda tensor: tensor):
            yield

    def checkpoint(block: Callable[..., Any], *args: Any, **options: Any) -> Any:
        nonlocal largest
        for tensor in args:
            if isinstance(tensor, Tensor):
                keep(tensor, inputs)
        inside: _Storages = {}
        with counted(inside):
            result = block(*args, **options)
        largest = max(largest, _bytes(inside))
        return result

    if checkpointing and isinstance(module, ModelMixin) and module._supports_gradient_checkpointing:
        module.enable_gradient_checkpointing(gradient_checkpointing_func=checkpoint)
    elif checkpointing:  # as the family does it
        for block in (block for part in module.children() if isinstance(part, nn.ModuleList) for block in part):
            block.forward = partial(checkpoint, block.forward)
    with counted(outside):
        call(module)
    return outside, inputs, largest


def count_held(module: _Model, call: Callable[[_Model], object]) -> int:
    """The most bytes of tensors that are there at once while `call` takes something through `module`, weights apart and
    without gradients."""
    weights = {parameter.untyped_storage()._cdata for parameter in module.parameters()}
    users: Counter[int] = Counter()  # tensors of each storage
    held = most = 0

    def forget(storage: int, num_bytes: int) -> None:
        nonlocal held
        users[storage] -= 1
        if not users[storage]:
            held -= num_bytes

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal held, most
            result = function(*args, **(kwargs or {}))
            for tensor in tree_leaves(result):
                storage = tensor.untyped_storage() if isinstance(tensor, Tensor) else None
                if storage is None or storage._cdata in weights:
                    continue
                held += storage.nbytes() if not users[storage._cdata] else 0
                users[storage._cdata] += 1
                weakref.finalize(tensor, forget, storage._cdata, storage.nbytes())
            most = max(most, held)
            return result

    with torch.no_grad(), Watch():
        call(module)
    return most


def _bytes(kept: _Storages) -> int:
    return sum(storage.nbytes() for storage in kept.values())


# --- as on a GPU in mixed precision -----------------------------------------------------------------------------------


class _Attention(torch.autograd.Function):
    """Keeps what a fused attention keeps."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output = query.new_empty(*query.shape[:-1], value.shape[-1])
        ctx.save_for_backward(query, key, value, output)
        return output


@contextmanager
def mixed_precision() -> Iterator[None]:
    """Inside, torch's functions have autocast's precisions, which the meta device has none of."""
    import_diffusers()
    from diffusers import HiDreamImageTransformer2DModel
    from diffusers.models.transformers.transformer_hidream_image import MOEFeedForwardSwiGLU

    linear, grouped_mm, group_norm, layer_norm = F.linear, F.grouped_mm, F.group_norm, F.layer_norm
    scatter_add, matrix_product = Tensor.scatter_add, Tensor.__matmul__

    def low(tensor: _MaybeTensor) -> _MaybeTensor:
        return None if tensor is None else tensor.to(torch.bfloat16)

    def full(tensor: _MaybeTensor) -> _MaybeTensor:
        return None if tensor is None else tensor.float()

    def conv(self: nn.Conv2d | nn.Conv3d, values: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        convolve = F.conv3d if isinstance(self, nn.Conv3d) else F.conv2d
        values, weight, bias = low(values), low(weight), low(bias)
        return convolve(values, weight, bias, self.stride, self.padding, self.dilation, self.groups)

    def norm_groups(
        values: Tensor, groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
    ) -> Tensor:
        return group_norm(full(values), groups, full(weight), full(bias), eps)

    def norm_layer(
        values: Tensor, shape: list[int], weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
    ) -> Tensor:
        return layer_norm(full(values), shape, full(weight), full(bias), eps)

    def multiply(values: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return linear(low(values), low(weight), low(bias))

    def multiply_matrices(values: Tensor, others: Tensor) -> Tensor:
        return matrix_product(low(values), low(others))

    def multiply_groups(values: Tensor, weight: Tensor, offs: Tensor) -> Tensor:
        return grouped_mm(low(values), low(weight), offs=offs)

    def scatter(values: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
        return scatter_add(values.to(src.dtype), dim, index, src)

    def attend(query: Tensor, key: Tensor, value: Tensor, *_: Any, **options: Any) -> Tensor:
        return _Attention.apply(low(query), low(key), low(value))

    def route(self: MOEFeedForwardSwiGLU, values: Tensor) -> Tensor:
        """The experts get equal numbers of tokens; which ones depends on values, which there are none of."""
        tokens, count = values.flatten(0, -2), self.num_activated_experts
        share = len(tokens) * count // len(self.experts)
        routed = torch.cat([expert(tokens[:share]) for expert in self.experts])
        weights = tokens.new_empty(len(tokens), count, 1)
        mixed = (routed.view(len(tokens), count, -1) * weights).sum(dim=1)
        return mixed.view_as(values) + self.shared_experts(values)

    with (
        mock.patch.object(F, "linear", multiply),
        mock.patch.object(F, "grouped_mm", multiply_groups),
        mock.patch.object(Tensor, "__matmul__", multiply_matrices),
        mock.patch.object(Tensor, "scatter_add", scatter),
        mock.patch.object(nn.Conv2d, "_conv_forward", conv),
        mock.patch.object(nn.Conv3d, "_conv_forward", conv),
        mock.patch.object(F, "group_norm", norm_groups),
        mock.patch.object(F, "layer_norm", norm_layer),
        mock.patch.object(F, "scaled_dot_product_attention", attend),
        mock.patch.object(MOEFeedForwardSwiGLU, "forward", route),
        mock.patch.object(HiDreamImageTransformer2DModel, "unpatchify", lambda self, tokens, *sizes: tokens),
        mock.patch.object(torch, "autocast", return_value=nullcontext()),  # refuses the meta device
    ):
        yield
