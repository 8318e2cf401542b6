"""The names of transformers with blocks of two streams and of one, in files of their makers and of ComfyUI.

These are FLUX.1, Chroma, HunyuanVideo, HunyuanVideo 1.5 and HunyuanImage. Their layers are called alike, in files that
have query, key and value in one tensor and in files that have three. diffusers' own converters know FLUX.1, Chroma and
HunyuanVideo, in their published widths and in the names of their makers.
Source: the scripts convert_flux_to_diffusers.py and convert_hunyuan_*_to_diffusers.py of diffusers,
`convert_chroma_transformer_checkpoint_to_diffusers` in its loaders/single_file_utils.py, and `Flux` and `HunyuanVideo`
in comfy/supported_models.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from modules.families.hunyuan_names import HUNYUAN_NAMES
from modules.weights.name_rules import by_rules, rules_of

if TYPE_CHECKING:
    from torch import Tensor

# Transformer -> where it has the embeddings of the timestep.
TIME_EMBEDDINGS = {
    "FluxTransformer2DModel": "time_text_embed",
    "ChromaTransformer2DModel": "",
    "HunyuanVideoTransformer3DModel": "time_text_embed",
    "HunyuanVideo15Transformer3DModel": "time_embed",
    "HunyuanImageTransformer2DModel": "time_guidance_embed",
}
# ComfyUI's names, and those of FLUX.1 -> Tencent's.
_OF_COMFY = rules_of(r"""
    ^(txt_in\.t_embedder|time_in|time_r_in|guidance_in)\.in_layer\.    \1.mlp.0.
    ^(txt_in\.t_embedder|time_in|time_r_in|guidance_in)\.out_layer\.   \1.mlp.2.
    ^txt_in\.c_embedder\.in_layer\.                                    txt_in.c_embedder.linear_1.
    ^txt_in\.c_embedder\.out_layer\.                                   txt_in.c_embedder.linear_2.
    (_mod|\.modulation)\.lin\.                                         \1.linear.
    _attn\.(qkv|proj)\.                                                _attn_\1.
    _attn\.norm\.query_norm\.(scale|weight)$                           _attn_q_norm.weight
    _attn\.norm\.key_norm\.(scale|weight)$                             _attn_k_norm.weight
    \.norm\.query_norm\.(scale|weight)$                                .q_norm.weight
    \.norm\.key_norm\.(scale|weight)$                                  .k_norm.weight
    (_mlp|blocks\.\d+\.mlp)\.0\.                                       \1.fc1.
    (_mlp|blocks\.\d+\.mlp)\.2\.                                       \1.fc2.
