"""What families say alike of their LoRAs: the layers of FLUX.1's kind of blocks, and how files are loaded elsewhere."""

from __future__ import annotations

# of blocks in which text and image have layers of their own and attend together
JOINT_ATTENTION = tuple(
    f"attn.{name}"
    for name in ("to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out")
)
JOINT_MLP = ("ff.net.0.proj", "ff.net.2", "ff_context.net.0.proj", "ff_context.net.2")
SINGLE_MLP = ("proj_mlp", "proj_out")  # of blocks that have the same layers for both

_THERE = "[as described there](formats.md#loras-of-pipelines-without-a-loader)"
LOADED_BY_MODEL = f"""diffusers' pipeline loads no LoRAs, but its model does: `pipe.transformer.load_lora_adapter(...)`,
    {_THERE}. Chorus's samples, merges and conversions take them."""
LOADED_BY_PEFT = f"""diffusers' pipeline loads no LoRAs. PEFT puts them into the transformer, {_THERE}, and Chorus's
    samples, merges and conversions take them."""
