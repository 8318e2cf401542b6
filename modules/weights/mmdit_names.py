"""Converts the tensors of Stable Diffusion 3's transformer ("MMDiT") to the layout of single-file checkpoints.

There, query, key and value of an attention layer are concatenated to one tensor, and the two halves of the modulation
of the last layer are swapped.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from modules.weights.unet_names import renamed

if TYPE_CHECKING:
    from torch import Tensor

TOP = {
    "pos_embed.proj": "x_embedder.proj",
    "time_text_embed.timestep_embedder.linear_1": "t_embedder.mlp.0",
    "time_text_embed.timestep_embedder.linear_2": "t_embedder.mlp.2",
    "time_text_embed.text_embedder.linear_1": "y_embedder.mlp.0",
    "time_text_embed.text_embedder.linear_2": "y_embedder.mlp.2",
    "context_embedder": "context_embedder",
    "norm_out.linear": "final_layer.adaLN_modulation.1",
    "proj_out": "final_layer.linear",
}
BLOCK = {
    "attn.to_out.0": "x_block.attn.proj",
    "attn.norm_q": "x_block.attn.ln_q",
    "attn.norm_k": "x_block.attn.ln_k",
    "attn.to_add_out": "context_block.attn.proj",
    "attn.norm_added_q": "context_block.attn.ln_q",
    "attn.norm_added_k": "context_block.attn.ln_k",
    "attn2.to_out.0": "x_block.attn2.proj",
    "attn2.norm_q": "x_block.attn2.ln_q",
    "attn2.norm_k": "x_block.attn2.ln_k",
    "norm1.linear": "x_block.adaLN_modulation.1",
    "norm1_context.linear": "context_block.adaLN_modulation.1",
    "ff.net.0.proj": "x_block.mlp.fc1",
    "ff.net.2": "x_block.mlp.fc2",
    "ff_context.net.0.proj": "context_block.mlp.fc1",
    "ff_context.net.2": "context_block.mlp.fc2",
}
# Query -> its key and value, and the name of the layer that combines all three.
FUSED = {
    "attn.to_q": (("attn.to_k", "attn.to_v"), "x_block.attn.qkv"),
    "attn.add_q_proj": (("attn.add_k_proj", "attn.add_v_proj"), "context_block.attn.qkv"),
    "attn2.to_q": (("attn2.to_k", "attn2.to_v"), "x_block.attn2.qkv"),
}
_BLOCK_TENSOR = re.compile(r"transformer_blocks\.(\d+)\.(.+)\.(weight|bias)")


def mmdit_tensors(state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of an `SD3Transformer2DModel` with the names of a single file, without prefix.

    Raises WeightsError for a layer that the layout has no name for.
    """
    import torch

    last = max(int(match[1]) for name in state_dict if (match := _BLOCK_TENSOR.fullmatch(name)))
    others = {key for keys, _ in FUSED.values() for key in keys}
    # The text branch of the last block has no attention output and feed-forward, and a modulation of two halves.
    swapped = ("norm_out.linear", f"transformer_blocks.{last}.norm1_context.linear")
    converted = {}
    for name, tensor in state_dict.items():
        if name.startswith(swapped):
            tensor = torch.cat(tensor.chunk(2)[::-1])
        match = _BLOCK_TENSOR.fullmatch(name)
        if name == "pos_embed.pos_embed":
            converted["pos_embed"] = tensor
        elif match is None:
            converted[renamed(name, TOP)] = tensor
        elif match[2] in FUSED:
            (key, value), target = FUSED[match[2]]
            parts = [tensor, *(state_dict[f"transformer_blocks.{match[1]}.{part}.{match[3]}"] for part in (key, value))]
            converted[f"joint_blocks.{match[1]}.{target}.{match[3]}"] = torch.cat(parts)
        elif match[2] not in others:
            converted[f"joint_blocks.{match[1]}.{renamed(f'{match[2]}.{match[3]}', BLOCK)}"] = tensor
    return converted
