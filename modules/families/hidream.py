"""HiDream-I1: a flow transformer whose feed-forward layers are mixtures of experts, with two CLIPs, T5 and Llama 3.1.

HiDream.ai 2025, arXiv 2505.22705. Each block sees another layer of Llama. Images are padded unless they are square.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from modules.config.errors import UserError
from modules.families import expert_routing
from modules.families.Family import DenoiserCall, Family
from modules.families.LayerNames import DIFFUSERS_FILE_WITHOUT_ALPHA
from modules.families.PublishedModel import CLIP_G, CLIP_L_PROJECTED, KL_VAE_16, T5_XXL, Component, PublishedModel
from modules.families.TextEncoding import TextEncoding

if TYPE_CHECKING:
    from diffusers.pipelines.pipeline_utils import DiffusionPipeline
    from torch import Tensor, nn

_NUM_TOKENS = 128  # of each text encoder
_STATES = 32  # outputs of the layers of Llama
_ATTENTION = ("to_q", "to_k", "to_v", "to_out")
_CLIPS = [replace(clip, config={**clip.config, "max_position_embeddings": 248}) for clip in (CLIP_L_PROJECTED, CLIP_G)]
_LLAMA_SIZES = {"vocab_size": 128256, "intermediate_size": 14336, "num_key_value_heads": 8}
_LLAMA = Component("transformers.LlamaForCausalLM", _LLAMA_SIZES, "LlamaConfig")
_SIZES = {"patch_size": 2, "in_channels": 16, "caption_channels": (4096, 4096), "axes_dims_rope": (64, 32, 32)}
_LLAMA_LAYERS = (*range(_STATES), *[_STATES - 1] * 16)  # of each block


def _inputs(call: DenoiserCall) -> dict[str, Any]:
    (height, width), most = call.shape[-2:], math.prod(call.denoiser.config.max_resolution)
    if height * width > most:
        side = 8 * math.isqrt(most)
        sizes = f"{8 * width}x{8 * height} pixels: HiDream-I1 takes images of up to {side}x{side} pixels"
        raise UserError(f"{sizes}, or other shapes of up to the same area; choose a smaller resolution.")
    return {
        "hidden_states": call.latents,
        "timesteps": call.timestep,
        "encoder_hidden_states_t5": call.text["prompt_embeds_t5"],
        "encoder_hidden_states_llama3": call.text_tensor("llama_states").transpose(0, 1),
        "pooled_embeds": call.text["pooled_prompt_embeds"],
    }


def _output(call: DenoiserCall, output: Tensor) -> Tensor:
    """[B, C, H, W]; in training mode, the denoiser gives [B, C, tokens, 4], with those that pad an image."""
    if call.denoiser.training:
        batch, channels, height, width = call.shape
        cells = output[:, :, : height * width // 4].view(batch, channels, height // 2, width // 2, 2, 2)
        output = cells.transpose(3, 4).reshape(call.shape)
    return -output


def _adapt(denoiser: nn.Module) -> None:
    """Routes tokens to experts in the same way in training and sampling; diffusers rounds each in its own way."""
    layers: list[Any] = [layer for layer in denoiser.modules() if hasattr(layer, "moe_infer")]
    for layer in layers:
        layer._force_inference_output = layer.gate._force_inference_output = True
        # diffusers' own lets no gradient through
        vars(layer)["moe_infer"] = partial(expert_routing.route_tokens, layer.experts)


def _call_attributes(pipe: DiffusionPipeline, width: int | None, height: int | None, guidance: float) -> dict[str, Any]:
    """The pipeline scales every size to the area of this one, rounding down; a little more keeps whole multiples."""
    return {"default_sample_size": math.sqrt(width * height) / pipe.vae_scale_factor + 1e-4} if width and height else {}


HIDREAM = Family(
    name="hidream",
    label="HiDream-I1",
    pipeline="HiDreamImagePipeline",
    denoisers=("transformer",),
    text=TextEncoding(
        outputs=("prompt_embeds_t5", None, "llama_states", None, "pooled_prompt_embeds", None),
        encoders=("text_encoder", "text_encoder_2", "text_encoder_3", "text_encoder_4"),
        tokenizers=("tokenizer", "tokenizer_2", "tokenizer_3", "tokenizer_4"),
        options={"max_sequence_length": _NUM_TOKENS},
        select=lambda pipe, outputs: {**outputs, "llama_states": outputs["llama_states"].transpose(0, 1)},  # rows first
    ),
    objective="flow",
    align=16,
    inputs=_inputs,
    output=_output,
    adapt=_adapt,
    call_attributes=_call_attributes,
    can_train_vae=True,
    lora_targets={"transformer": tuple(f"attn1.{name}{end}" for name in _ATTENTION for end in ("", "_t"))},
    lora_mlp={"transformer": tuple(f"{part}.w{number}" for part in ("ff_t", "shared_experts") for number in (1, 2, 3))},
    lora_blocks={"transformer": ("double_stream_blocks", "single_stream_blocks")},
    layer_names={"transformer": DIFFUSERS_FILE_WITHOUT_ALPHA},
    latent_bytes_per_pixel=16 * 4 / 8**2,
    caption_bytes=((1 + _STATES) * _NUM_TOKENS * 4096 + 2048) * 4,
    typical_bytes=123e9,
    partly_unused=("text_encoder_4",),  # its language head
    published=PublishedModel(
        denoiser=Component("diffusers.HiDreamImageTransformer2DModel", {**_SIZES, "llama_layers": _LLAMA_LAYERS}),
        vae=KL_VAE_16,
        text_encoders=tuple((encoder, _NUM_TOKENS) for encoder in (*_CLIPS, T5_XXL, _LLAMA)),
        text={"prompt_embeds_t5": (128, 4096), "llama_states": (_STATES, 128, 4096), "pooled_prompt_embeds": (2048,)},
        side=1024,
    ),
    distilled={"HiDream-I1 Dev, Fast": "HiDream-I1 Full"},
    remarks="""Published without Llama 3.1, its fourth text encoder. Load it once with diffusers, with
    `text_encoder_4=LlamaForCausalLM.from_pretrained("meta-llama/Llama-3.1-8B-Instruct")` and its tokenizer as
    `tokenizer_4`, save the pipeline with `save_pretrained` and choose that folder as `model.base`.""",
)
