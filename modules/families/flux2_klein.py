"""FLUX.2 klein: smaller than dev, with Qwen 3 and classifier-free guidance; its distilled models take none."""

from dataclasses import replace

from modules.families.flux2 import FLUX2_DEV, FLUX2_DEV_MODEL
from modules.families.PublishedModel import Component

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
