"""Qwen-Image: a flow transformer on packed latents of a video autoencoder, and Qwen 2.5 VL, which gets a chat template.

Wu et al. 2025, arXiv 2508.02324.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from modules.families.Codec import Codec
from modules.families.Family import DenoiserCall, Family
from modules.families.frames import channel_stats, decode_frames, encode_frames
from modules.families.LayerNames import DIFFUSERS_NAMES
from modules.families.packing import pack_2x2, unpack_2x2
from modules.families.PublishedModel import QWEN_2_5_VL, Component, PublishedModel, Variant
from modules.families.TextEncoding import TextEncoding

if TYPE_CHECKING:
    from diffusers.models.modeling_utils import ModelMixin
    from torch import Tensor


def _shape(vae: ModelMixin, width: int, height: int, num_frames: int) -> tuple[int, ...]:
    downsamples = vae.config.temperal_downsample
    frames = (num_frames - 1) // 2 ** sum(downsamples) + 1
    return vae.config.z_dim, frames, height // 2 ** len(downsamples), width // 2 ** len(downsamples)


def pack_frame(latents_BCFHW: Tensor) -> Tensor:
    return pack_2x2(latents_BCFHW.squeeze(2))


def unpack_frame(packed_BNC: Tensor, shape: tuple[int, ...]) -> Tensor:
    batch, channels, _, height, width = shape
    return unpack_2x2(packed_BNC, (batch, channels, height, width)).unsqueeze(2)


QWEN_CODEC = Codec(channel_stats, encode_frames, decode_frames, _shape)


def qwen_inputs(call: DenoiserCall) -> dict[str, Any]:
    """The noised image, followed by its references for the models that edit."""
    import torch

    references = call.given.get("references", ())
    shapes = [call.shape, *(reference.shape for reference in references)]
    return {
        "hidden_states": torch.cat([call.latents, *map(pack_frame, references)], dim=1),
        "timestep": call.timestep / 1000,
        "encoder_hidden_states": call.text["prompt_embeds"],
        "encoder_hidden_states_mask": call.text.get("prompt_embeds_mask"),
        "img_shapes": [[(frames, height // 2, width // 2) for _, _, frames, height, width in shapes]] * call.shape[0],
    }


QWEN_IMAGE = Family(
    name="qwen_image",
    label="Qwen-Image",
    pipeline="QwenImagePipeline",
    denoisers=("transformer",),
    text=TextEncoding(
        outputs=("prompt_embeds", None),
        encoders=("text_encoder",),
        tokenizers=("tokenizer",),
        options={"max_sequence_length": 512},
        empty_prompt=" ",  # the model's authors' negative prompt; without one the pipeline uses no guidance
        collate="pad",
        padded=("prompt_embeds",),
        mask="prompt_embeds_mask",
    ),
    objective="flow",
    align=16,
    codec=QWEN_CODEC,
    inputs=qwen_inputs,
    pack=pack_frame,
    unpack=unpack_frame,
    guidance_argument="true_cfg_scale",
    lora_targets={
        "transformer": tuple(
            f"attn.{name}"
            for name in ("to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out")
        )
    },
    lora_mlp={
        "transformer": tuple(f"{stream}_mlp.net.{layer}" for stream in ("img", "txt") for layer in ("0.proj", "2"))
    },
    lora_blocks={"transformer": ("transformer_blocks",)},
    layer_names={"transformer": DIFFUSERS_NAMES},
    latent_bytes_per_pixel=16 * 4 / 8**2,
    caption_bytes=128 * 3584 * 4,  # for a caption of about 128 tokens
    typical_bytes=116e9,
    # the last block's text output, and the encoder's vision tower and language head
    partly_unused=("transformer", "text_encoder"),
    published=PublishedModel(
        denoiser=Component("diffusers.QwenImageTransformer2DModel"),
        vae=Component("diffusers.AutoencoderKLQwenImage"),
        text_encoders=((QWEN_2_5_VL, 162),),
        text={"prompt_embeds": (128, 3584)},
        side=1024,
    ),
)

# the same architecture, trained further by its makers
QWEN_IMAGE_2512 = Variant("qwen_image_2512", "qwen_image", "Qwen-Image-2512", "Qwen/Qwen-Image-2512")
