"""ERNIE-Image: a single-stream flow transformer over image and text, with Ministral 3 and FLUX.2's autoencoder.

Baidu 2026. Its pipeline can rewrite prompts with a further language model, which training doesn't need.
"""

from __future__ import annotations

from typing import Any

from modules.families.Family import DenoiserCall, Family
from modules.families.LayerNames import DIFFUSERS_FILE_WITHOUT_ALPHA
from modules.families.patched_vae import patch_2x2, patched_codec, unpatch_2x2
from modules.families.PublishedModel import Component, PublishedModel
from modules.families.TextEncoding import TextEncoding


def _inputs(call: DenoiserCall) -> dict[str, Any]:
    text = call.text_tensor("prompt_embeds")
    has_padding = "mask" in call.text
    lengths = call.text_tensor("mask").sum(1) if has_padding else text.new_full((len(text),), text.shape[1])
    return {
        "hidden_states": call.latents,
        "timestep": call.timestep,
        "text_bth": text,
        "text_lens": lengths,
    }


ERNIE_IMAGE = Family(
    name="ernie_image",
    label="ERNIE-Image",
    pipeline="ErnieImagePipeline",
    denoisers=("transformer",),
    text=TextEncoding(
        outputs=("prompt_embeds",),
        encoders=("text_encoder",),
        tokenizers=("tokenizer",),
        trainable=False,
        collate="pad",
        padded=("prompt_embeds",),
        mask="mask",
    ),
    objective="flow",
    align=16,
    codec=patched_codec(patch_2x2, unpatch_2x2, eps=1e-5),  # as the pipeline, whatever the VAE's config says
    inputs=_inputs,
    patch_size=1,
    call_options={"use_pe": False},  # draw the prompt as it is
    unused=("pe", "pe_tokenizer"),
    can_train_vae=True,
    lora_targets={"transformer": tuple(f"self_attention.{name}" for name in ("to_q", "to_k", "to_v", "to_out.0"))},
    lora_mlp={"transformer": ("mlp.gate_proj", "mlp.up_proj", "mlp.linear_fc2")},
    lora_blocks={"transformer": ("layers",)},
    layer_names={"transformer": DIFFUSERS_FILE_WITHOUT_ALPHA},
    latent_bytes_per_pixel=128 * 4 / 16**2,
    caption_bytes=128 * 3072 * 4,  # for a caption of about 128 tokens
    typical_bytes=47.9e9,
    further_classes=dict.fromkeys(("tokenizer", "pe_tokenizer"), ("transformers.AutoTokenizer",)),
    published=PublishedModel(  # from the config.json files of baidu/ERNIE-Image
        denoiser=Component(
            "diffusers.ErnieImageTransformer2DModel",
            {
                "hidden_size": 4096,
                "num_attention_heads": 32,
                "num_layers": 36,
                "ffn_hidden_size": 12288,
                "text_in_dim": 3072,
            },
        ),
        vae=Component("diffusers.AutoencoderKLFlux2"),
        text_encoders=(
            (
                Component(
                    "transformers.Mistral3Model",
                    {
                        "text_config": {
                            "model_type": "mistral",
                            "vocab_size": 131072,
                            "hidden_size": 3072,
                            "intermediate_size": 9216,
                            "num_hidden_layers": 26,
                            "num_attention_heads": 32,
                            "num_key_value_heads": 8,
                            "head_dim": 128,
                        }
                    },
                    "Mistral3Config",
                ),
                128,
            ),
        ),
        text={"prompt_embeds": (128, 3072)},
        side=1024,
    ),
    distilled={"ERNIE-Image Turbo": "ERNIE-Image"},
)
