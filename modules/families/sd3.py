"""Stable Diffusion 3 and 3.5: a flow transformer, two CLIP encoders and T5."""

from dataclasses import replace

from modules.families.Family import Family
from modules.families.PublishedModel import (
    CLIP_G,
    CLIP_L_PROJECTED,
    KL_VAE_16,
    T5_XXL,
    Component,
    PublishedModel,
    Variant,
)
from modules.families.sd3_names import SD3_NAMES
from modules.families.TextEncoding import TextEncoding
from modules.families.unet_loras import input_widths

_MEDIUM = Component(  # 3.5 medium, which is larger than 3 medium with its 2.03 billion parameters
    "diffusers.SD3Transformer2DModel",
    {
        "sample_size": 128,
        "num_layers": 24,
        "num_attention_heads": 24,
        "attention_head_dim": 64,
        "joint_attention_dim": 4096,
        "caption_projection_dim": 1536,
        "pooled_projection_dim": 2048,
        "out_channels": 16,
        "pos_embed_max_size": 384,
        "qk_norm": "rms_norm",
        "dual_attention_layers": tuple(range(13)),
    },
)
_MODEL = PublishedModel(
    denoiser=_MEDIUM,
    vae=KL_VAE_16,
    text_encoders=((CLIP_L_PROJECTED, 77), (CLIP_G, 77), (T5_XXL, 256)),
    text={"prompt_embeds": (333, 4096), "pooled_prompt_embeds": (2048,)},
    side=1024,
)
_CLIP_ATTENTION = ("q_proj", "k_proj", "v_proj", "out_proj")
_ATTENTION_INPUT = r"attn[._]to_q\.lora(_down|_A)\.weight$"
SD3 = Family(
    name="sd3",
    label="Stable Diffusion 3 / 3.5",
    pipeline="StableDiffusion3Pipeline",
    denoisers=("transformer",),
    text=TextEncoding(
        outputs=("prompt_embeds", None, "pooled_prompt_embeds", None),
        encoders=("text_encoder", "text_encoder_2", "text_encoder_3"),
        tokenizers=("tokenizer", "tokenizer_2", "tokenizer_3"),
        options={"max_sequence_length": 256},
        skips_layers=True,
    ),
    objective="flow",
    align=16,
    inputs=lambda call: {
        "hidden_states": call.latents,
        "timestep": call.timestep,
        "encoder_hidden_states": call.text["prompt_embeds"],
        "pooled_projections": call.text["pooled_prompt_embeds"],
    },
    lora_targets={
        "transformer": tuple(
            f"attn.{name}"
            for name in ("to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out")
        ),
        "text_encoder": _CLIP_ATTENTION,
        "text_encoder_2": _CLIP_ATTENTION,
    },
    lora_mlp={
        "transformer": ("ff.net.0.proj", "ff.net.2", "ff_context.net.0.proj", "ff_context.net.2"),
        "text_encoder": ("fc1", "fc2"),
        "text_encoder_2": ("fc1", "fc2"),
    },
    lora_blocks={
        "transformer": ("transformer_blocks",),
        # one level deeper than in CLIPTextModel, because these encoders have a projection
        "text_encoder": ("text_model.encoder.layers",),
        "text_encoder_2": ("text_model.encoder.layers",),
    },
    latent_bytes_per_pixel=16 * 4 / 8**2,
    caption_bytes=(77 + 256) * 4096 * 4,
    typical_bytes=31e9,
    unused=("image_encoder", "feature_extractor"),
    optional={"text_encoder_3": "text_encoders.t5xxl.", "tokenizer_3": "text_encoders.t5xxl."},
    # The model uses this encoder's pooled output without projection: in the released files the projection is the
    # identity, and single-file checkpoints omit it.
    frozen_layers={"text_encoder": ("text_projection",)},
    published=_MODEL,
    single_file="mmdit",
    can_train_vae=True,
    original_names=SD3_NAMES,
    matches_lora=lambda shapes: input_widths(shapes, _ATTENTION_INPUT) == {2432},  # of 3.5 Large
    # The names that OneTrainer writes and ComfyUI reads, with an alpha per layer. kohya's own scripts merge query, key
    # and value into one layer, which can't hold three separate adapters of rank r.
    kohya_prefixes={"transformer": "lora_transformer", "text_encoder": "lora_te1", "text_encoder_2": "lora_te2"},
    embedding_keys={"text_encoder": "clip_l", "text_encoder_2": "clip_g", "text_encoder_3": "t5xxl"},
    distilled={"SD 3.5 Large Turbo": "SD 3.5 Large"},
    remarks="""Kohya's own scripts merge query, key and value into one layer, which can't hold three separate
    adapters of the same rank. Chorus therefore uses the names that OneTrainer writes and ComfyUI reads. ComfyUI can
    also read diffusers' file, but assumes that alpha equals the rank. diffusers only reads its own format; Chorus
    reads both. The final projection of the first text encoder is the identity in all released models and is missing
    in single files, so it is never trained. The model can be trained and sampled without T5. diffusers needs the
    missing parts named: `from_pretrained(folder, text_encoder_3=None, tokenizer_3=None)`.""",
)

# transformer/config.json of stabilityai/stable-diffusion-3.5-large, as its copies have it
_LARGE = {"num_layers": 38, "num_attention_heads": 38, "caption_projection_dim": 2432, "pos_embed_max_size": 192}
SD3_LARGE = Variant(
    "sd3_large",
    "sd3",
    "Stable Diffusion 3.5 large",
    "stabilityai/stable-diffusion-3.5-large",
    replace(_MODEL, denoiser=replace(_MEDIUM, config={**_MEDIUM.config, **_LARGE, "dual_attention_layers": ()})),
    typical_bytes=56e9,
)
