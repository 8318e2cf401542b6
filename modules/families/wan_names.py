"""The names of Wan's layers in its makers' files, which LoRAs for ComfyUI have."""

from modules.families.LayerNames import LayerNames

_ATTENTION = {"to_q": "q", "to_k": "k", "to_v": "v", "to_out.0": "o"}

WAN_NAMES = LayerNames(
    "diffusion_model.",
    names={
        **{f"blocks.{{}}.attn1.{ours}": f"blocks.{{}}.self_attn.{theirs}" for ours, theirs in _ATTENTION.items()},
        **{f"blocks.{{}}.attn2.{ours}": f"blocks.{{}}.cross_attn.{theirs}" for ours, theirs in _ATTENTION.items()},
        # of models that see the first frame through an image encoder
        "blocks.{}.attn2.add_k_proj": "blocks.{}.cross_attn.k_img",
        "blocks.{}.attn2.add_v_proj": "blocks.{}.cross_attn.v_img",
        "blocks.{}.ffn.net.0.proj": "blocks.{}.ffn.0",
        "blocks.{}.ffn.net.2": "blocks.{}.ffn.2",
    },
)
