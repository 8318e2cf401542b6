"""How the layers of Stable Diffusion 3 are named by its makers' model."""

from modules.families.LayerNames import LayerNames

_BLOCK = "transformer_blocks.{}."
SD3_NAMES = LayerNames(  # of its makers' model, as kohya's scripts write them
    "lora_unet_",
    flat=True,
    names={
        f"{_BLOCK}{ours}": f"joint_blocks.{{}}.{theirs}"
        for ours, theirs in (
            ("attn.to_out.0", "x_block.attn.proj"),
            ("attn2.to_out.0", "x_block.attn2.proj"),
            ("attn.to_add_out", "context_block.attn.proj"),
            ("ff.net.0.proj", "x_block.mlp.fc1"),
            ("ff.net.2", "x_block.mlp.fc2"),
            ("ff_context.net.0.proj", "context_block.mlp.fc1"),
            ("ff_context.net.2", "context_block.mlp.fc2"),
        )
    },
    fused={
        tuple(f"{_BLOCK}attn.to_{name}" for name in "qkv"): "joint_blocks.{}.x_block.attn.qkv",
        tuple(f"{_BLOCK}attn2.to_{name}" for name in "qkv"): "joint_blocks.{}.x_block.attn2.qkv",
        tuple(f"{_BLOCK}attn.add_{name}_proj" for name in "qkv"): "joint_blocks.{}.context_block.attn.qkv",
    },
)
