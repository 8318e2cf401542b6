"""Stable Diffusion XL: a U-Net with size conditioning and two CLIP text encoders; epsilon or v by the scheduler.

Podell et al. 2023, arXiv 2307.01952: the U-Net attends to the concatenated penultimate layers of both encoders, and
takes the pooled output of the second one and the original size, crop and bucket of each image (section 2.2).
"""

from modules.families.conditions import Sizes
from modules.families.Family import Family
from modules.families.PublishedModel import CLIP_G, CLIP_L, KL_VAE, Component, PublishedModel
from modules.families.TextEncoding import TextEncoding
from modules.families.unet_loras import made_for_two_encoders

_CLIP_ATTENTION = ("q_proj", "k_proj", "v_proj", "out_proj")
_CLIP_MLP = ("fc1", "fc2")
SDXL_UNET = Component(
    "diffusers.UNet2DConditionModel",
    {
        "block_out_channels": (320, 640, 1280),
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        "transformer_layers_per_block": (1, 2, 10),
        "attention_head_dim": (5, 10, 20),
        "cross_attention_dim": 2048,
        "addition_embed_type": "text_time",
        "addition_time_embed_dim": 256,
        "projection_class_embeddings_input_dim": 2816,
        "use_linear_projection": True,
    },
)

SDXL_MODEL = PublishedModel(
    denoiser=SDXL_UNET,
    vae=KL_VAE,
    text_encoders=((CLIP_L, 77), (CLIP_G, 77)),
    text={"prompt_embeds": (77, 2048), "pooled_prompt_embeds": (1280,)},
    side=1024,
)

SDXL = Family(
    name="sdxl",
    label="Stable Diffusion XL",
    pipeline="StableDiffusionXLPipeline",
    denoisers=("unet",),
    text=TextEncoding(
        outputs=("prompt_embeds", None, "pooled_prompt_embeds", None),
        encoders=("text_encoder", "text_encoder_2"),
        tokenizers=("tokenizer", "tokenizer_2"),
        skips_layers=True,
        takes_chunks=True,
    ),
    objective="ddpm",
    align=8,
    inputs=lambda call: {
        "sample": call.latents,
        "timestep": call.timestep,
        "encoder_hidden_states": call.text["prompt_embeds"],
        "added_cond_kwargs": {"text_embeds": call.text["pooled_prompt_embeds"], "time_ids": call.given["sizes"]},
    },
    lora_targets={
        "unet": ("to_q", "to_k", "to_v", "to_out.0"),
        "text_encoder": _CLIP_ATTENTION,
        "text_encoder_2": _CLIP_ATTENTION,
    },
    lora_mlp={"unet": ("ff.net.0.proj", "ff.net.2"), "text_encoder": _CLIP_MLP, "text_encoder_2": _CLIP_MLP},
    lora_blocks={
        "unet": ("down_blocks", "mid_block", "up_blocks"),
        "text_encoder": ("encoder.layers",),
        # one level deeper, because this encoder has a projection
        "text_encoder_2": ("text_model.encoder.layers",),
    },
    unquantized={"unet": ("time_emb_proj",)},
    latent_bytes_per_pixel=4 * 4 / 8**2,
    caption_bytes=(77 * 2048 + 1280) * 4,
    typical_bytes=13.9e9,
    unused=("image_encoder", "feature_extractor"),
    conditions=(Sizes(),),
    can_train_vae=True,
    partly_unused=("text_encoder",),  # its last layer and pooled output are not used
    published=SDXL_MODEL,
    single_file="sgm",
    matches_lora=made_for_two_encoders,
    kohya_prefixes={"unet": "lora_unet", "text_encoder": "lora_te1", "text_encoder_2": "lora_te2"},
    kohya_blocks="single_file",
    kohya_version=lambda denoiser, scheduler: "sdxl_base_v1-0",
    embedding_keys={"text_encoder": "clip_l", "text_encoder_2": "clip_g"},
    distilled={"SDXL Turbo, Lightning": "Stable Diffusion XL"},
    remarks="""A single file can't store the prediction type. As in ComfyUI, an empty tensor `v_pred` marks
    v-prediction, and `ztsnr` a noise schedule with zero terminal SNR. Chorus writes these marks, and reads them from a
    base model.""",
)
