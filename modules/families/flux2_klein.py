"""FLUX.2 klein: smaller than dev, with Qwen 3 and classifier-free guidance; its distilled models take none."""

from dataclasses import replace

from modules.families.flux2 import FLUX2_DEV, FLUX2_DEV_MODEL
from modules.families.PublishedModel import Component, Variant

# the 9B model, the larger of the two, with Qwen3-8B
_KLEIN_9B = {
    "num_layers": 8,
    "num_single_layers": 24,
    "num_attention_heads": 32,
    "joint_attention_dim": 12288,
    "guidance_embeds": False,
}
_QWEN_3_8B = {
    "vocab_size": 151936,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}

FLUX2_KLEIN = replace(
    FLUX2_DEV,
    name="flux2_klein",
    label="FLUX.2 klein",
    pipeline="Flux2KleinPipeline",
    text=replace(FLUX2_DEV.text, layers_read=27),
    takes_guidance=False,
    caption_bytes=512 * 12288 * 4,
    typical_bytes=69e9,
    further_classes={},
    published=replace(
        FLUX2_DEV_MODEL,
        denoiser=Component("diffusers.Flux2Transformer2DModel", _KLEIN_9B),
        text_encoders=((Component("transformers.Qwen3ForCausalLM", _QWEN_3_8B, "Qwen3Config"), 512),),
        text={"prompt_embeds": (512, 12288)},
    ),
    distilled={"FLUX.2 klein 4B, 9B": "FLUX.2-klein-base-4B, FLUX.2-klein-base-9B"},
    remarks="""`FLUX.2-klein-base-9B` asks to accept its license, which excludes commercial use, on its page first;
    `FLUX.2-klein-base-4B` is under Apache 2.0.""",
)

# black-forest-labs/flux2: Klein4BParams, with Qwen3-4B
_KLEIN_4B = {"num_layers": 5, "num_single_layers": 20, "num_attention_heads": 24, "joint_attention_dim": 7680}
_QWEN_3_4B = {"hidden_size": 2560, "intermediate_size": 9728, "tie_word_embeddings": True}

FLUX2_KLEIN_4B = Variant(
    "flux2_klein_4b",
    "flux2_klein",
    "FLUX.2 klein 4B",
    "black-forest-labs/FLUX.2-klein-base-4B",
    replace(
        FLUX2_DEV_MODEL,
        denoiser=Component("diffusers.Flux2Transformer2DModel", {**_KLEIN_9B, **_KLEIN_4B}),
        text_encoders=((Component("transformers.Qwen3ForCausalLM", {**_QWEN_3_8B, **_QWEN_3_4B}, "Qwen3Config"), 512),),
        text={"prompt_embeds": (512, 7680)},
    ),
    typical_bytes=32e9,
)
