"""Anima: the flow transformer of Cosmos-Predict2, for illustrations.

Its text is that of Qwen 3, seen from the token ids of T5 by a small text conditioner. CircleStone Labs 2026.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from modules.families.Family import DenoiserCall, Family
from modules.families.LayerNames import LayerNames
from modules.families.PublishedModel import Component, PublishedModel
from modules.families.qwen_image import QWEN_CODEC
from modules.families.TextEncoding import TextEncoding

if TYPE_CHECKING:
    from diffusers.models.modeling_utils import ModelMixin

_SIZES = {"num_attention_heads": 16, "attention_head_dim": 128, "num_layers": 28, "adaln_lora_dim": 256}
_POSITIONS = {"max_size": (128, 240, 240), "rope_scale": (1.0, 4.0, 4.0), "extra_pos_embed_type": None}
_LAYERS = ("to_q", "to_k", "to_v", "to_out.0")
_ATTENTION = tuple(f"{name}.{layer}" for name in ("attn1", "attn2") for layer in _LAYERS)
_BLOCK = "transformer_blocks.{}."
_NAMES = LayerNames(  # of its makers' files
    "diffusion_model.",
    names={
        **{
            f"{_BLOCK}{ours}.{layer}": f"blocks.{{}}.{theirs}.{their_layer}"
            for ours, theirs in (("attn1", "self_attn"), ("attn2", "cross_attn"))
            for layer, their_layer in zip(_LAYERS, ("q_proj", "k_proj", "v_proj", "output_proj"), strict=True)
        },
        f"{_BLOCK}ff.net.0.proj": "blocks.{}.mlp.layer1",
        f"{_BLOCK}ff.net.2": "blocks.{}.mlp.layer2",
        **{
            f"{_BLOCK}{norm}.linear_{number}": f"blocks.{{}}.adaln_modulation_{part}.{number}"
            for norm, part in (("norm1", "self_attn"), ("norm2", "cross_attn"), ("norm3", "mlp"))
            for number in (1, 2)
        },
    },
    folds_alpha=True,  # diffusers would not read it
)


def _inputs(call: DenoiserCall) -> dict[str, Any]:
    latents = call.latents
    return {
        "hidden_states": latents,
        "timestep": call.timestep / 1000,
        "encoder_hidden_states": call.text["prompt_embeds"],
        "padding_mask": latents.new_zeros(1, 1, *latents.shape[-2:]),
    }


def _resize_masks(denoiser: ModelMixin) -> None:
    """Gives diffusers' file what it takes of torchvision, which Chorus does not install: a nearest resize."""
    from types import SimpleNamespace

    from diffusers.models.transformers import transformer_cosmos
    from torch.nn.functional import interpolate

    if not hasattr(transformer_cosmos, "transforms"):
        functional = SimpleNamespace(resize=lambda mask, size, interpolation: interpolate(mask, size=size))
        modes = SimpleNamespace(NEAREST="nearest")
        vars(transformer_cosmos)["transforms"] = SimpleNamespace(functional=functional, InterpolationMode=modes)


ANIMA = Family(
    name="anima",
    label="Anima",
    pipeline="AnimaPipeline",
    other_pipelines=("AnimaModularPipeline",),
    file_mark=r"\bllm_adapter\.",
    denoisers=("transformer",),
    text=TextEncoding(
        outputs=("prompt_embeds",),
        encoders=("text_encoder",),
        tokenizers=("tokenizer", "t5_tokenizer"),
        connectors=("text_conditioner",),
        options={"max_sequence_length": 512},
        collate="group",  # seen without a mask
    ),
    objective="flow",
    align=16,
    codec=QWEN_CODEC,
    inputs=_inputs,
    adapt=_resize_masks,
    lora_targets={"transformer": _ATTENTION},
    lora_mlp={"transformer": ("ff.net.0.proj", "ff.net.2")},
    lora_blocks={"transformer": ("transformer_blocks",)},
    latent_bytes_per_pixel=16 * 4 / 8**2,
    caption_bytes=512 * 1024 * 4,
    typical_bytes=11.4e9,
    published=PublishedModel(
        denoiser=Component("diffusers.CosmosTransformer3DModel", {**_SIZES, **_POSITIONS}),  # of Cosmos-Predict2 2B
        vae=Component("diffusers.AutoencoderKLQwenImage"),
        text_encoders=(
            (
                Component(
                    "transformers.Qwen3Model",  # 0.6B
                    {
                        "hidden_size": 1024,
                        "intermediate_size": 3072,
                        "num_hidden_layers": 28,
                        "num_attention_heads": 16,
                        "num_key_value_heads": 8,
                    },
                    "Qwen3Config",
                ),
                128,
            ),
        ),
        connectors=(Component("diffusers.AnimaTextConditioner"),),
        text={"prompt_embeds": (512, 1024)},
        side=1024,
    ),
    layer_names={"transformer": _NAMES},
    remarks="""Its license excludes commercial use of the model and of what is trained from it, LoRAs included, but not
    of its images.""",
)
