"""Tells by the names of its tensors what a file is, for the message that refuses it."""

from __future__ import annotations

import re
from collections.abc import Collection

from modules.config.adapters import tensor_marks
from modules.families.registry import FAMILIES

# The first pattern that a name has tells the kind.
_FORMATS = (
    (r"\.(qweight|wscales)$", "a model quantized by SVDQuant (Nunchaku)"),
    (r"\.quant_state\.bitsandbytes__(nf4|fp4)$", "a model quantized by bitsandbytes"),
    (rf"lora_(A|B|up|down)\b|\.({'|'.join(tensor_marks())})", "a LoRA"),
)
_PARTS = (  # after what families declare for themselves
    (r"model\.diffusion_model\.input_blocks\.", "a whole Stable Diffusion checkpoint"),
    (r"taesd_decoder\.", "TAESD, a preview decoder"),
    (r"decoder\.upsamples\.\d+\.upsamples\.", "the VAE of Wan 2.2 5B"),
    (r"decoder\.middle\.0\.residual\.", "the VAE of Wan 2.1 or Qwen-Image"),
    (r"\bbn\.running_mean$", "the VAE of FLUX.2"),
    (r"decoder\.up_blocks\.\d+\.res_blocks\.", "the VAE of LTX-Video"),
    (r"decoder\.mid\.block_1\.norm1\.gamma$", "the VAE of HunyuanVideo 1.5"),
    (r"decoder\.mid\.block_1\.conv1\.conv\.weight$", "the VAE of HunyuanVideo"),
    (r"decoder\.mid\.block_1\.norm1\.weight$", "a VAE like that of Stable Diffusion or FLUX.1"),
    (r"\bdouble_stream_modulation_img\.", "the transformer of FLUX.2"),
    (r"\b(vision_in|cond_type_embedding)\.", "the transformer of HunyuanVideo 1.5"),
    (r"\bbyt5_in\.", "the transformer of HunyuanImage"),
    (r"txt_in\.individual_token_refiner\.", "the transformer of HunyuanVideo"),
    (r"double_blocks\.\d+\.img_attn\.", "the transformer of FLUX.1"),
    (r"\bjoint_blocks\.\d+\.x_block\.", "the transformer of Stable Diffusion 3"),
    (r"\btransformer_blocks\.\d+\.img_mlp\.", "the transformer of Qwen-Image"),
    (r"\bblocks\.\d+\.self_attn\.norm_q\.", "the transformer of Wan"),
    (r"\binput_blocks\.\d+\.", "the U-Net of Stable Diffusion"),
    (r"\blayers\.\d+\.(self_attn|mlp)\.", "a language model, such as a text encoder"),
    (r"\bencoder\.block\.\d+\.layer\.0\.SelfAttention\.", "T5, a text encoder"),
    (r"\btext_model\.encoder\.layers\.", "CLIP, a text encoder"),
)


def kind_of(names: Collection[str]) -> str:
    """What these tensors are, such as "the VAE of FLUX.2"; "" for names that are not known."""
    marks = ((family.file_mark, f"the transformer of {family.label}") for family in FAMILIES.values())
    kinds = (*_FORMATS, *((mark, kind) for mark, kind in marks if mark), *_PARTS)
    return next((kind for pattern, kind in kinds if any(re.search(pattern, name) for name in names)), "")
