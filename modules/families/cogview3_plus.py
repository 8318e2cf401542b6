"""CogView3-Plus: the predecessor of CogView4, with T5; v-prediction, with CogVideoX's noise schedule.

Zheng et al. 2024, arXiv 2403.05121. Texts are padded to 224 tokens, without a mask. A missing negative prompt is zeros.
"""

from __future__ import annotations

from dataclasses import replace

from modules.families.cogview4 import COGVIEW4, COGVIEW4_MODEL
from modules.families.lora_parts import LOADED_BY_PEFT
from modules.families.PublishedModel import T5_XXL, Component
from modules.families.TextEncoding import TextEncoding

_NUM_TOKENS = 224  # of every text

COGVIEW3_PLUS = replace(
    COGVIEW4,
    name="cogview3_plus",
    label="CogView3-Plus",
    pipeline="CogView3PlusPipeline",
    text=TextEncoding(
        outputs=("prompt_embeds", None),
        encoders=("text_encoder",),
        tokenizers=("tokenizer",),
        options={"max_sequence_length": _NUM_TOKENS},
        empty_outputs=(None, "prompt_embeds"),
    ),
    objective="ddpm",
    shift_law="exponential",
    caption_bytes=_NUM_TOKENS * 4096 * 4,
    typical_bytes=31e9,
    partly_unused=(),
    further_classes={},
    published=replace(
        COGVIEW4_MODEL,
        denoiser=Component("diffusers.CogView3PlusTransformer2DModel"),
        text_encoders=((T5_XXL, _NUM_TOKENS),),
        text={"prompt_embeds": (_NUM_TOKENS, 4096)},
    ),
    remarks=LOADED_BY_PEFT,
)
