"""Converts layer names between diffusers' and kohya's LoRA formats; ComfyUI and A1111 read the latter.

In kohya's format a layer is `<prefix>_<path>`, with underscores instead of dots; prefixes are in Family.kohya_prefixes.
Paths are those of diffusers, except for the U-Net of SDXL, which uses the block numbers of single-file checkpoints.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

from modules.weights.unet_names import renamed, unet_modules

if TYPE_CHECKING:
    from modules.families.Family import Family

# The blocks of every released SDXL, from which the block numbers follow.
SDXL_BLOCKS = {
    "block_out_channels": (320, 640, 1280),
    "layers_per_block": 2,
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
}
# Path components that contain underscores; all others are split at underscores.
WORDS = (
    "down_blocks", "mid_block", "up_blocks", "transformer_blocks", "single_transformer_blocks", "to_q", "to_k", "to_v",
    "to_out", "to_add_out", "add_q_proj", "add_k_proj", "add_v_proj", "proj_in", "proj_out", "proj_mlp", "conv_in",
    "conv_out", "conv_shortcut", "time_emb_proj", "time_embedding", "add_embedding", "linear_1", "linear_2",
    "ff_context", "norm1_context", "norm_out", "context_embedder", "time_text_embed", "timestep_embedder",
    "text_embedder", "pos_embed", "text_model", "self_attn", "q_proj", "k_proj", "v_proj", "out_proj",
    "text_projection", "layer_norm1", "layer_norm2", "norm2_context", "norm_q", "norm_k", "norm_added_q",
    "norm_added_k", "final_layer_norm",
)  # fmt: skip
_WORD = re.compile("|".join(f"{word}(?=_|$)" for word in sorted(WORDS, key=len, reverse=True)) + "|[^_]+")


def kohya_name(family: Family, component: str, layer: str) -> str:
    """The name of a layer in kohya's format. layer: path in diffusers' format. Raises WeightsError if SDXL lacks it."""
    if component in family.denoisers and family.kohya_blocks == "single_file":
        layer = renamed(f"{layer}.weight", unet_modules(SDXL_BLOCKS)).removesuffix(".weight")
    return f"{family.kohya_prefixes[component]}_{layer.replace('.', '_')}"


def diffusers_name(family: Family, name: str) -> tuple[str, str] | None:
    """(component, path in diffusers' format) of a kohya name; None if the family has no such component."""
    for component, prefix in family.kohya_prefixes.items():
        if name.startswith(f"{prefix}_"):
            path = name[len(prefix) + 1 :]
            numbered = component in family.denoisers and family.kohya_blocks == "single_file"
            return component, (_from_block_numbers(path) if numbered else None) or _with_dots(path)
    return None


def _with_dots(path: str) -> str:
    return ".".join(_WORD.findall(path))


def _from_block_numbers(path: str) -> str | None:
    """The diffusers path of a path with SDXL block numbers; None if it has none."""
    blocks = _block_numbers()
    start = path
    while start and start not in blocks:
        start = start.rpartition("_")[0]
    if not start:
        return None
    inner = _with_dots(path[len(start) + 1 :])
    return f"{blocks[start]}.{inner}" if inner else blocks[start]


@cache
def _block_numbers() -> dict[str, str]:
    return {target.replace(".", "_"): source for source, target in unet_modules(SDXL_BLOCKS).items()}
