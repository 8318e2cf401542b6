"""What the layers of Hunyuan's later transformers are called in LoRAs, which have fused projections."""

from __future__ import annotations

import re

from modules.families.LayerNames import LayerNames

_BLOCK = "transformer_blocks.{}."
_LAYERS = {
    f"{_BLOCK}attn.to_out.0": "double_blocks.{}.img_attn_proj",
    f"{_BLOCK}attn.to_add_out": "double_blocks.{}.txt_attn_proj",
    f"{_BLOCK}ff.net.0.proj": "double_blocks.{}.img_mlp.fc1",
    f"{_BLOCK}ff.net.2": "double_blocks.{}.img_mlp.fc2",
    f"{_BLOCK}ff_context.net.0.proj": "double_blocks.{}.txt_mlp.fc1",
    f"{_BLOCK}ff_context.net.2": "double_blocks.{}.txt_mlp.fc2",
    f"{_BLOCK}norm1.linear": "double_blocks.{}.img_mod.linear",
    f"{_BLOCK}norm1_context.linear": "double_blocks.{}.txt_mod.linear",
    f"single_{_BLOCK}proj_out": "single_blocks.{}.linear2",
    f"single_{_BLOCK}norm.linear": "single_blocks.{}.modulation.linear",
}
_FUSED = {
    tuple(f"{_BLOCK}attn.to_{name}" for name in "qkv"): "double_blocks.{}.img_attn_qkv",
    tuple(f"{_BLOCK}attn.add_{name}_proj" for name in "qkv"): "double_blocks.{}.txt_attn_qkv",
    (*(f"single_{_BLOCK}attn.to_{name}" for name in "qkv"), f"single_{_BLOCK}proj_mlp"): "single_blocks.{}.linear1",
}


def _in_comfyui(name: str) -> str:
    """The name of a layer in ComfyUI's model, from that in its makers'."""
    for theirs, other in (("_attn_", "_attn."), (".fc1", ".0"), (".fc2", ".2")):
        name = name.replace(theirs, other)
    return re.sub(r"\.linear$", ".lin", name)


_COMFYUI_LAYERS = {path: _in_comfyui(name) for path, name in _LAYERS.items()}
_COMFYUI_FUSED = {paths: _in_comfyui(name) for paths, name in _FUSED.items()}

# of HunyuanVideo, as its makers' files have them
HUNYUAN_NAMES = LayerNames(
    "diffusion_model.",
    names=_LAYERS,
    fused=_FUSED,
    also={
        **{name: path for path, name in _COMFYUI_LAYERS.items()},
        **{name: paths for paths, name in _COMFYUI_FUSED.items()},
    },
    folds_alpha=True,  # diffusers would not read it
)
# of HunyuanVideo 1.5 and HunyuanImage 2.1, for which ComfyUI knows its own names only
HUNYUAN_COMFYUI_NAMES = LayerNames(
    "diffusion_model.",
    names=_COMFYUI_LAYERS,
    fused=_COMFYUI_FUSED,
    also={
        **{name: path for path, name in _LAYERS.items()},
        **{name: paths for paths, name in _FUSED.items()},
        **{f"double_blocks.{{}}.img_attn_{name}": f"{_BLOCK}attn.to_{name}" for name in "qkv"},
        **{f"double_blocks.{{}}.txt_attn_{name}": f"{_BLOCK}attn.add_{name}_proj" for name in "qkv"},
    },
    folds_alpha=True,
)
