"""Names of a U-Net's layers in single-file checkpoints, which number all blocks consecutively.

The layout is that of the first release of latent diffusion ("LDM"); names follow from a config by counting, and nothing
here is fixed to the sizes of the released models.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modules.weights.errors import WeightsError

RESNET = {
    "norm1": "in_layers.0",
    "conv1": "in_layers.2",
    "time_emb_proj": "emb_layers.1",
    "norm2": "out_layers.0",
    "conv2": "out_layers.3",
    "conv_shortcut": "skip_connection",
}


def renamed(name: str, modules: Mapping[str, str]) -> str:
    """Replaces the longest known module path in a tensor's `name` by that of the single file.

    Raises WeightsError where `modules` knows none.
    """
    module, _, rest = name.rpartition(".")
    while module and module not in modules:
        module, _, last = module.rpartition(".")
        rest = f"{last}.{rest}"
    if not module:
        raise nameless(name)
    return f"{modules[module]}.{rest}"


def unet_modules(config: Mapping[str, Any]) -> dict[str, str]:
    """Module path in diffusers -> in the single file, for all layers of a U-Net.

    config: of a `UNet2DConditionModel`, at least its block types, numbers of channels and of layers.
    """
    modules = {
        "time_embedding.linear_1": "time_embed.0",
        "time_embedding.linear_2": "time_embed.2",
        "add_embedding.linear_1": "label_emb.0.0",  # SDXL: sizes and pooled text
        "add_embedding.linear_2": "label_emb.0.2",
        "conv_in": "input_blocks.0.0",
        **_resnet("mid_block.resnets.0", "middle_block.0"),
        "mid_block.attentions.0": "middle_block.1",
        **_resnet("mid_block.resnets.1", "middle_block.2"),
        "conv_norm_out": "out.0",
        "conv_out": "out.2",
    }
    num_levels = len(config["block_out_channels"])
    layers = config["layers_per_block"]
    layers = [layers] * num_levels if isinstance(layers, int) else list(layers)
    number = 1  # 0 is conv_in
    for level, kind in enumerate(config["down_block_types"]):
        for layer in range(layers[level]):
            modules |= _layer(f"down_blocks.{level}", layer, kind, f"input_blocks.{number}")
            number += 1
        if level < num_levels - 1:
            modules[f"down_blocks.{level}.downsamplers.0.conv"] = f"input_blocks.{number}.0.op"
            number += 1
    number = 0
    for level, kind in enumerate(config["up_block_types"]):
        for layer in range(layers[num_levels - 1 - level] + 1):
            modules |= _layer(f"up_blocks.{level}", layer, kind, f"output_blocks.{number}")
            number += 1
        if level < num_levels - 1:
            # It is in the last block of the level, after the resnet and the attention, if there is one.
            position = 2 if _attends(kind) else 1
            modules[f"up_blocks.{level}.upsamplers.0.conv"] = f"output_blocks.{number - 1}.{position}.conv"
    return modules


def nameless(layer: str) -> WeightsError:
    return WeightsError(
        f"The layer '{layer}' has no name in a single-file checkpoint; save in the diffusers format instead."
    )


def _layer(block: str, layer: int, kind: str, target: str) -> dict[str, str]:
    modules = _resnet(f"{block}.resnets.{layer}", f"{target}.0")
    if _attends(kind):
        modules[f"{block}.attentions.{layer}"] = f"{target}.1"  # inside, both layouts use the same names
    return modules


def _resnet(source: str, target: str) -> dict[str, str]:
    return {f"{source}.{inner}": f"{target}.{other}" for inner, other in RESNET.items()}


def _attends(block_type: str) -> bool:
    return "CrossAttn" in block_type
