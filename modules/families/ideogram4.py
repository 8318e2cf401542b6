"""Ideogram 4: a single-stream flow transformer over text and patches of FLUX.2's latents, with layers of Qwen 3 VL.

Ideogram 2026. A second transformer, which sees no text, gives the unconditional predictions of guidance; it stays as it
is. Time runs from 0 (noise) to 1 and the output is negated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from modules.config.ResolutionShift import ResolutionShift
from modules.config.TrainingTimesteps import TrainingTimesteps
from modules.families.Family import DenoiserCall, Family
from modules.families.LayerNames import LayerNames
from modules.families.packing import token_positions
from modules.families.patched_vae import pack_cells, patch_cells, patched_codec, unpack_cells, unpatch_cells
from modules.families.PublishedModel import QWEN_3_VL_8B, Component, PublishedModel
from modules.families.TextEncoding import TextEncoding

if TYPE_CHECKING:
    from torch import Tensor

_IMAGE, _TEXT = 2, 3  # the kinds of tokens; padding is of none
_FIRST_POSITION = 65536  # of images, behind that of every text
_MAX_LENGTH = 2048


def _inputs(call: DenoiserCall) -> dict[str, Any]:
    import torch

    text, (height, width) = call.text_tensor("prompt_embeds"), call.shape[-2:]
    batch, length = text.shape[:2]
    words = torch.arange(length, device=text.device)[:, None].expand(length, 3)
    cells = token_positions(height, width, like=words) + _FIRST_POSITION
    spoken = call.text_tensor("mask").long() if "mask" in call.text else words.new_ones(batch, length)
    drawn = words.new_ones(batch, len(cells))
    return {
        "hidden_states": torch.nn.functional.pad(call.latents, (0, 0, length, 0)),
        "timestep": (1 - call.timestep / 1000).to(call.latents.dtype),
        "encoder_hidden_states": torch.nn.functional.pad(text, (0, 0, 0, len(cells))),
        "position_ids": torch.cat([words, cells]).expand(batch, -1, -1),
        "segment_ids": torch.cat([spoken, drawn], dim=1),  # padding is a segment of its own
        "indicator": torch.cat([_TEXT * spoken, _IMAGE * drawn], dim=1),
    }


def _without_padding(pipe: Any, outputs: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tokens of one prompt, without the 436 MB with which the pipeline pads it."""
    return {"prompt_embeds": outputs["prompt_embeds"][:, outputs["indicator"][0] == _TEXT]}


_MLP = ("feed_forward.w1", "feed_forward.w2", "feed_forward.w3")
_NAMES = LayerNames(  # of its makers' and ComfyUI's models, which has fused projections
    "diffusion_model.",
    names={
        "layers.{}.attention.to_out.0": "layers.{}.attention.o",
        **{f"layers.{{}}.{name}": f"layers.{{}}.{name}" for name in (*_MLP, "adaln_modulation")},
    },
    fused={tuple(f"layers.{{}}.attention.to_{name}" for name in "qkv"): "layers.{}.attention.qkv"},
)

IDEOGRAM_4 = Family(
    name="ideogram4",
    label="Ideogram 4",
    pipeline="Ideogram4Pipeline",
    denoisers=("transformer",),
    guidance_denoisers=("unconditional_transformer",),
    text=TextEncoding(
        outputs=("prompt_embeds", None, None, "indicator"),
        encoders=("text_encoder",),
        tokenizers=("tokenizer",),
        options={"max_sequence_length": _MAX_LENGTH, "grid_h": 0, "grid_w": 0},  # without positions of an image
        select=_without_padding,
        collate="pad",
        padded=("prompt_embeds",),
        mask="mask",
    ),
    objective="flow",
    align=16,
    codec=patched_codec(patch_cells, unpatch_cells),
    inputs=_inputs,
    output=lambda call, output: -output[:, -call.latents.shape[1] :],
    pack=pack_cells,
    unpack=unpack_cells,
    patch_size=1,
    # no training code is public; of its sampling, in diffusers' Ideogram4Pipeline: shifted by sqrt(pixels / 512 / 512)
    training_timesteps=TrainingTimesteps(std=1.5, shift=ResolutionShift(0.0, 1.0, base_tokens=1024, law="root")),
    call_options={"guidance_schedule": None},  # which would exclude a guidance scale
    unused=("prompt_enhancer_head",),
    can_train_vae=True,
    lora_targets={"transformer": tuple(f"attention.{name}" for name in ("to_q", "to_k", "to_v", "to_out.0"))},
    lora_mlp={"transformer": _MLP},
    lora_blocks={"transformer": ("layers",)},
    layer_names={"transformer": _NAMES},
    latent_bytes_per_pixel=128 * 4 / 16**2,
    caption_bytes=256 * 53248 * 4,  # for a caption of about 256 tokens
    typical_bytes=109e9,
    partly_unused=("text_encoder",),  # its vision tower and the norm behind the layers that the denoiser reads
    further_classes={"tokenizer": ("transformers.AutoTokenizer",)},
    published=PublishedModel(
        denoiser=Component("diffusers.Ideogram4Transformer2DModel"),
        vae=Component("diffusers.AutoencoderKLFlux2"),
        text_encoders=((QWEN_3_VL_8B, _MAX_LENGTH),),
        text={"prompt_embeds": (256, 53248)},
        side=1024,
    ),
    remarks="""Published in 8 and 4 bits only. A LoRA trains on such a folder of diffusers' format, such as
    `ideogram-ai/ideogram-4-nf4-diffusers`; a full fine-tune needs one that is not quantized. Its second transformer,
    which guidance uses, is saved as it was.""",
)
