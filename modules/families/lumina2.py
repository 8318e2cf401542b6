"""Lumina Image 2.0: a flow transformer over text and image, and Gemma 2, which gets a system prompt before each prompt.

Its time runs from 0 (noise) to 1 and its output is negated. Qin et al. 2025, arXiv 2503.21758.
"""

from __future__ import annotations

from modules.families.Family import Family
from modules.families.LayerNames import LayerNames
from modules.families.PublishedModel import KL_VAE_16, Component, PublishedModel
from modules.families.TextEncoding import TextEncoding

_BLOCKS = ("layers", "noise_refiner", "context_refiner")
_NAMES = LayerNames(  # of its makers' and ComfyUI's models, which have fused projections
    "diffusion_model.",
    names={
        f"{block}.{{}}.{ours}": f"{block}.{{}}.{theirs}"
        for block in _BLOCKS
        for ours, theirs in (
            ("attn.to_out.0", "attention.out"),
            *((f"feed_forward.linear_{number}", f"feed_forward.w{number}") for number in (1, 2, 3)),
            ("norm1.linear", "adaLN_modulation.1"),
        )
    },
    fused={tuple(f"{block}.{{}}.attn.to_{name}" for name in "qkv"): f"{block}.{{}}.attention.qkv" for block in _BLOCKS},
    folds_alpha=True,  # diffusers would not read it
)

LUMINA_2 = Family(
    name="lumina2",
    label="Lumina Image 2.0",
    pipeline="Lumina2Pipeline",
    other_pipelines=("Lumina2Text2ImgPipeline",),  # its former name
    denoisers=("transformer",),
    text=TextEncoding(
        outputs=("prompt_embeds", "prompt_attention_mask", None, None),
        encoders=("text_encoder",),
        tokenizers=("tokenizer",),
        options={"max_sequence_length": 256},
        # a missing negative prompt gets no system prompt
        empty_outputs=(None, None, "prompt_embeds", "prompt_attention_mask"),
    ),
    objective="flow",
    align=16,
    inputs=lambda call: {
        "hidden_states": call.latents,
        "timestep": 1 - call.timestep / 1000,
        "encoder_hidden_states": call.text["prompt_embeds"],
        "encoder_attention_mask": call.text["prompt_attention_mask"],
    },
    output=lambda call, output: -output,
    can_train_vae=True,
    lora_targets={"transformer": ("attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0")},
    lora_mlp={"transformer": ("feed_forward.linear_1", "feed_forward.linear_2", "feed_forward.linear_3")},
    lora_blocks={"transformer": _BLOCKS},
    layer_names={"transformer": _NAMES},
    unchecked_blocks=("noise_refiner", "context_refiner"),
    latent_bytes_per_pixel=16 * 4 / 8**2,
    caption_bytes=256 * (2304 * 4 + 8),
    typical_bytes=21e9,
    partly_unused=("text_encoder",),  # the denoiser uses the input of its last layer
    published=PublishedModel(
        # with the width of Gemma 2 2B
        denoiser=Component("diffusers.Lumina2Transformer2DModel", {"cap_feat_dim": 2304}),
        vae=KL_VAE_16,
        text_encoders=((Component("transformers.Gemma2Model", config_class="Gemma2Config"), 256),),
        text={"prompt_embeds": (256, 2304), "prompt_attention_mask": (256,)},
        side=1024,
    ),
)
