"""The names of VAEs in the files of their makers and of ComfyUI, where diffusers itself has no converter.

Wan 2.1's and 2.2's and Qwen-Image's have Wan's names; FLUX.2's and Hunyuan's have those of latent diffusion ("LDM").
Source: the scripts convert_wan_to_diffusers.py, convert_flux2_to_diffusers.py and convert_hunyuan_*_to_diffusers.py of
diffusers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from modules.weights.name_rules import Rules, by_rules, rules_of

if TYPE_CHECKING:
    from torch import Tensor

# Before the names of a VAE in a whole model, in a file of ComfyUI or of the makers of HunyuanImage.
PREFIXES = ("first_stage_model.", "vae.")
# Of the encoder's and decoder's levels: Wan 2.2's, which have layers, and Wan 2.1's encoder, all layers in a row.
_WAN_LEVELS = rules_of(r"""
    \.(down|up)samples\.(\d+)\.(?:down|up)samples\.(\d+)\.(residual|shortcut)\.   .\1_blocks.\2.resnets.\3.\4.
    \.(down|up)samples\.(\d+)\.(?:down|up)samples\.\d+\.                          .\1_blocks.\2.\1sampler.
    ^encoder\.downsamples\.(\d+)\.                                                encoder.down_blocks.\1.
""")
_WAN = rules_of(r"""
    ^conv1\.           quant_conv.
    ^conv2\.           post_quant_conv.
    coder\.conv1\.     coder.conv_in.
    coder\.head\.0\.   coder.norm_out.
    coder\.head\.2\.   coder.conv_out.
    \.middle\.0\.      .mid_block.resnets.0.
    \.middle\.1\.      .mid_block.attentions.0.
    \.middle\.2\.      .mid_block.resnets.1.
    \.residual\.0\.    .norm1.
    \.residual\.2\.    .conv1.
    \.residual\.3\.    .norm2.
    \.residual\.6\.    .conv2.
    \.shortcut\.       .conv_shortcut.
""")
_LDM = rules_of(r"""
    ^(en|de)coder\.(post_quant|quant)_conv\.   \2_conv.
    \.mid\.block_1\.                           .mid_block.resnets.0.
    \.mid\.block_2\.                           .mid_block.resnets.1.
    \.mid\.attn_1\.(q|k|v)\.                   .mid_block.attentions.0.to_\1.
    \.mid\.attn_1\.                            .mid_block.attentions.0.
    \.nin_shortcut\.                           .conv_shortcut.
""")
# What diffusers calls the rest of LDM's layers in AutoencoderKL and what is like it, and in others.
_LIKE_KL = rules_of(r"""
    coder\.norm_out\.             coder.conv_norm_out.
    \.attentions\.0\.norm\.       .attentions.0.group_norm.
    \.attentions\.0\.proj_out\.   .attentions.0.to_out.0.
""")
_OTHERS: Mapping[str, Rules] = {
    "AutoencoderKLFlux2": _LIKE_KL,
    "AutoencoderKLHunyuanVideo": _LIKE_KL,
    "AutoencoderKLHunyuanVideo15": (),
    "AutoencoderKLHunyuanImage": rules_of(r"\.attentions\.0\.proj_out\.  .attentions.0.proj."),
}
_LEVEL = re.compile(r"(?P<half>en|de)coder\.(?:down|up)\.(?P<level>\d+)\.(?:block\.(?P<layer>\d+)|(?:down|up)sample)\.")


def vae_converter(class_name: str) -> Callable[..., dict[str, Tensor]] | None:
    """A converter, as diffusers has them for other models; None for classes whose names are not known here."""
    if class_name in ("AutoencoderKLWan", "AutoencoderKLQwenImage"):
        return _from_wan
    if class_name not in _OTHERS:
        return None

    def convert(checkpoint: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
        place = _flat_place if class_name == "AutoencoderKLHunyuanImage" else _place
        from_finest = _OTHERS[class_name] is _LIKE_KL  # "up" counts from the finest level, blocks from the coarsest
        converted = {}
        for name, tensor in checkpoint.items():
            found = _LEVEL.match(name)
            if found:
                name = place(found, config, checkpoint.keys(), from_finest) + name[found.end() :]
            converted[by_rules(name, (*_LDM, *_OTHERS[class_name]))] = tensor
        return converted

    return convert


def _place(found: re.Match[str], config: Mapping[str, Any], names: Collection[str], from_finest: bool) -> str:
    """The start of the name of a layer in a level."""
    level, is_encoder = int(found["level"]), found["half"] == "en"
    if from_finest and not is_encoder:
        level = len(config["block_out_channels"]) - 1 - level
    block = f"encoder.down_blocks.{level}." if is_encoder else f"decoder.up_blocks.{level}."
    if found["layer"]:
        return f"{block}resnets.{found['layer']}."
    return f"{block}{'down' if is_encoder else 'up'}samplers.0."


def _flat_place(found: re.Match[str], config: Mapping[str, Any], names: Collection[str], from_finest: bool) -> str:
    """The same where diffusers numbers all layers of a half through, in the order of the levels."""
    is_encoder = found["half"] == "en"
    step, layers = ("down", config["layers_per_block"]) if is_encoder else ("up", config["layers_per_block"] + 1)
    number = int(found["layer"] or layers)
    for level in range(int(found["level"])):
        number += layers + any(name.startswith(f"{found['half']}coder.{step}.{level}.{step}sample.") for name in names)
    return f"{found['half']}coder.{step}_blocks.{number}."


def _from_wan(checkpoint: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    per_level = config["num_res_blocks"] + 2  # in the decoder: one layer more, and what changes the resolution

    def place(found: re.Match[str]) -> str:
        block, number = divmod(int(found[1]), per_level)
        layer = "upsamplers.0" if number == per_level - 1 else f"resnets.{number}"
        return f"decoder.up_blocks.{block}.{layer}."

    converted = {}
    for name, tensor in checkpoint.items():
        name = re.sub(r"^decoder\.upsamples\.(\d+)\.", place, by_rules(name, _WAN_LEVELS))
        converted[by_rules(name, _WAN)] = tensor
    return converted
