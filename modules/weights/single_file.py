"""Writes a complete model to one file, with the tensor names that ComfyUI, A1111 and diffusers read.

U-Nets, VAEs and OpenCLIPs use the layout of the original latent diffusion ("LDM"). To read such files, use
`from_single_file` of diffusers.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modules.weights.mmdit_names import mmdit_tensors
from modules.weights.safe import save_tensors
from modules.weights.unet_names import nameless, renamed, unet_modules

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from modules.families.Family import Family

DENOISER_PREFIX = "model.diffusion_model."
VAE_PREFIX = "first_stage_model."
CLIP_PREFIX = "cond_stage_model.transformer."
OPEN_CLIP_PREFIX = "cond_stage_model.model."
SDXL_CLIP_PREFIX = "conditioner.embedders.0.transformer."
SDXL_OPEN_CLIP_PREFIX = "conditioner.embedders.1.model."
# Empty tensors from which ComfyUI detects the prediction type and noise schedule of an SDXL model.
V_PREDICTION_MARK, ZERO_SNR_MARK = "v_pred", "ztsnr"
# SD 3, whose three text encoders keep the names of transformers.
SD3_PREFIXES = {
    "text_encoder": "text_encoders.clip_l.transformer.",
    "text_encoder_2": "text_encoders.clip_g.transformer.",
    "text_encoder_3": "text_encoders.t5xxl.transformer.",
}

VAE_ATTENTION = {"group_norm": "norm", "to_q": "q", "to_k": "k", "to_v": "v", "to_out.0": "proj_out"}
OPEN_CLIP_LAYER = {
    "layer_norm1": "ln_1",
    "layer_norm2": "ln_2",
    "self_attn.out_proj": "attn.out_proj",
    "mlp.fc1": "mlp.c_fc",
    "mlp.fc2": "mlp.c_proj",
}
OPEN_CLIP_TOP = {
    "embeddings.token_embedding.weight": "token_embedding.weight",
    "embeddings.position_embedding.weight": "positional_embedding",
    "final_layer_norm.weight": "ln_final.weight",
    "final_layer_norm.bias": "ln_final.bias",
}


def save_single_file(
    path: str | Path,
    family: Family,
    components: Mapping[str, Any],
    dtype: torch.dtype | None = None,
    metadata: Mapping[str, str] | None = None,
    float8_denoiser: bool = False,
) -> None:
    """Writes a model to one safetensors file atomically.

    components: of a pipeline, by name; those that the layout can't contain are skipped.
    dtype: of floating-point tensors in the file; None keeps their dtype. float8_denoiser: the denoiser's matrices and
    convolutions are float8 (e4m3) instead, without scales; what is beyond its range becomes the largest number in it.
    Raises WeightsError if the layout has no names for some layers, and OSError if writing fails.
    """
    tensors = single_file_tensors(family, components)
    if dtype is not None:
        tensors = {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
    if float8_denoiser:
        tensors = {name: _float8(tensor) if _is_matrix(name, tensor) else tensor for name, tensor in tensors.items()}
    save_tensors(path, tensors, metadata)


def _is_matrix(name: str, tensor: Tensor) -> bool:
    return name.startswith(DENOISER_PREFIX) and tensor.dim() > 1 and tensor.is_floating_point()


def _float8(tensor: Tensor) -> Tensor:
    import torch

    limit = torch.finfo(torch.float8_e4m3fn).max  # beyond it, the cast gives nan
    return tensor.float().clamp(-limit, limit).to(torch.float8_e4m3fn)


def single_file_tensors(family: Family, components: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of a model, with the names and shapes of its family's single-file layout."""
    assert family.single_file is not None  # callers refuse families without a layout
    write = {"ldm": _sd_tensors, "sgm": _sdxl_tensors, "mmdit": _sd3_tensors}[family.single_file]
    vae = components[family.vae]
    return write(components) | vae_to_single_file(vae.state_dict(), vae.config)


def _sd_tensors(components: Mapping[str, Any]) -> dict[str, Tensor]:
    unet, text_encoder = components["unet"], components["text_encoder"]
    return {
        **unet_to_single_file(unet.state_dict(), unet.config),
        **text_encoder_to_single_file(text_encoder.state_dict(), text_encoder.config),
    }


def _sdxl_tensors(components: Mapping[str, Any]) -> dict[str, Tensor]:
    import torch

    unet, first, second = components["unet"], components["text_encoder"], components["text_encoder_2"]
    tensors = unet_to_single_file(unet.state_dict(), unet.config)
    tensors |= {f"{SDXL_CLIP_PREFIX}{name}": tensor for name, tensor in _named_clip(first).items()}
    top = {name.removeprefix("text_model."): tensor for name, tensor in second.state_dict().items()}
    projection = top.pop("text_projection.weight")
    tensors |= {f"{SDXL_OPEN_CLIP_PREFIX}{name}": tensor for name, tensor in _open_clip(top).items()}
    tensors[f"{SDXL_OPEN_CLIP_PREFIX}text_projection"] = projection.T.contiguous()
    schedule = components["scheduler"].config
    marks = {
        V_PREDICTION_MARK: schedule.prediction_type == "v_prediction",
        ZERO_SNR_MARK: schedule.get("rescale_betas_zero_snr", False),
    }
    return tensors | {mark: torch.zeros(0) for mark, is_set in marks.items() if is_set}


