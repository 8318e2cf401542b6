"""Detects which U-Net of Stable Diffusion a LoRA file was made for, from the names and shapes of its tensors."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

Shapes = Mapping[str, tuple[int, ...]]

_UNET = ("_down_blocks_", "_mid_block_", "_up_blocks_", "_input_blocks_", "_middle_block_", "_output_blocks_")
# Found only with two text encoders: the second encoder, kohya's numbered blocks, several layers per attention block.
_TWO_ENCODERS = (
    "lora_te2_", "text_encoder_2_", "lora_unet_input_blocks_", "lora_unet_output_blocks_", "lora_unet_middle_block_",
    "_transformer_blocks_1_", "add_embedding_",
)  # fmt: skip
# Found only with one text encoder: attention at the finest level, and a fourth level.
_ONE_ENCODER = ("_down_blocks_0_attentions_", "_up_blocks_3_", "_down_blocks_3_")
_TEXT_INPUT = r"attn2[._]to_[kv]\.lora(_down|_A|\.down)\.weight$"


def made_for_one_encoder(shapes: Shapes) -> bool:
    """Whether the U-Net attends to one text encoder of width 768 or 1024, as in 1.x and 2.x."""
    names = flat_names(shapes)
    if not _has(names, _UNET) or _has(names, _TWO_ENCODERS):
        return False
    widths = _text_widths(shapes)
    if widths and widths <= {768, 1024}:
        return True
    return widths != {2048} and _has(names, _ONE_ENCODER)


def made_for_two_encoders(shapes: Shapes) -> bool:
    """Whether the U-Net attends to two concatenated text encoders, as in XL."""
    names = flat_names(shapes)
    return _has(names, _UNET) and (_has(names, _TWO_ENCODERS) or _text_widths(shapes) == {2048})


def flat_names(shapes: Shapes) -> list[str]:
    """Tensor names with underscores instead of dots, as kohya writes them."""
    return [name.replace(".", "_") for name in shapes]


def input_widths(shapes: Shapes, first_matrices: str) -> set[int]:
    """The widths of what layers of a LoRA take. first_matrices: an expression found in the names of theirs."""
    return {shape[1] for name, shape in shapes.items() if re.search(first_matrices, name) and len(shape) > 1}


def _has(names: Sequence[str], marks: Sequence[str]) -> bool:
    return any(mark in name for name in names for mark in marks)


def _text_widths(shapes: Shapes) -> set[int]:
    """The text widths that the LoRA's attention layers take, restricted to those of 1.x, 2.x and XL."""
    return input_widths(shapes, _TEXT_INPUT) & {768, 1024, 2048}
