"""Stable Diffusion 1.x and 2.x: a U-Net and a CLIP text encoder; epsilon or v by the base model's scheduler."""

from collections.abc import Mapping
from typing import Any

from modules.families.Family import Family
from modules.families.PublishedModel import CLIP_L, KL_VAE, Component, PublishedModel
from modules.families.TextEncoding import TextEncoding
from modules.families.unet_loras import made_for_one_encoder


def _kohya_version(denoiser: Mapping[str, Any], scheduler: Mapping[str, Any]) -> str:
    is_second = denoiser["cross_attention_dim"] == 1024
    return f"sd_v{2 if is_second else 1}{'_v' if scheduler.get('prediction_type') == 'v_prediction' else ''}"


SD15 = Family(
    name="sd15",
    label="Stable Diffusion 1.x / 2.x",
    pipeline="StableDiffusionPipeline",
    other_pipelines=("StableDiffusionImg2ImgPipeline",),
    denoisers=("unet",),
    text=TextEncoding(
        outputs=("prompt_embeds", None),
        encoders=("text_encoder",),
        tokenizers=("tokenizer",),
        skips_layers=True,
        takes_chunks=True,
    ),
    objective="ddpm",
    align=8,
    inputs=lambda call: {
        "sample": call.latents,
        "timestep": call.timestep,
        "encoder_hidden_states": call.text["prompt_embeds"],
    },
    lora_targets={
        "unet": ("to_q", "to_k", "to_v", "to_out.0"),
        "text_encoder": ("q_proj", "k_proj", "v_proj", "out_proj"),
    },
    lora_mlp={"unet": ("ff.net.0.proj", "ff.net.2"), "text_encoder": ("fc1", "fc2")},
    lora_blocks={"unet": ("down_blocks", "mid_block", "up_blocks"), "text_encoder": ("encoder.layers",)},
    unquantized={"unet": ("time_emb_proj",)},
    latent_bytes_per_pixel=4 * 4 / 8**2,
    caption_bytes=77 * 1024 * 4,
    typical_bytes=4.3e9,
    is_default=True,
    can_train_vae=True,
    unused=("safety_checker", "feature_extractor", "image_encoder"),
    published=PublishedModel(
        denoiser=Component("diffusers.UNet2DConditionModel", {"cross_attention_dim": 768}),
        vae=KL_VAE,
        text_encoders=((CLIP_L, 77),),
        text={"prompt_embeds": (77, 768)},
        side=512,
    ),
    single_file="ldm",
    matches_lora=made_for_one_encoder,
    kohya_prefixes={"unet": "lora_unet", "text_encoder": "lora_te"},
    kohya_version=_kohya_version,
    embedding_keys={"text_encoder": "emb_params"},
)
