"""What the layers of Hunyuan-DiT are called in its makers' files and in ComfyUI, which have fused projections."""

from __future__ import annotations

from modules.families.LayerNames import LayerNames

_LAYERS = {
    "attn1.to_out.0": "attn1.out_proj",
    "attn2.to_q": "attn2.q_proj",
    "attn2.to_out.0": "attn2.out_proj",
    "ff.net.0.proj": "mlp.fc1",
    "ff.net.2": "mlp.fc2",
    "norm1.linear": "default_modulation.1",
    "skip_linear": "skip_linear",
}

HUNYUAN_DIT_NAMES = LayerNames(
    "diffusion_model.",
    names={f"blocks.{{}}.{ours}": f"blocks.{{}}.{theirs}" for ours, theirs in _LAYERS.items()},
    fused={
        tuple(f"blocks.{{}}.attn1.to_{name}" for name in "qkv"): "blocks.{}.attn1.Wqkv",
        tuple(f"blocks.{{}}.attn2.to_{name}" for name in "kv"): "blocks.{}.attn2.kv_proj",
    },
    folds_alpha=True,
)
