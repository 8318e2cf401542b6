"""LTX-2.5: LTX-2 with Gemma 4 12B, gated attention and a text for each stream that its connectors make apart.

Lightricks 2026. Its folders name LTX-2's pipeline, which decodes with the VAE of the folder. The diffusion decoder that
lies beside it decodes the same latents; training needs neither.
"""

from __future__ import annotations

from dataclasses import replace

from modules.families.ltx2 import LTX_2, is_later
from modules.families.PublishedModel import GEMMA_4_12B, Component
from modules.families.Undistilled import Undistilled

_NUM_TOKENS, _WIDTH, _SOUND_WIDTH = 1024, 4096, 2048  # of every text
_STREAMS = ("video", "audio")
_CONNECTORS = {"num_attention_heads": 32, "num_layers": 8}

_PUBLISHED = LTX_2.published
assert _PUBLISHED is not None

# Source of the sizes: scripts/convert_ltx2_to_diffusers.py of diffusers, version "2.5"
LTX_25 = replace(
    LTX_2,
    name="ltx25",
    label="LTX-2.5",
    accepts=is_later,
    # for rewriting prompts, for choosing the length of a clip, which samples have from their settings, and a decoder
    # that LTX-2's pipeline does not take
    unused=("prompt_enhancer", "processor", "duration_head", "diffusion_decoder"),
    takes_loras_of=LTX_2.name,
    caption_bytes=_NUM_TOKENS * ((_WIDTH + _SOUND_WIDTH) * 4 + 8),
    typical_bytes=145e9,
    published=replace(
        _PUBLISHED,
        denoiser=Component(
            "diffusers.LTX2VideoTransformer3DModel",
            {
                "gated_attn": True,
                "cross_attn_mod": True,
                "audio_gated_attn": True,
                "audio_cross_attn_mod": True,
                "rope_type": "split",
                "use_prompt_embeddings": False,
                "perturbed_attn": True,
                "ff_bias": False,
                "use_keyframes_abs_pos_embedding": True,
            },
        ),
        text_encoders=((GEMMA_4_12B, _NUM_TOKENS),),
        text={
            "prompt_embeds": (_NUM_TOKENS, _WIDTH),
            "audio_prompt_embeds": (_NUM_TOKENS, _SOUND_WIDTH),
            "prompt_attention_mask": (_NUM_TOKENS,),
        },
        connectors=(
            Component(
                "diffusers.pipelines.ltx2.LTX2TextConnectors",
                {
                    **{f"{stream}_connector_{name}": size for stream in _STREAMS for name, size in _CONNECTORS.items()},
                    "audio_connector_attention_head_dim": 64,
                    "video_gated_attn": True,
                    "audio_gated_attn": True,
                    "rope_type": "split",
                    "per_modality_projections": True,
                    "proj_bias": True,
                },
            ),
        ),
    ),
    distilled={"LTX-2.5, distilled": "the full model, its `transformer_full`"},
    # Source: docs/source/en/api/pipelines/ltx2.md of diffusers, "Full / SFT transformer"
    undistilled=Undistilled("transformer_full", {"use_dynamic_shifting": True, "shift_terminal": 0.1}),
    remarks="""As LTX-2 in all that is said there, with Gemma 4 12B as Lightricks trained it on, which no other fits.
    The `transformer` of Lightricks/LTX-2.5-Diffusers is the distilled one, which is refused; the full one is its
    `transformer_full`. The presets name it as `model.denoiser`, with which samples follow its schedule; in a terminal,
    it is `--denoiser Lightricks/LTX-2.5-Diffusers/transformer_full` beside `--base`. LoRAs fit both. Samples
    are decoded by the model's VAE, as in `LTX2Pipeline`. Chorus neither loads nor saves its diffusion decoder, which
    draws noise and decodes the same latents, its prompt enhancer, which rewrites short prompts, and its duration head,
    which chooses the length of clips. LoRAs of LTX-2 fit it, too.""",
)
