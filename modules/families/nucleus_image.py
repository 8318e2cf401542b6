"""Nucleus-Image: a flow transformer with mixtures of experts, Qwen-Image's autoencoder and a layer of Qwen 3 VL.

NucleusAI 2026, arXiv 2604.12163. Image tokens attend to the text, which stays as it is in all blocks. Each expert
chooses its tokens, the same number of every image. The output is negated.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from modules.families.Family import DenoiserCall, Family
from modules.families.lora_parts import LOADED_BY_MODEL
from modules.families.PublishedModel import QWEN_3_VL_8B, Component, PublishedModel
from modules.families.qwen_image import QWEN_CODEC, pack_frame, unpack_frame
from modules.families.TextEncoding import TextEncoding

if TYPE_CHECKING:
    from diffusers.models.modeling_utils import ModelMixin
    from torch import Tensor

_ATTENTION = ("to_q", "to_k", "to_v", "to_out.0", "add_k_proj", "add_v_proj")
_NUM_TOKENS = 192  # of a caption of about 100 tokens, with the instruction before it


def _select(pipe: Any, outputs: Mapping[str, Any]) -> dict[str, Any]:
    """With a mask for texts without padding, too: others are padded to a multiple of 8."""
    import torch

    text, mask = outputs["prompt_embeds"], outputs["prompt_embeds_mask"]
    mask = torch.ones(text.shape[:2], device=text.device) if mask is None else mask
    return {"prompt_embeds": text, "prompt_embeds_mask": mask.bool()}


def _inputs(call: DenoiserCall) -> dict[str, Any]:
    _, _, frames, height, width = call.shape
    return {
        "hidden_states": call.latents,
        "timestep": call.timestep / 1000,
        "encoder_hidden_states": call.text["prompt_embeds"],
        "encoder_hidden_states_mask": call.text["prompt_embeds_mask"],
        "img_shapes": [(frames, height // 2, width // 2)] * call.shape[0],
    }


def _adapt(denoiser: ModelMixin) -> None:
    """Lets experts run in mixed precision.

    All run in one product: diffusers' loop waits for the device, and its other way takes bfloat16 only. What they give
    is added to the output of another layer, which has to have its dtype.
    """
    mixtures: list[Any] = [module for module in denoiser.modules() if hasattr(module, "shared_expert")]
    for mixture in mixtures:
        vars(mixture.experts)["forward"] = partial(_run_experts, mixture.experts)
        mixture.shared_expert.register_forward_hook(lambda layer, args, output: output.to(args[0].dtype))


def _run_experts(experts: Any, tokens: Tensor, num_tokens_per_expert: Tensor) -> Tensor:
    """tokens: sorted by expert, all of which have the same number."""
    from torch.nn.functional import silu

    gate, up = (tokens.unflatten(0, (experts.num_experts, -1)) @ experts.gate_up_proj).chunk(2, dim=-1)
    return ((silu(gate) * up) @ experts.down_proj).flatten(0, 1)


NUCLEUS_IMAGE = Family(
    name="nucleus_image",
    label="Nucleus-Image",
    pipeline="NucleusMoEImagePipeline",
    denoisers=("transformer",),
    text=TextEncoding(
        outputs=("prompt_embeds", "prompt_embeds_mask"),
        encoders=("text_encoder",),
        tokenizers=("processor",),
        options={"max_sequence_length": 1024},
        select=_select,
        collate="pad",
        padded=("prompt_embeds", "prompt_embeds_mask"),
    ),
    objective="flow",
    align=16,
    codec=QWEN_CODEC,
    inputs=_inputs,
    output=lambda call, output: -output,
    pack=pack_frame,
    unpack=unpack_frame,
    adapt=_adapt,
    lora_targets={"transformer": tuple(f"attn.{name}" for name in _ATTENTION)},
    lora_mlp={
        "transformer": ("img_mlp.net.0.proj", "img_mlp.net.2", "shared_expert.net.0.proj", "shared_expert.net.2")
    },
    lora_blocks={"transformer": ("transformer_blocks",)},
    latent_bytes_per_pixel=16 * 4 / 8**2,
    caption_bytes=_NUM_TOKENS * (4096 * 4 + 1),
    typical_bytes=101e9,
    # the norm of queries of the text, and the encoder's vision tower, language head and layers above that which is read
    partly_unused=("transformer", "text_encoder"),
    published=PublishedModel(
        denoiser=Component(
            "diffusers.NucleusMoEImageTransformer2DModel",
            {
                "out_channels": 16,
                "num_layers": 32,
                "num_key_value_heads": 4,
                "joint_attention_dim": 4096,
                "dense_moe_strategy": "leave_first_three_blocks_dense",
                "num_experts": 64,
                "capacity_factors": [0.0] * 3 + [4.0] * 2 + [2.0] * 27,
                "use_grouped_mm": True,
            },
        ),
        vae=Component("diffusers.AutoencoderKLQwenImage"),
        text_encoders=((QWEN_3_VL_8B, _NUM_TOKENS),),
        text={"prompt_embeds": (_NUM_TOKENS, 4096), "prompt_embeds_mask": (_NUM_TOKENS,)},
        side=1024,
    ),
    remarks=f"""A LoRA with the feed-forward layers adapts the expert that all tokens share, none of the others.
    {LOADED_BY_MODEL}""",
)
