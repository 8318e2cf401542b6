"""Tensors in the names of their makers and of ComfyUI: the opposite of what reads such files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

# FLUX.1, Chroma and FLUX.2: the start of diffusers' names -> that of the makers, and plain replacements in this order
FLUX = {
    "single_transformer_blocks.": (
        "single_blocks.",
        [
            ("attn.to_qkv_mlp_proj.", "linear1."),
            ("attn.to_out.", "linear2."),
            ("proj_out.", "linear2."),
            (".norm.linear.", ".modulation.lin."),
            ("attn.norm_q.weight", "norm.query_norm.scale"),
            ("attn.norm_k.weight", "norm.key_norm.scale"),
        ],
    ),
    "transformer_blocks.": (
        "double_blocks.",
        [
            ("attn.norm_added_q.weight", "txt_attn.norm.query_norm.scale"),
            ("attn.norm_added_k.weight", "txt_attn.norm.key_norm.scale"),
            ("attn.norm_q.weight", "img_attn.norm.query_norm.scale"),
            ("attn.norm_k.weight", "img_attn.norm.key_norm.scale"),
            ("attn.to_add_out.", "txt_attn.proj."),
            ("attn.to_out.0.", "img_attn.proj."),
            ("norm1_context.linear.", "txt_mod.lin."),
            ("norm1.linear.", "img_mod.lin."),
            ("ff_context.net.0.proj.", "txt_mlp.0."),
            ("ff_context.net.2.", "txt_mlp.2."),
            ("ff.net.0.proj.", "img_mlp.0."),
            ("ff.net.2.", "img_mlp.2."),
            ("ff_context.linear_in.", "txt_mlp.0."),
            ("ff_context.linear_out.", "txt_mlp.2."),
            ("ff.linear_in.", "img_mlp.0."),
            ("ff.linear_out.", "img_mlp.2."),
        ],
    ),
    "distilled_guidance_layer.": (
        "distilled_guidance_layer.",
        [(".linear_1.", ".in_layer."), (".linear_2.", ".out_layer."), ("norms.0.weight", "norms.0.scale")],
    ),
    "": (
        "",
        [
            ("x_embedder.", "img_in."),
            ("context_embedder.", "txt_in."),
            ("time_text_embed.", ""),
            ("time_guidance_embed.", ""),
            ("timestep_embedder.linear_1.", "time_in.in_layer."),
            ("timestep_embedder.linear_2.", "time_in.out_layer."),
            ("guidance_embedder.linear_1.", "guidance_in.in_layer."),
            ("guidance_embedder.linear_2.", "guidance_in.out_layer."),
            ("text_embedder.linear_1.", "vector_in.in_layer."),
            ("text_embedder.linear_2.", "vector_in.out_layer."),
            ("modulation.linear.", "modulation.lin."),
            ("modulation_img.linear.", "modulation_img.lin."),
            ("modulation_txt.linear.", "modulation_txt.lin."),
            ("norm_out.linear.", "final_layer.adaLN_modulation.1."),
            ("proj_out.", "final_layer.linear."),
        ],
    ),
}
# Anima, of Cosmos-Predict2
COSMOS = [
    ("norm_out.linear_1.", "final_layer.adaln_modulation.1."),
    ("norm_out.linear_2.", "final_layer.adaln_modulation.2."),
    ("proj_out.", "final_layer.linear."),
    ("patch_embed.proj.", "x_embedder.proj.1."),
    ("time_embed.t_embedder.", "t_embedder.1."),
    ("time_embed.norm.", "t_embedding_norm."),
    ("transformer_blocks.", "blocks."),
    ("norm1.linear_", "adaln_modulation_self_attn."),
    ("norm2.linear_", "adaln_modulation_cross_attn."),
    ("norm3.linear_", "adaln_modulation_mlp."),
    ("attn1.", "self_attn."),
    ("attn2.", "cross_attn."),
    ("to_out.0.", "output_proj."),
    ("to_q.", "q_proj."),
    ("to_k.", "k_proj."),
    ("to_v.", "v_proj."),
    ("norm_q.", "q_norm."),
    ("norm_k.", "k_norm."),
    ("ff.net.0.proj.", "mlp.layer1."),
    ("ff.net.2.", "mlp.layer2."),
]


def renamed(tensors: Mapping[str, Tensor], *replacements: tuple[str, str]) -> dict[str, Tensor]:
    """The tensors after plain replacements in their names, one after another."""
    result = {}
    for name, tensor in tensors.items():
        for old, new in replacements:
            name = name.replace(old, new)
        result[name] = tensor
    return result


def fused(tensors: Mapping[str, Tensor], parts: Iterable[str], whole: str) -> dict[str, Tensor]:
    """The tensors with those called alike, but for `parts`, in one called `whole`."""
    result, parts = dict(tensors), [*parts]
    for name in [name for name in tensors if parts[0] in name]:
        result[name.replace(parts[0], whole)] = torch.cat([result.pop(name.replace(parts[0], part)) for part in parts])
    return result


def of_flux(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A transformer of FLUX.1, Chroma or FLUX.2 in the names of its makers."""
    tensors = {
        name: torch.cat(value.chunk(2)[::-1]) if name.startswith("norm_out.") else value
        for name, value in tensors.items()
    }
    tensors = fused(tensors, [f".attn.add_{part}_proj." for part in "qkv"], ".txt_attn.qkv.")
    result: dict[str, Tensor] = {}
    for name in list(tensors):
        start = next(start for start in FLUX if name.startswith(start))
        theirs, replacements = FLUX[start]
        inside = renamed({name.removeprefix(start): tensors[name]}, *replacements)
        result |= {theirs + inner: value for inner, value in inside.items()}
    in_single = [".attn.to_q.", ".attn.to_k.", ".attn.to_v.", ".proj_mlp."]
    single = fused(
        {name: value for name, value in result.items() if name.startswith("single_")}, in_single, ".linear1."
    )
    double = {name: value for name, value in result.items() if not name.startswith("single_")}
    return {**fused(double, in_single[:3], ".img_attn.qkv."), **single}
