"""What the layers of FLUX.1's transformer are called in Black Forest Labs' own files, and in LoRAs that follow them."""

from __future__ import annotations

from modules.families.LayerNames import LayerNames

_BLOCK = "transformer_blocks.{}."
_SINGLE = "single_transformer_blocks.{}."
_TIME = "time_text_embed."

# The modulation of the last layer is left out: its halves are the other way round, which diffusers' converter knows.
FLUX_NAMES = LayerNames(
    "diffusion_model.",
    names={
        f"{_BLOCK}attn.to_out.0": "double_blocks.{}.img_attn.proj",
        f"{_BLOCK}attn.to_add_out": "double_blocks.{}.txt_attn.proj",
        f"{_BLOCK}ff.net.0.proj": "double_blocks.{}.img_mlp.0",
        f"{_BLOCK}ff.net.2": "double_blocks.{}.img_mlp.2",
        f"{_BLOCK}ff_context.net.0.proj": "double_blocks.{}.txt_mlp.0",
        f"{_BLOCK}ff_context.net.2": "double_blocks.{}.txt_mlp.2",
        f"{_BLOCK}norm1.linear": "double_blocks.{}.img_mod.lin",
        f"{_BLOCK}norm1_context.linear": "double_blocks.{}.txt_mod.lin",
        f"{_SINGLE}proj_out": "single_blocks.{}.linear2",
        f"{_SINGLE}norm.linear": "single_blocks.{}.modulation.lin",
        "x_embedder": "img_in",
        "context_embedder": "txt_in",
        f"{_TIME}timestep_embedder.linear_1": "time_in.in_layer",
        f"{_TIME}timestep_embedder.linear_2": "time_in.out_layer",
        f"{_TIME}text_embedder.linear_1": "vector_in.in_layer",
        f"{_TIME}text_embedder.linear_2": "vector_in.out_layer",
        f"{_TIME}guidance_embedder.linear_1": "guidance_in.in_layer",
        f"{_TIME}guidance_embedder.linear_2": "guidance_in.out_layer",
        "proj_out": "final_layer.linear",
    },
    fused={
        tuple(f"{_BLOCK}attn.to_{name}" for name in "qkv"): "double_blocks.{}.img_attn.qkv",
        tuple(f"{_BLOCK}attn.add_{name}_proj" for name in "qkv"): "double_blocks.{}.txt_attn.qkv",
        (*(f"{_SINGLE}attn.to_{name}" for name in "qkv"), f"{_SINGLE}proj_mlp"): "single_blocks.{}.linear1",
    },
)