def _sd3_tensors(components: Mapping[str, Any]) -> dict[str, Tensor]:
    import torch

    transformer = components["transformer"].state_dict()
    tensors = {f"{DENOISER_PREFIX}{name}": tensor for name, tensor in mmdit_tensors(transformer).items()}
    for component, prefix in SD3_PREFIXES.items():
        encoder = components.get(component)
        if encoder is not None:
            named = _named_clip(encoder) if component != "text_encoder_3" else encoder.state_dict()
            tensors |= {f"{prefix}{name}": tensor for name, tensor in named.items()}
    # Other programs use the first encoder's pooled output without projection.
    projection = tensors.pop(f"{SD3_PREFIXES['text_encoder']}text_projection.weight")
    # tensors on the meta device have no values to compare
    if not projection.is_meta and not torch.equal(projection.float().cpu(), torch.eye(len(projection))):
        raise nameless("text_encoder.text_projection")
    return tensors


def _named_clip(encoder: nn.Module) -> dict[str, Tensor]:
    """The tensors of a CLIP encoder with the `text_model.` level, which transformers 5 dropped and programs expect."""
    levels = ("embeddings.", "encoder.", "final_layer_norm.")
    tensors = encoder.state_dict().items()
    return {f"text_model.{name}" if name.startswith(levels) else name: tensor for name, tensor in tensors}


def unet_to_single_file(state_dict: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of a `UNet2DConditionModel` with the names of a single file."""
    modules = unet_modules(config)
    return {DENOISER_PREFIX + renamed(name, modules): tensor for name, tensor in state_dict.items()}


def vae_to_single_file(state_dict: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of an `AutoencoderKL` with the names and shapes of a single file."""
    modules = _vae_modules(config)
    converted = {}
    for name, tensor in state_dict.items():
        if ".attentions." in name and tensor.dim() == 2:
            tensor = tensor[:, :, None, None]  # the layout has 1 x 1 convolutions instead of linear layers
        converted[VAE_PREFIX + renamed(name, modules)] = tensor
    return converted


def text_encoder_to_single_file(state_dict: Mapping[str, Tensor], config: Any) -> dict[str, Tensor]:
    """The tensors of a `CLIPTextModel` with the names of a single file.

    1.x has OpenAI's CLIP with the names of transformers; 2.x has an OpenCLIP in its own layout. They are distinguished
    by the activation: `quick_gelu` for OpenAI's models, `gelu` for OpenCLIP.
    """
    # transformers 5 dropped the `text_model.` level; files always have it
    tensors = {name.removeprefix("text_model."): tensor for name, tensor in state_dict.items()}
    if config.hidden_act == "quick_gelu":
        return {f"{CLIP_PREFIX}text_model.{name}": tensor for name, tensor in tensors.items()}
    return {OPEN_CLIP_PREFIX + name: tensor for name, tensor in _open_clip(tensors).items()}


def _vae_modules(config: Mapping[str, Any]) -> dict[str, str]:
    """Module path in diffusers -> in the single file, for all layers of a VAE."""
    modules = {"quant_conv": "quant_conv", "post_quant_conv": "post_quant_conv"}
    for half in ("encoder", "decoder"):
        modules |= {
            f"{half}.conv_in": f"{half}.conv_in",
            f"{half}.conv_norm_out": f"{half}.norm_out",
            f"{half}.conv_out": f"{half}.conv_out",
            **_vae_resnet(f"{half}.mid_block.resnets.0", f"{half}.mid.block_1"),
            **_vae_resnet(f"{half}.mid_block.resnets.1", f"{half}.mid.block_2"),
        }
        for inner, target in VAE_ATTENTION.items():
            modules[f"{half}.mid_block.attentions.0.{inner}"] = f"{half}.mid.attn_1.{target}"
    num_levels, layers = len(config["block_out_channels"]), config["layers_per_block"]
    for level in range(num_levels):
        down, up = f"encoder.down.{level}", f"decoder.up.{num_levels - 1 - level}"  # "up" counts from the finest level
        for layer in range(layers):
            modules |= _vae_resnet(f"encoder.down_blocks.{level}.resnets.{layer}", f"{down}.block.{layer}")
        for layer in range(layers + 1):
            modules |= _vae_resnet(f"decoder.up_blocks.{level}.resnets.{layer}", f"{up}.block.{layer}")
        modules[f"encoder.down_blocks.{level}.downsamplers.0.conv"] = f"{down}.downsample.conv"
        modules[f"decoder.up_blocks.{level}.upsamplers.0.conv"] = f"{up}.upsample.conv"
    return modules


def _vae_resnet(source: str, target: str) -> dict[str, str]:
    return {source: target, f"{source}.conv_shortcut": f"{target}.nin_shortcut"}


def _open_clip(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Converts to OpenCLIP's layout, in which query, key and value of a layer are concatenated to one tensor."""
    import torch

    converted = {}
    for name, tensor in tensors.items():
        if name in OPEN_CLIP_TOP:
            converted[OPEN_CLIP_TOP[name]] = tensor
            continue
        level, _, inner = name.removeprefix("encoder.layers.").partition(".")
        module, _, kind = inner.rpartition(".")
        block = f"transformer.resblocks.{level}"
        if module == "self_attn.q_proj":
            parts = [tensors[f"encoder.layers.{level}.self_attn.{part}_proj.{kind}"] for part in "qkv"]
            converted[f"{block}.attn.in_proj_{kind}"] = torch.cat(parts)
        elif module in OPEN_CLIP_LAYER:
            converted[f"{block}.{OPEN_CLIP_LAYER[module]}.{kind}"] = tensor
        elif module not in ("self_attn.k_proj", "self_attn.v_proj"):
            raise nameless(name)
    return converted
