"""PixArt-Sigma: a transformer with T5 and the autoencoder of Stable Diffusion XL; epsilon, with a learned variance.

Chen et al. 2024, arXiv 2403.04692. The second half of the output channels is the variance (Nichol and Dhariwal 2021,
arXiv 2102.09672), which neither sampling in diffusers nor the loss uses.
"""

from modules.families.Family import Family
from modules.families.LayerNames import DIFFUSERS_FILE_WITHOUT_ALPHA
from modules.families.lora_parts import LOADED_BY_PEFT
from modules.families.PublishedModel import KL_VAE, T5_XXL, Component, PublishedModel
from modules.families.TextEncoding import TextEncoding

_ATTENTION = ("to_q", "to_k", "to_v", "to_out.0")

PIXART_SIGMA = Family(
    name="pixart_sigma",
    label="PixArt-Sigma",
    pipeline="PixArtSigmaPipeline",
    denoisers=("transformer",),
    text=TextEncoding(
        outputs=("prompt_embeds", "prompt_attention_mask", None, None),
        encoders=("text_encoder",),
        tokenizers=("tokenizer",),
        # cleaning needs packages that are not installed everywhere, and would encode the same caption in two ways
        options={"max_sequence_length": 300, "clean_caption": False},
    ),
    objective="ddpm",
    align=16,
    inputs=lambda call: {
        "hidden_states": call.latents,
        "timestep": call.timestep,
        "encoder_hidden_states": call.text["prompt_embeds"],
        "encoder_attention_mask": call.text["prompt_attention_mask"],
        "added_cond_kwargs": {"resolution": None, "aspect_ratio": None},
    },
    output=lambda call, output: output[:, : call.denoiser.config.in_channels],
    call_options={"use_resolution_binning": False},  # keep the requested size
    can_train_vae=True,
    lora_targets={"transformer": tuple(f"{part}.{name}" for part in ("attn1", "attn2") for name in _ATTENTION)},
    lora_mlp={"transformer": ("ff.net.0.proj", "ff.net.2")},
    lora_blocks={"transformer": ("transformer_blocks",)},
    layer_names={"transformer": DIFFUSERS_FILE_WITHOUT_ALPHA},
    latent_bytes_per_pixel=4 * 4 / 8**2,
    caption_bytes=300 * (4096 * 4 + 8),
    typical_bytes=21.8e9,
    published=PublishedModel(
        denoiser=Component(
            "diffusers.PixArtTransformer2DModel",
            {"caption_channels": 4096, "interpolation_scale": 2, "use_additional_conditions": False},
        ),
        vae=KL_VAE,
        text_encoders=((T5_XXL, 300),),
        text={"prompt_embeds": (300, 4096), "prompt_attention_mask": (300,)},
        side=1024,
    ),
    remarks=LOADED_BY_PEFT,
)
