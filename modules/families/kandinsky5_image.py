"""Kandinsky 5 from text to image: a flow transformer on the latents of FLUX.1, with Qwen 2.5 VL and a pooled CLIP.

Kandinsky Lab 2025, arXiv 2511.14993. It takes a clip of one frame, with the channels last, and texts without a mask.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from modules.families.Codec import Codec
from modules.families.Family import DenoiserCall, Family
from modules.families.LayerNames import DIFFUSERS_FILE_WITHOUT_ALPHA
from modules.families.PublishedModel import CLIP_L, KL_VAE_16, QWEN_2_5_VL, Component, PublishedModel
from modules.families.TextEncoding import TextEncoding

if TYPE_CHECKING:
    from diffusers.models.modeling_utils import ModelMixin
    from torch import Tensor, nn

_INSTRUCTION = 40  # tokens before each prompt, which are cut off
_ATTENTION = ("to_query", "to_key", "to_value", "out_layer")


def _inputs(call: DenoiserCall) -> dict[str, Any]:
    import torch

    text, (height, width) = call.text_tensor("prompt_embeds_qwen"), call.shape[-2:]
    lengths = 1, height // 2, width // 2, text.shape[1]
    *image, words = (torch.arange(length, device=text.device) for length in lengths)
    return {
        "hidden_states": call.latents,
        "timestep": call.timestep,
        "encoder_hidden_states": text,
        "pooled_projections": call.text["prompt_embeds_clip"],
        "visual_rope_pos": image,
        "text_rope_pos": words,
    }


def _pack(latents_BCHW: Tensor) -> Tensor:
    """[B, 1, H, W, C]"""
    return latents_BCHW.movedim(1, -1).unsqueeze(1)


def _unpack(packed_BFHWC: Tensor, shape: tuple[int, ...]) -> Tensor:
    return packed_BFHWC.movedim(-1, 2).reshape(shape)


def _adapt(denoiser: ModelMixin) -> None:
    """Corrects a fault of diffusers 0.42: without `return_dict`, the denoiser gives no tuple."""
    denoiser.register_forward_hook(_as_tuple)


def _as_tuple(denoiser: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
    return output if isinstance(output, Mapping) else (output,)


KANDINSKY5_IMAGE = Family(
    name="kandinsky5_image",
    label="Kandinsky 5 Image",
    pipeline="Kandinsky5T2IPipeline",
    denoisers=("transformer",),
    text=TextEncoding(
        outputs=("prompt_embeds_qwen", "prompt_embeds_clip", None),
        encoders=("text_encoder", "text_encoder_2"),
        tokenizers=("tokenizer", "tokenizer_2"),
        options={"max_sequence_length": 512},
        collate="group",
    ),
    objective="flow",
    align=16,
    codec=Codec(stats=lambda vae: (0.0, vae.config.scaling_factor)),  # without the shift of FLUX.1
    inputs=_inputs,
    pack=_pack,
    unpack=_unpack,
    adapt=_adapt,
    # keep the requested size
    call_attributes=lambda pipe, width, height, guidance: {"resolutions": [(width, height)]} if width else {},
    can_train_vae=True,
    lora_targets={
        "transformer": tuple(f"{part}_attention.{name}" for part in ("self", "cross") for name in _ATTENTION)
    },
    lora_mlp={"transformer": ("feed_forward.in_layer", "feed_forward.out_layer")},
    lora_blocks={"transformer": ("text_transformer_blocks", "visual_transformer_blocks")},
    layer_names={"transformer": DIFFUSERS_FILE_WITHOUT_ALPHA},
    unquantized={"transformer": ("text_modulation", "visual_modulation")},
    latent_bytes_per_pixel=16 * 4 / 8**2,
    caption_bytes=(128 * 3584 + 768) * 4,  # for a caption of about 128 tokens
    typical_bytes=58e9,
    partly_unused=("text_encoder",),  # its vision tower and language head
    published=PublishedModel(  # of the Lite model
        denoiser=Component(
            "diffusers.Kandinsky5Transformer3DModel",
            {
                "in_visual_dim": 16,
                "out_visual_dim": 16,
                "model_dim": 2560,
                "ff_dim": 10240,
                "num_visual_blocks": 50,
                "axes_dims": (32, 48, 48),
            },
        ),
        vae=KL_VAE_16,
        text_encoders=((QWEN_2_5_VL, 128 + _INSTRUCTION), (CLIP_L, 77)),
        text={"prompt_embeds_qwen": (128, 3584), "prompt_embeds_clip": (768,)},
        side=1024,
    ),
)
