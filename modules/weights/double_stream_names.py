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
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from modules.weights.name_rules import by_rules

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
_OF_COMFY = (
    (r"^(txt_in\.t_embedder|time_in|time_r_in|guidance_in)\.in_layer\.", r"\1.mlp.0."),
    (r"^(txt_in\.t_embedder|time_in|time_r_in|guidance_in)\.out_layer\.", r"\1.mlp.2."),
    (r"^txt_in\.c_embedder\.in_layer\.", "txt_in.c_embedder.linear_1."),
    (r"^txt_in\.c_embedder\.out_layer\.", "txt_in.c_embedder.linear_2."),
    (r"(_mod|\.modulation)\.lin\.", r"\1.linear."),
    (r"_attn\.(qkv|proj)\.", r"_attn_\1."),
    (r"_attn\.norm\.query_norm\.(scale|weight)$", "_attn_q_norm.weight"),
    (r"_attn\.norm\.key_norm\.(scale|weight)$", "_attn_k_norm.weight"),
    (r"\.norm\.query_norm\.(scale|weight)$", ".q_norm.weight"),
    (r"\.norm\.key_norm\.(scale|weight)$", ".k_norm.weight"),
    (r"(_mlp|blocks\.\d+\.mlp)\.0\.", r"\1.fc1."),
    (r"(_mlp|blocks\.\d+\.mlp)\.2\.", r"\1.fc2."),
)
# Tencent's names -> diffusers'. {time} stands for the entry in TIME_EMBEDDINGS.
_OF_TENCENT = (
    (r"^img_in\.", "x_embedder."),
    (r"^txt_in\.(weight|bias)$", r"context_embedder.\1"),
    (r"^(distilled_guidance_layer\.layers\.\d+)\.in_layer\.", r"\1.linear_1."),
    (r"^(distilled_guidance_layer\.layers\.\d+)\.out_layer\.", r"\1.linear_2."),
    (r"^(distilled_guidance_layer\.norms\.\d+)\.scale$", r"\1.weight"),
    (r"^cond_type_embedding\.", "cond_type_embed."),
    (r"^time_in\.", "{time}.timestep_embedder."),
    (r"^time_r_in\.", "{time}.timestep_embedder_r."),
    (r"^guidance_in\.", "{time}.guidance_embedder."),
    (r"^vector_in\.in_layer\.", "{time}.text_embedder.linear_1."),
    (r"^vector_in\.out_layer\.", "{time}.text_embedder.linear_2."),
    (r"^txt_in\.input_embedder\.", "context_embedder.proj_in."),
    (r"^txt_in\.t_embedder\.", "context_embedder.time_text_embed.timestep_embedder."),
    (r"^txt_in\.c_embedder\.", "context_embedder.time_text_embed.text_embedder."),
    (r"^txt_in\.individual_token_refiner\.blocks\.", "context_embedder.token_refiner.refiner_blocks."),
    (r"(embedder|embedder_r)\.mlp\.0\.", r"\1.linear_1."),
    (r"(embedder|embedder_r)\.mlp\.2\.", r"\1.linear_2."),
    (r"^byt5_in\.layernorm\.", "context_embedder_2.norm."),
    (r"^byt5_in\.fc(\d)\.", r"context_embedder_2.linear_\1."),
    (r"^vision_in\.proj\.0\.", "image_embedder.norm_in."),
    (r"^vision_in\.proj\.1\.", "image_embedder.linear_1."),
    (r"^vision_in\.proj\.3\.", "image_embedder.linear_2."),
    (r"^vision_in\.proj\.4\.", "image_embedder.norm_out."),
    (r"^double_blocks\.", "transformer_blocks."),
    (r"^single_blocks\.", "single_transformer_blocks."),
    (r"(refiner_blocks\.\d+)\.adaLN_modulation\.1\.", r"\1.norm_out.linear."),
    (r"\.self_attn_(q|k|v)\.", r".attn.to_\1."),
    (r"\.self_attn_proj\.", ".attn.to_out.0."),
    (r"\.img_mod\.linear\.", ".norm1.linear."),
    (r"\.txt_mod\.linear\.", ".norm1_context.linear."),
    (r"\.modulation\.linear\.", ".norm.linear."),
    (r"\.img_attn_(q|k|v)\.", r".attn.to_\1."),
    (r"\.txt_attn_(q|k|v)\.", r".attn.add_\1_proj."),
    (r"\.img_attn_(q|k)_norm\.", r".attn.norm_\1."),
    (r"\.txt_attn_(q|k)_norm\.", r".attn.norm_added_\1."),
    (r"\.img_attn_proj\.", ".attn.to_out.0."),
    (r"\.txt_attn_proj\.", ".attn.to_add_out."),
    (r"(single_transformer_blocks\.\d+)\.(q|k)_norm\.", r"\1.attn.norm_\2."),
    (r"\.linear1_(q|k|v)\.", r".attn.to_\1."),
    (r"\.linear1_mlp\.", ".proj_mlp."),
    (r"\.linear2\.(fc\.)?", ".proj_out."),
    (r"\.(img_)?mlp\.fc1\.", ".ff.net.0.proj."),
    (r"\.(img_)?mlp\.fc2\.", ".ff.net.2."),
    (r"\.txt_mlp\.fc1\.", ".ff_context.net.0.proj."),
    (r"\.txt_mlp\.fc2\.", ".ff_context.net.2."),
    (r"^final_layer\.linear\.", "proj_out."),
    (r"^final_layer\.adaLN_modulation\.1\.", "norm_out.linear."),
)
_FUSED = re.compile(r"_attn_qkv\.|\.linear1\.")


def double_stream_converter(class_name: str) -> Callable[..., dict[str, Tensor]]:
    """A converter, as diffusers has them for other models, for a class in TIME_EMBEDDINGS."""

    def convert(checkpoint: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
        import torch

        width = config["num_attention_heads"] * config["attention_head_dim"]
        converted = {}
        for name, tensor in checkpoint.items():
            tencents = by_rules(name, _OF_COMFY)
            for part, value in _parts(tencents, tensor, width).items():
                if part.startswith("final_layer.adaLN_modulation."):
                    shift, scale = value.chunk(2)
                    value = torch.cat([scale, shift])  # the order of diffusers' AdaLayerNormContinuous
                converted[by_rules(part, _OF_TENCENT).format(time=TIME_EMBEDDINGS[class_name])] = value
        return converted

    return convert


def _parts(name: str, tensor: Tensor, width: int) -> dict[str, Tensor]:
    """The tensor, or those of query, key and value (and the MLP) in it, by Tencent's names of them."""
    fused = _FUSED.search(name)
    if fused is None:
        return {name: tensor}
    if fused[0] == ".linear1.":
        sizes = [width, width, width, tensor.shape[0] - 3 * width]
        parts = dict(zip("qkv", tensor.split(sizes), strict=False)) | {"mlp": tensor.split(sizes)[3]}
        return {name.replace(".linear1.", f".linear1_{part}."): value for part, value in parts.items()}
    values = zip("qkv", tensor.chunk(3), strict=True)
    return {name.replace("_attn_qkv.", f"_attn_{part}."): value for part, value in values}
