"""The names of FLUX.2's layers in Black Forest Labs' own files, where double blocks have fused projections."""

from modules.families.LayerNames import LayerNames

_BLOCK = "transformer_blocks.{}."
_IMAGE = tuple(f"{_BLOCK}attn.{name}" for name in ("to_q", "to_k", "to_v"))
_TEXT = tuple(f"{_BLOCK}attn.{name}" for name in ("add_q_proj", "add_k_proj", "add_v_proj"))

FLUX2_NAMES = LayerNames(
    "lora_unet_",
    flat=True,
    names={
        f"{_BLOCK}attn.to_out.0": "double_blocks.{}.img_attn.proj",
        f"{_BLOCK}attn.to_add_out": "double_blocks.{}.txt_attn.proj",
        f"{_BLOCK}ff.linear_in": "double_blocks.{}.img_mlp.0",
        f"{_BLOCK}ff.linear_out": "double_blocks.{}.img_mlp.2",
        f"{_BLOCK}ff_context.linear_in": "double_blocks.{}.txt_mlp.0",
        f"{_BLOCK}ff_context.linear_out": "double_blocks.{}.txt_mlp.2",
        f"single_{_BLOCK}attn.to_qkv_mlp_proj": "single_blocks.{}.linear1",
        f"single_{_BLOCK}attn.to_out": "single_blocks.{}.linear2",
    },
    fused={_IMAGE: "double_blocks.{}.img_attn.qkv", _TEXT: "double_blocks.{}.txt_attn.qkv"},
)
