"""Which U-Net of the Stable Diffusion line a LoRA file was made for, by the names and shapes of its tensors."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

Shapes = Mapping[str, tuple[int, ...]]

_UNET = ("_down_blocks_", "_mid_block_", "_up_blocks_", "_input_blocks_", "_middle_block_", "_output_blocks_")
# What only U-Nets with two text encoders have: kohya's numbered blocks, several layers in an attention, the encoder.
_TWO_ENCODERS = (
    "lora_te2_", "text_encoder_2_", "lora_unet_input_blocks_", "lora_unet_output_blocks_", "lora_unet_middle_block_",
    "_transformer_blocks_1_", "add_embedding_",
)  # fmt: skip
# And those with one: attention at the finest level, and a fourth level.
_ONE_ENCODER = ("_down_blocks_0_attentions_", "_up_blocks_3_", "_down_blocks_3_")
_TEXT_INPUT = re.compile(r"attn2[._]to_[kv]\.lora(_down|_A|\.down)\.weight$")


def made_for_one_encoder(shapes: Shapes) -> bool:
    """Whether the U-Net attends to one text encoder, of 768 or 1024 numbers, as 1.x and 2.x do."""
    names = flat_names(shapes)
    if not _has(names, _UNET) or _has(names, _TWO_ENCODERS):
        return False
    widths = _text_widths(shapes)
    if widths and widths <= {768, 1024}:
        return True
    return widths != {2048} and _has(names, _ONE_ENCODER)


def made_for_two_encoders(shapes: Shapes) -> bool:
    """Whether it attends to two of them, side by side, as XL does."""
    names = flat_names(shapes)
    return _has(names, _UNET) and (_has(names, _TWO_ENCODERS) or _text_widths(shapes) == {2048})


def flat_names(shapes: Shapes) -> list[str]:
    """As kohya writes paths."""
    return [name.replace(".", "_") for name in shapes]


def _has(names: Sequence[str], marks: Sequence[str]) -> bool:
    return any(mark in name for name in names for mark in marks)


def _text_widths(shapes: Shapes) -> set[int]:
    """Those of 1.x, 2.x and XL among the widths of the text that the LoRA's layers attend to."""
    widths = {shape[1] for name, shape in shapes.items() if _TEXT_INPUT.search(name) and len(shape) > 1}
    return widths & {768, 1024, 2048}
