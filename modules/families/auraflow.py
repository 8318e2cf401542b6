"""AuraFlow: a flow transformer of joint and single-stream blocks, with Pile-T5 and the autoencoder of SDXL.

fal 2024. Its text has no mask: embeddings of padding are zeros, which the denoiser attends to.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from modules.families.Family import Family
from modules.families.LayerNames import DIFFUSERS_FILE_WITHOUT_ALPHA, LayerNames
from modules.families.PublishedModel import KL_VAE, Component, PublishedModel
from modules.families.TextEncoding import TextEncoding

if TYPE_CHECKING:
    from torch import Tensor

_PILE_T5_XL = Component(
    "transformers.UMT5EncoderModel",
    {"vocab_size": 32128, "d_model": 2048, "d_ff": 5120, "num_layers": 24, "num_heads": 32},
    "UMT5Config",
)


def _select(pipe: Any, outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The mask has an entry for each number of the embeddings; one for each token is enough. Only the pipeline asks for
    it, and doesn't use it."""
    mask, embeds = outputs["prompt_attention_mask"], outputs["prompt_embeds"]
    return {"prompt_embeds": embeds, "prompt_attention_mask": mask.view(embeds.shape)[..., 0].contiguous()}


_ATTENTION = ("to_q", "to_k", "to_v", "to_out.0")
_CONTEXT = ("add_q_proj", "add_k_proj", "add_v_proj", "to_add_out")
_MLP = {"linear_1": "c_fc1", "linear_2": "c_fc2", "out_projection": "c_proj"}
_JOINT = {
    **{f"attn.{ours}": f"attn.w2{letter}" for ours, letter in zip(_ATTENTION, "qkvo", strict=True)},
    **{f"attn.{ours}": f"attn.w1{letter}" for ours, letter in zip(_CONTEXT, "qkvo", strict=True)},
    **{f"ff.{ours}": f"mlpX.{theirs}" for ours, theirs in _MLP.items()},
    **{f"ff_context.{ours}": f"mlpC.{theirs}" for ours, theirs in _MLP.items()},
    "norm1.linear": "modX.1",
    "norm1_context.linear": "modC.1",
}
_SINGLE = {
    **{f"attn.{ours}": f"attn.w1{letter}" for ours, letter in zip(_ATTENTION, "qkvo", strict=True)},
    **{f"ff.{ours}": f"mlp.{theirs}" for ours, theirs in _MLP.items()},
    "norm1.linear": "modCX.1",
}
_ORIGINAL_NAMES = LayerNames(
    "diffusion_model.",
    names={
        **{f"joint_transformer_blocks.{{}}.{ours}": f"double_layers.{{}}.{theirs}" for ours, theirs in _JOINT.items()},
        **{
            f"single_transformer_blocks.{{}}.{ours}": f"single_layers.{{}}.{theirs}" for ours, theirs in _SINGLE.items()
        },
    },
)

AURAFLOW = Family(
    name="auraflow",
    label="AuraFlow",
    pipeline="AuraFlowPipeline",
    file_mark=r"\bdouble_layers\.\d+\.modX\.",
    denoisers=("transformer",),
    text=TextEncoding(
        outputs=("prompt_embeds", "prompt_attention_mask", None, None),
        encoders=("text_encoder",),
        tokenizers=("tokenizer",),
        options={"max_sequence_length": 256},
        select=_select,
    ),
    objective="flow",
    align=16,
    inputs=lambda call: {
        "hidden_states": call.latents,
        "timestep": call.timestep / 1000,
        "encoder_hidden_states": call.text["prompt_embeds"],
    },
    can_train_vae=True,
    lora_targets={"transformer": tuple(f"attn.{name}" for name in (*_ATTENTION, *_CONTEXT))},
    lora_mlp={"transformer": tuple(f"{stream}.{layer}" for stream in ("ff", "ff_context") for layer in _MLP)},
    lora_blocks={"transformer": ("joint_transformer_blocks", "single_transformer_blocks")},
    layer_names={"transformer": DIFFUSERS_FILE_WITHOUT_ALPHA},
    original_names=_ORIGINAL_NAMES,
    latent_bytes_per_pixel=4 * 4 / 8**2,
    caption_bytes=256 * (2048 * 4 + 8),
    typical_bytes=32.6e9,
    published=PublishedModel(
        # from the config.json of fal/AuraFlow
        denoiser=Component("diffusers.AuraFlowTransformer2DModel", {"pos_embed_max_size": 4096}),
        vae=KL_VAE,
        text_encoders=((_PILE_T5_XL, 256),),
        text={"prompt_embeds": (256, 2048)},
        side=1024,
    ),
)
