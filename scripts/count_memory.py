"""Counts what modules/machine/memory_estimate.py knows of the families' real architectures, and prints it.

    python scripts/count_memory.py

The models are built without weights (torch's meta device), so that neither a download nor a GPU is needed. What a
step keeps for its backward pass is counted by autograd's own hooks, once for each tensor, as mixed precision on a GPU
would keep it: matrix products and convolutions in bfloat16, norms in float32, attention without its matrix.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

PIXELS = {"sd15": 512, "sdxl": 1024, "sd3": 1024, "vae": 256}
TARGETS = ("attention", "attention_mlp", "linear", "linear_conv")
RANK = 16  # of the adapters that are counted with the denoiser
FIELDS = {  # of the denoisers, as in their config.json, where they differ from diffusers' defaults
    "sd15": {"cross_attention_dim": 768},
    "sdxl": {
        "block_out_channels": (320, 640, 1280),
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        "transformer_layers_per_block": [1, 2, 10],
        "attention_head_dim": [5, 10, 20],
        "cross_attention_dim": 2048,
        "addition_embed_type": "text_time",
        "addition_time_embed_dim": 256,
        "projection_class_embeddings_input_dim": 2816,
        "use_linear_projection": True,
    },
    "sd3": {  # 3.5 medium; 3 medium has 2.03 billion weights
        "sample_size": 128,
        "num_layers": 24,
        "num_attention_heads": 24,
        "attention_head_dim": 64,
        "joint_attention_dim": 4096,
        "caption_projection_dim": 1536,
        "pooled_projection_dim": 2048,
        "out_channels": 16,
        "pos_embed_max_size": 384,
        "qk_norm": "rms_norm",
        "dual_attention_layers": tuple(range(13)),
    },
}
# transformers' names
CLIP_L = {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12, "num_hidden_layers": 12}
CLIP_G = {"hidden_size": 1280, "intermediate_size": 5120, "num_attention_heads": 20, "num_hidden_layers": 32}
T5_XXL = {"d_model": 4096, "d_ff": 10240, "num_layers": 24, "num_heads": 64, "feed_forward_proj": "gated-gelu"}


def main() -> None:
    import diffusers

    diffusers.logging.set_verbosity_error()
    for name in FIELDS:
        denoiser = build_denoiser(name)
        print(f"{name}: {num_weights(denoiser):,} weights")
        for targets in TARGETS:
            print(f"  adapter of rank 1, {targets}: {add_adapters(build_denoiser(name), name, targets, rank=1):,}")
        for method in ("lora", "full"):
            print(f"  {method}, activations: {activations(name, method):,.0f} bytes a pixel")
            print(f"  {method}, with checkpointing: {activations(name, method, checkpointing=True):,.0f}")
        with mixed_precision():
            held = count_held(build_denoiser(name).eval(), denoiser_call(name, PIXELS[name])) / PIXELS[name] ** 2
        print(f"  held while it samples: {held:,.0f} bytes a pixel")
    vae = build_vae()
    print(f"vae: {num_weights(vae):,} weights")
    for checkpointing in (False, True):
        counted = count_kept(build_vae(), vae_call(PIXELS["vae"]), checkpointing) / PIXELS["vae"] ** 2
        print(f"  {'with checkpointing' if checkpointing else 'activations in float32'}: {counted:,.0f} bytes a pixel")
    held = count_held(build_vae().eval(), decoder_call(PIXELS["vae"])) / PIXELS["vae"] ** 2
    print(f"  held while it decodes: {held:,.0f} bytes a pixel in float32")
    for name, encoder, length in text_encoders():
        tokens = torch.zeros(1, length, dtype=torch.long, device="meta")
        with mixed_precision():
            kept = count_kept(encoder.eval(), lambda model, tokens=tokens: model(tokens))
        print(f"{name}: {num_weights(encoder):,} weights, {kept:,} bytes of activations a caption")


def num_weights(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def activations(name: str, method: str, checkpointing: bool = False) -> float:
    """Bytes that a step keeps for each pixel of a picture, while an adapter or all of the denoiser trains."""
    denoiser = build_denoiser(name)
    if method == "lora":
        denoiser.requires_grad_(False)
        add_adapters(denoiser, name, "attention", RANK)
    with mixed_precision():
        return count_kept(denoiser, denoiser_call(name, PIXELS[name]), checkpointing) / PIXELS[name] ** 2


def count_kept(module: nn.Module, call: Callable[[nn.Module], object], checkpointing: bool = False) -> int:
    """Bytes of what a forward pass keeps for the backward pass, weights apart; with checkpointing the largest block's
    tensors, which are there while it is computed again, and the inputs of all."""
    weights = {parameter.untyped_storage()._cdata for parameter in module.parameters()}
    outside: dict[int, object] = {}
    largest = 0

    def keep(tensor: Tensor, kept: dict[int, object]) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:
            kept[storage._cdata] = storage  # held, so that no other takes its place
        return tensor

    @contextmanager
    def counted(kept: dict[int, object]):
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: keep(tensor, kept), lambda tensor: tensor):
            yield

    def checkpoint(block: Callable, *args, **options):
        nonlocal largest
        for tensor in args:
            if isinstance(tensor, Tensor):
                keep(tensor, outside)
        inside: dict[int, object] = {}
        with counted(inside):
            result = block(*args, **options)
        largest = max(largest, _bytes(inside))
        return result

    if checkpointing:
        module.enable_gradient_checkpointing(gradient_checkpointing_func=checkpoint)
    with counted(outside):
        call(module)
    return _bytes(outside) + largest


def count_held(module: nn.Module, call: Callable[[nn.Module], object]) -> int:
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
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
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


def _bytes(kept: dict[int, object]) -> int:
    return sum(storage.nbytes() for storage in kept.values())


# --- models -----------------------------------------------------------------------------------------------------------


def build_denoiser(name: str) -> nn.Module:
    from diffusers import SD3Transformer2DModel, UNet2DConditionModel

    model_class = SD3Transformer2DModel if name == "sd3" else UNet2DConditionModel
    return _without_weights(model_class, torch.bfloat16, **FIELDS[name])


def build_vae() -> nn.Module:
    from diffusers import AutoencoderKL

    blocks = {"down_block_types": ("DownEncoderBlock2D",) * 4, "up_block_types": ("UpDecoderBlock2D",) * 4}
    return _without_weights(
        AutoencoderKL, torch.float32, **blocks, block_out_channels=(128, 256, 512, 512), layers_per_block=2
    )


def text_encoders() -> list[tuple[str, nn.Module, int]]:
    """(name, model, tokens of a caption)."""
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection, T5Config, T5EncoderModel

    second = CLIPTextConfig(**CLIP_G, hidden_act="gelu", projection_dim=1280)
    return [
        ("CLIP-L", _without_weights(CLIPTextModel, torch.bfloat16, CLIPTextConfig(**CLIP_L)), 77),
        ("CLIP-G", _without_weights(CLIPTextModelWithProjection, torch.bfloat16, second), 77),
        ("T5-XXL", _without_weights(T5EncoderModel, torch.bfloat16, T5Config(**T5_XXL)), 256),
    ]


def _without_weights(model_class: type, dtype: torch.dtype, *args, **options) -> nn.Module:
    with torch.device("meta"):
        return model_class(*args, **options).to(dtype).train()


def denoiser_call(name: str, size: int) -> Callable[[nn.Module], object]:
    """Takes one picture of `size` x `size` pixels through a denoiser."""
    side = size // 8
    if name == "sd3":
        inputs = {"hidden_states": (1, 16, side, side), "timestep": (1,)}
        inputs |= {"encoder_hidden_states": (1, 333, 4096), "pooled_projections": (1, 2048)}
    else:
        width = FIELDS[name]["cross_attention_dim"]
        inputs = {"sample": (1, 4, side, side), "timestep": (1,), "encoder_hidden_states": (1, 77, width)}
    tensors = {key: torch.empty(shape, device="meta") for key, shape in inputs.items()}
    if name == "sdxl":
        sizes = {"text_embeds": torch.empty(1, 1280, device="meta"), "time_ids": torch.empty(1, 6, device="meta")}
        tensors["added_cond_kwargs"] = sizes
    return lambda model: model(**tensors)


def vae_call(size: int) -> Callable[[nn.Module], object]:
    pixels = torch.empty(1, 3, size, size, device="meta")

    def call(vae: nn.Module) -> Tensor:
        posterior = vae.encode(pixels).latent_dist
        return vae.decode(posterior.mean + posterior.std * torch.empty_like(posterior.mean)).sample

    return call


def decoder_call(size: int) -> Callable[[nn.Module], object]:
    latents = torch.empty(1, 4, size // 8, size // 8, device="meta")
    return lambda vae: vae.decode(latents).sample


class _Adapter(nn.Module):
    """A layer with a LoRA beside it."""

    def __init__(self, base: nn.Linear | nn.Conv2d, rank: int):
        super().__init__()
        self.base = base
        if isinstance(base, nn.Linear):
            self.down = nn.Linear(base.in_features, rank, bias=False, device="meta")
            self.up = nn.Linear(rank, base.out_features, bias=False, device="meta")
        else:
            sizes = {"kernel_size": base.kernel_size, "stride": base.stride, "padding": base.padding}
            self.down = nn.Conv2d(base.in_channels, rank, bias=False, device="meta", **sizes)
            self.up = nn.Conv2d(rank, base.out_channels, 1, bias=False, device="meta")

    def forward(self, values: Tensor) -> Tensor:
        return self.base(values) + self.up(self.down(values.float()))


def add_adapters(denoiser: nn.Module, name: str, targets: str, rank: int) -> int:
    """Puts adapters on the layers that the family's tables name; how many weights they have."""
    from modules.families.registry import FAMILIES
    from modules.methods.layers import preset_layers

    family = FAMILIES[name]
    added = 0
    for path in preset_layers(family, family.denoisers[0], denoiser, targets):
        parent, _, last = path.rpartition(".")
        adapter = _Adapter(denoiser.get_submodule(path), rank)
        added += num_weights(adapter.down) + num_weights(adapter.up)
        setattr(denoiser.get_submodule(parent), last, adapter)
    return added


