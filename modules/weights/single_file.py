"""Stable Diffusion 1.x / 2.x as one file, with the names of tensors that ComfyUI, A1111 and diffusers read.

The layout is that of the first release of latent diffusion ("LDM"). Its U-Net numbers all blocks through, so the
names follow from a config by counting; nothing here is fixed to the sizes of the released models. Reading such a file
is diffusers' own `from_single_file`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modules.weights.errors import WeightsError
from modules.weights.safe import save_tensors

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

UNET_PREFIX = "model.diffusion_model."
VAE_PREFIX = "first_stage_model."
CLIP_PREFIX = "cond_stage_model.transformer."
OPEN_CLIP_PREFIX = "cond_stage_model.model."

UNET_RESNET = {
    "norm1": "in_layers.0",
    "conv1": "in_layers.2",
    "time_emb_proj": "emb_layers.1",
    "norm2": "out_layers.0",
    "conv2": "out_layers.3",
    "conv_shortcut": "skip_connection",
}
VAE_ATTENTION = {"group_norm": "norm", "to_q": "q", "to_k": "k", "to_v": "v", "to_out.0": "proj_out"}
OPEN_CLIP_LAYER = {
    "layer_norm1": "ln_1",
    "layer_norm2": "ln_2",
    "self_attn.out_proj": "attn.out_proj",
    "mlp.fc1": "mlp.c_fc",
    "mlp.fc2": "mlp.c_proj",
}
OPEN_CLIP_TOP = {
    "embeddings.token_embedding.weight": "token_embedding.weight",
    "embeddings.position_embedding.weight": "positional_embedding",
    "final_layer_norm.weight": "ln_final.weight",
    "final_layer_norm.bias": "ln_final.bias",
}


def save_single_file(
    path: str | Path,
    unet: nn.Module,
    vae: nn.Module,
    text_encoder: nn.Module,
    dtype: torch.dtype | None = None,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write a U-Net, a VAE and a CLIP text encoder to one safetensors file, all or nothing.

    dtype: of floating-point tensors in the file, None to keep them as they are.
    Raises WeightsError if a part has layers that the layout has no names for; OSError if the disk refuses.
    """
    tensors = {
        **unet_to_single_file(unet.state_dict(), unet.config),
        **vae_to_single_file(vae.state_dict(), vae.config),
        **text_encoder_to_single_file(text_encoder.state_dict(), text_encoder.config),
    }
    if dtype is not None:
        tensors = {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
    save_tensors(path, tensors, metadata)


def unet_to_single_file(state_dict: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of a `UNet2DConditionModel` under their names in a single file."""
    modules = _unet_modules(config)
    return {UNET_PREFIX + _rename(name, modules): tensor for name, tensor in state_dict.items()}


def vae_to_single_file(state_dict: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of an `AutoencoderKL` under their names, and in their shapes, in a single file."""
    modules = _vae_modules(config)
    converted = {}
    for name, tensor in state_dict.items():
        if ".attentions." in name and tensor.dim() == 2:
            tensor = tensor[:, :, None, None]  # the layout has 1 x 1 convolutions where diffusers has linear layers
        converted[VAE_PREFIX + _rename(name, modules)] = tensor
    return converted


def text_encoder_to_single_file(state_dict: Mapping[str, Tensor], config: Any) -> dict[str, Tensor]:
    """The tensors of a `CLIPTextModel` under their names in a single file.

    1.x holds OpenAI's CLIP as transformers names it; 2.x holds an OpenCLIP in OpenCLIP's own layout. The two are told
    apart by the activation: OpenAI's models have `quick_gelu`, OpenCLIP's `gelu`.
    """
    # transformers 5 has no `text_model.` level in memory; in the file it is always there.
    tensors = {name.removeprefix("text_model."): tensor for name, tensor in state_dict.items()}
    if config.hidden_act == "quick_gelu":
        return {f"{CLIP_PREFIX}text_model.{name}": tensor for name, tensor in tensors.items()}
    return {OPEN_CLIP_PREFIX + name: tensor for name, tensor in _open_clip(tensors).items()}


def _rename(name: str, modules: Mapping[str, str]) -> str:
    """`name` with the longest module path that `modules` knows replaced by the one of the single file."""
    module, _, rest = name.rpartition(".")
    while module and module not in modules:
        module, _, last = module.rpartition(".")
        rest = f"{last}.{rest}"
    if not module:
        raise _nameless(name)
    return f"{modules[module]}.{rest}"


def _unet_modules(config: Mapping[str, Any]) -> dict[str, str]:
    """Module path in diffusers -> in the single file, for all layers of a U-Net."""
    modules = {
        "time_embedding.linear_1": "time_embed.0",
        "time_embedding.linear_2": "time_embed.2",
        "conv_in": "input_blocks.0.0",
        **_unet_resnet("mid_block.resnets.0", "middle_block.0"),
        "mid_block.attentions.0": "middle_block.1",
        **_unet_resnet("mid_block.resnets.1", "middle_block.2"),
        "conv_norm_out": "out.0",
        "conv_out": "out.2",
    }
    num_levels = len(config["block_out_channels"])
    layers = config["layers_per_block"]
    layers = [layers] * num_levels if isinstance(layers, int) else list(layers)
    number = 1  # 0 is conv_in
    for level, kind in enumerate(config["down_block_types"]):
        for layer in range(layers[level]):
            modules |= _unet_layer(f"down_blocks.{level}", layer, kind, f"input_blocks.{number}")
            number += 1
        if level < num_levels - 1:
            modules[f"down_blocks.{level}.downsamplers.0.conv"] = f"input_blocks.{number}.0.op"
            number += 1
    number = 0
    for level, kind in enumerate(config["up_block_types"]):
        for layer in range(layers[num_levels - 1 - level] + 1):
            modules |= _unet_layer(f"up_blocks.{level}", layer, kind, f"output_blocks.{number}")
            number += 1
        if level < num_levels - 1:
            # It stands in the level's last block, behind the resnet and, where there is one, the attention.
            position = 2 if _attends(kind) else 1
            modules[f"up_blocks.{level}.upsamplers.0.conv"] = f"output_blocks.{number - 1}.{position}.conv"
    return modules


def _unet_layer(block: str, layer: int, kind: str, target: str) -> dict[str, str]:
    modules = _unet_resnet(f"{block}.resnets.{layer}", f"{target}.0")
    if _attends(kind):
        modules[f"{block}.attentions.{layer}"] = f"{target}.1"  # inside, both layouts use the same names
    return modules


def _unet_resnet(source: str, target: str) -> dict[str, str]:
    return {f"{source}.{inner}": f"{target}.{renamed}" for inner, renamed in UNET_RESNET.items()}


def _attends(block_type: str) -> bool:
    return "CrossAttn" in block_type


def _vae_modules(config: Mapping[str, Any]) -> dict[str, str]:
    """Module path in diffusers -> in the single file, for all layers of a VAE."""
    modules = {"quant_conv": "quant_conv", "post_quant_conv": "post_quant_conv"}
    for half in ("encoder", "decoder"):
        modules |= {
            f"{half}.conv_in": f"{half}.conv_in",
            f"{half}.conv_norm_out": f"{half}.norm_out",
            f"{half}.conv_out": f"{half}.conv_out",
            **_vae_resnet(f"{half}.mid_block.resnets.0", f"{half}.mid.block_1"),
            **_vae_resnet(f"{half}.mid_block.resnets.1", f"{half}.mid.block_2"),
        }
        for inner, renamed in VAE_ATTENTION.items():
            modules[f"{half}.mid_block.attentions.0.{inner}"] = f"{half}.mid.attn_1.{renamed}"
    num_levels, layers = len(config["block_out_channels"]), config["layers_per_block"]
    for level in range(num_levels):
        down, up = f"encoder.down.{level}", f"decoder.up.{num_levels - 1 - level}"  # "up" counts from the finest level
        for layer in range(layers):
            modules |= _vae_resnet(f"encoder.down_blocks.{level}.resnets.{layer}", f"{down}.block.{layer}")
        for layer in range(layers + 1):
            modules |= _vae_resnet(f"decoder.up_blocks.{level}.resnets.{layer}", f"{up}.block.{layer}")
        modules[f"encoder.down_blocks.{level}.downsamplers.0.conv"] = f"{down}.downsample.conv"
        modules[f"decoder.up_blocks.{level}.upsamplers.0.conv"] = f"{up}.upsample.conv"
    return modules


def _vae_resnet(source: str, target: str) -> dict[str, str]:
    return {source: target, f"{source}.conv_shortcut": f"{target}.nin_shortcut"}


def _open_clip(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """OpenCLIP's layout: query, key and value of a layer are one tensor, one below the other."""
    import torch

    converted = {}
    for name, tensor in tensors.items():
        if name in OPEN_CLIP_TOP:
            converted[OPEN_CLIP_TOP[name]] = tensor
            continue
        level, _, inner = name.removeprefix("encoder.layers.").partition(".")
        module, _, kind = inner.rpartition(".")
        block = f"transformer.resblocks.{level}"
        if module == "self_attn.q_proj":
            parts = [tensors[f"encoder.layers.{level}.self_attn.{part}_proj.{kind}"] for part in "qkv"]
            converted[f"{block}.attn.in_proj_{kind}"] = torch.cat(parts)
        elif module in OPEN_CLIP_LAYER:
            converted[f"{block}.{OPEN_CLIP_LAYER[module]}.{kind}"] = tensor
        elif module not in ("self_attn.k_proj", "self_attn.v_proj"):
            raise _nameless(name)
    return converted


def _nameless(layer: str) -> WeightsError:
    return WeightsError(
        f"The layer '{layer}' has no name in a single-file checkpoint; save a diffusers folder instead."
    )