""")
# Tencent's names -> diffusers', except for the linear layers of blocks. {time} stands for the entry in TIME_EMBEDDINGS.
_OF_TENCENT = rules_of(r"""
    ^img_in\.                                               x_embedder.
    ^txt_in\.(weight|bias)$                                 context_embedder.\1
    ^(distilled_guidance_layer\.layers\.\d+)\.in_layer\.    \1.linear_1.
    ^(distilled_guidance_layer\.layers\.\d+)\.out_layer\.   \1.linear_2.
    ^(distilled_guidance_layer\.norms\.\d+)\.scale$         \1.weight
    ^cond_type_embedding\.                                  cond_type_embed.
    ^time_in\.                                              {time}.timestep_embedder.
    ^time_r_in\.                                            {time}.timestep_embedder_r.
    ^guidance_in\.                                          {time}.guidance_embedder.
    ^vector_in\.in_layer\.                                  {time}.text_embedder.linear_1.
    ^vector_in\.out_layer\.                                 {time}.text_embedder.linear_2.
    ^txt_in\.input_embedder\.                               context_embedder.proj_in.
    ^txt_in\.t_embedder\.                                   context_embedder.time_text_embed.timestep_embedder.
    ^txt_in\.c_embedder\.                                   context_embedder.time_text_embed.text_embedder.
    ^txt_in\.individual_token_refiner\.blocks\.             context_embedder.token_refiner.refiner_blocks.
    (embedder|embedder_r)\.mlp\.0\.                         \1.linear_1.
    (embedder|embedder_r)\.mlp\.2\.                         \1.linear_2.
    (refiner_blocks\.\d+)\.adaLN_modulation\.1\.            \1.norm_out.linear.
    (refiner_blocks\.\d+)\.self_attn_(q|k|v)\.              \1.attn.to_\2.
    (refiner_blocks\.\d+)\.self_attn_proj\.                 \1.attn.to_out.0.
    (refiner_blocks\.\d+)\.mlp\.fc1\.                       \1.ff.net.0.proj.
    (refiner_blocks\.\d+)\.mlp\.fc2\.                       \1.ff.net.2.
    ^byt5_in\.layernorm\.                                   context_embedder_2.norm.
    ^byt5_in\.fc(\d)\.                                      context_embedder_2.linear_\1.
    ^vision_in\.proj\.0\.                                   image_embedder.norm_in.
    ^vision_in\.proj\.1\.                                   image_embedder.linear_1.
    ^vision_in\.proj\.3\.                                   image_embedder.linear_2.
    ^vision_in\.proj\.4\.                                   image_embedder.norm_out.
    \.linear2\.fc\.                                         .linear2.
    ^double_blocks\.(\d+)\.img_attn_(q|k)_norm\.            transformer_blocks.\1.attn.norm_\2.
    ^double_blocks\.(\d+)\.txt_attn_(q|k)_norm\.            transformer_blocks.\1.attn.norm_added_\2.
    ^single_blocks\.(\d+)\.(q|k)_norm\.                     single_transformer_blocks.\1.attn.norm_\2.
    ^final_layer\.linear\.                                  proj_out.
    ^final_layer\.adaLN_modulation\.1\.                     norm_out.linear.
""")
_PARTS = ("q", "k", "v", "mlp")  # of what is one layer in some files
_FUSED = re.compile(r"_attn_qkv\.|\.linear1\.")


def _of_blocks() -> Iterator[tuple[str, str]]:
    """The same for the linear layers of blocks, which have LoRAs: where several are one in a file, for its parts."""
    layers = {theirs: ours for ours, theirs in HUNYUAN_NAMES.names.items()}
    for paths, theirs in HUNYUAN_NAMES.fused.items():
        layers |= {f"{theirs.removesuffix('_qkv')}_{part}": ours for part, ours in zip(_PARTS, paths, strict=False)}
    for theirs, ours in layers.items():
        yield "^" + re.escape(f"{theirs}.").replace(re.escape("{}"), r"(\d+)"), ours.replace("{}", r"\1") + "."


def double_stream_converter(class_name: str) -> Callable[..., dict[str, Tensor]]:
    """A converter, as diffusers has them for other models, for a class in TIME_EMBEDDINGS."""

    def convert(checkpoint: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
        import torch

        of_tencent = (*_OF_TENCENT, *_of_blocks())
        width = config["num_attention_heads"] * config["attention_head_dim"]
        converted = {}
        for name, tensor in checkpoint.items():
            tencents = by_rules(name, _OF_COMFY)
            for part, value in _parts(tencents, tensor, width).items():
                if part.startswith("final_layer.adaLN_modulation."):
                    shift, scale = value.chunk(2)
                    value = torch.cat([scale, shift])  # the order of diffusers' AdaLayerNormContinuous
                converted[by_rules(part, of_tencent).format(time=TIME_EMBEDDINGS[class_name])] = value
        return converted

    return convert


def _parts(name: str, tensor: Tensor, width: int) -> dict[str, Tensor]:
    """The tensor, or those of query, key and value (and the MLP) in it, by Tencent's names of them."""
    fused = _FUSED.search(name)
    if fused is None:
        return {name: tensor}
    if fused[0] == ".linear1.":
        sizes = [width, width, width, tensor.shape[0] - 3 * width]
        values = zip(_PARTS, tensor.split(sizes), strict=True)
        return {name.replace(".linear1.", f".linear1_{part}."): value for part, value in values}
    return {
        name.replace("_attn_qkv.", f"_attn_{part}."): value
        for part, value in zip(_PARTS, tensor.chunk(3), strict=False)
    }