# --- as on a GPU in mixed precision -----------------------------------------------------------------------------------


class _Attention(torch.autograd.Function):
    """Keeps what a fused attention keeps."""

    @staticmethod
    def forward(ctx, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output = query.new_empty(*query.shape[:-1], value.shape[-1])
        ctx.save_for_backward(query, key, value, output)
        return output


@contextmanager
def mixed_precision():
    """Inside, torch's functions have autocast's precisions, which the meta device has none of."""
    low, full = torch.bfloat16, torch.float32
    linear, group_norm, layer_norm = F.linear, F.group_norm, F.layer_norm

    def cast(dtype: torch.dtype, *tensors: Tensor | None) -> list[Tensor | None]:
        return [None if tensor is None else tensor.to(dtype) for tensor in tensors]

    def conv(self: nn.Conv2d, values: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.conv2d(*cast(low, values, weight, bias), self.stride, self.padding, self.dilation, self.groups)

    def norm_groups(values, groups, weight=None, bias=None, eps=1e-5):
        values, weight, bias = cast(full, values, weight, bias)
        return group_norm(values, groups, weight, bias, eps)

    def norm_layer(values, shape, weight=None, bias=None, eps=1e-5):
        values, weight, bias = cast(full, values, weight, bias)
        return layer_norm(values, shape, weight, bias, eps)

    def multiply(values, weight, bias=None):
        return linear(*cast(low, values, weight, bias))

    def attend(query, key, value, *args, **options):
        return _Attention.apply(*cast(low, query, key, value))

    with (
        mock.patch.object(F, "linear", multiply),
        mock.patch.object(nn.Conv2d, "_conv_forward", conv),
        mock.patch.object(F, "group_norm", norm_groups),
        mock.patch.object(F, "layer_norm", norm_layer),
        mock.patch.object(F, "scaled_dot_product_attention", attend),
    ):
        yield


if __name__ == "__main__":
    main()
