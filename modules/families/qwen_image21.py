"""Qwen-Image 2.1: a flow transformer on one sequence of text and images, with Qwen 3 VL and an autoencoder of RGBA.

The text encoder sees reference images. In its outputs, each token of an image is a slot in which the transformer puts
the 2 x 2 latent cells of that part; the noised image follows the text. The layout of the sequence is that of the first
row, so that only texts of the same length share a forward pass.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from modules.families.Codec import Posterior
from modules.families.conditions import References
from modules.families.Family import DenoiserCall, Family
from modules.families.frames import decode_frames, encode_frames
from modules.families.LayerNames import DIFFUSERS_FILE_WITHOUT_ALPHA
from modules.families.patched_vae import pack_cells, unpack_cells
from modules.families.PublishedModel import QWEN_3_VL_8B, Component, PublishedModel
from modules.families.qwen_image import QWEN_CODEC
from modules.families.reference_sizes import size_of_area
from modules.families.TextEncoding import TextEncoding

if TYPE_CHECKING:
    from diffusers.models.modeling_utils import ModelMixin
    from torch import Tensor

_AREA = 1024 * 1024  # of a reference, in pixels
_NUM_TOKENS, _INSTRUCTION = 128, 20  # of a caption without references, and of what stands around it
_CELLS_PER_SLOT = 4


def _encode(vae: ModelMixin, pixels: Tensor) -> Posterior:
    """Images are opaque. pixels: [B, 3, H, W] or [B, 3, F, H, W]."""
    import torch

    return encode_frames(vae, torch.cat([pixels, torch.ones_like(pixels[:, :1])], dim=1))


def _decode(vae: ModelMixin, raw_BCFHW: Tensor) -> Tensor:
    return decode_frames(vae, raw_BCFHW)[:, :3]


def _pack(latents_BCFHW: Tensor) -> Tensor:
    return pack_cells(latents_BCFHW.squeeze(2))


def _unpack(packed_BNC: Tensor, shape: tuple[int, ...]) -> Tensor:
    batch, channels, _, height, width = shape
    return unpack_cells(packed_BNC, (batch, channels, height, width)).unsqueeze(2)


def _inputs(call: DenoiserCall) -> dict[str, Any]:
    import torch

    text = call.text_tensor("prompt_embeds")
    slots = call.text.get("image_pad_mask")
    if slots is None:  # a text without images
        slots = torch.zeros(text.shape[:2], dtype=torch.bool)
    assert isinstance(slots, torch.Tensor)
    of_image = slots.new_ones(len(text), call.latents.shape[1] // _CELLS_PER_SLOT)
    references = call.given.get("references", ())
    shapes = [tuple(shape[2:]) for shape in (*(reference.shape for reference in references), call.shape)]
    return {
        "hidden_states": torch.cat([*map(_pack, references), call.latents], dim=1),
        "timestep": call.timestep / 1000,
        "encoder_hidden_states": text,
        "img_shapes": [shapes] * len(text),
        "img_mask": torch.cat([slots, of_image], dim=1),
    }


QWEN_IMAGE_21 = Family(
    name="qwen_image21",
    label="Qwen-Image 2.1",
    pipeline="QwenImage21Pipeline",
    denoisers=("transformer",),
    text=TextEncoding(
        outputs=("prompt_embeds", None, "image_pad_mask"),
        encoders=("text_encoder",),
        tokenizers=("processor",),
        trainable=False,  # they see images, which batches don't hold
        empty_prompt=" ",  # without a negative prompt the pipeline uses no guidance
        collate="group",
        reference_size=partial(size_of_area, _AREA),
    ),
    objective="flow",
    align=32,
    codec=replace(QWEN_CODEC, encode=_encode, decode=_decode),
    inputs=_inputs,
    output=lambda call, output: output[:, -call.latents.shape[1] :],
    pack=_pack,
    unpack=_unpack,
    patch_size=1,
    conditions=(References(4, size=partial(size_of_area, _AREA)),),
    guidance_argument="true_cfg_scale",
    read_when_built=("processor",),  # the pipeline tokenizes its instruction
    lora_targets={"transformer": tuple(f"attn.{name}" for name in ("to_q", "to_k", "to_v", "to_out.0"))},
    lora_mlp={"transformer": ("img_mlp.proj", "img_mlp.gate_layer", "img_mlp.out")},
    lora_blocks={"transformer": ("transformer_blocks",)},
    layer_names={"transformer": DIFFUSERS_FILE_WITHOUT_ALPHA},
    latent_bytes_per_pixel=64 * 4 / 16**2,
    caption_bytes=_NUM_TOKENS * 4096 * 4,
    typical_bytes=64e9,
    published=PublishedModel(
        denoiser=Component("diffusers.QwenImage21Transformer2DModel"),
        vae=Component("diffusers.AutoencoderKLQwenImage21"),
        text_encoders=((QWEN_3_VL_8B, _NUM_TOKENS + _INSTRUCTION),),
        text={"prompt_embeds": (_NUM_TOKENS, 4096)},
        side=1024,
    ),
    remarks="""Distilled to be sampled without guidance, though not in fewer steps: train it as it is. The text encoder
    sees references, too, at a megapixel. Captions, and the empty one for caption dropout, are cached for each image, in
    about 9 MB for each image that it sees, and it can't be trained. Samples, as images with transparency, come from the
    steps in the model's configuration, if it lists any, instead of `steps`.""",
)
