"""Kolors: the U-Net of Stable Diffusion XL on texts in English and Chinese, which ChatGLM3 encodes; epsilon-prediction.

Kuaishou Kolors Team 2024: the U-Net attends to the penultimate layer of ChatGLM3, and takes the last token of its last
layer and the sizes of the image. The noise schedule has 1,100 steps.
"""

from __future__ import annotations

from dataclasses import replace

from modules.families.PublishedModel import Component
from modules.families.sdxl import SDXL, SDXL_MODEL
from modules.families.TextEncoding import TextEncoding

_NUM_TOKENS = 256  # of every text
_WIDTH = 4096  # of ChatGLM3
_CHATGLM_3 = Component(  # as transformers builds it: diffusers' own class can't be built on the meta device
    "transformers.GlmModel",
    {
        "vocab_size": 65024,
        "pad_token_id": 0,
        "hidden_size": _WIDTH,
        "intermediate_size": 13696,
        "num_hidden_layers": 28,
        "num_attention_heads": 32,
        "num_key_value_heads": 2,
    },
    "GlmConfig",
)

KOLORS = replace(
    SDXL,
    name="kolors",
    label="Kolors",
    pipeline="KolorsPipeline",
    text=TextEncoding(
        outputs=("prompt_embeds", None, "pooled_prompt_embeds", None),
        encoders=("text_encoder",),
        tokenizers=("tokenizer",),
        trainable=False,  # diffusers' ChatGLM3 has no gradient checkpointing, and no LoRA of it could be loaded
        options={"max_sequence_length": _NUM_TOKENS},
    ),
    lora_targets={"unet": SDXL.lora_targets["unet"]},
    lora_mlp={"unet": SDXL.lora_mlp["unet"]},
    lora_blocks={"unet": SDXL.lora_blocks["unet"]},
    caption_bytes=(_NUM_TOKENS + 1) * _WIDTH * 4,
    typical_bytes=36e9,
    partly_unused=(),
    further_classes={"text_encoder": ("diffusers.pipelines.kolors.ChatGLMModel",)},
    published=replace(
        SDXL_MODEL,
        denoiser=replace(
            SDXL_MODEL.denoiser,
            config={
                **SDXL_MODEL.denoiser.config,
                "encoder_hid_dim": _WIDTH,
                "encoder_hid_dim_type": "text_proj",
                "projection_class_embeddings_input_dim": _WIDTH + 6 * 256,
            },
        ),
        text_encoders=((_CHATGLM_3, _NUM_TOKENS),),
        text={"prompt_embeds": (_NUM_TOKENS, _WIDTH), "pooled_prompt_embeds": (_WIDTH,)},
    ),
    single_file=None,
    matches_lora=lambda shapes: False,  # the layers of its LoRAs have the names and widths of Stable Diffusion XL's
    kohya_prefixes={},
    kohya_blocks="diffusers",
    kohya_version=lambda denoiser, scheduler: "",
    embedding_keys={},
    distilled={},
    remarks="",
)
