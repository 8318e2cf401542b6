"""Files of one part in the names of their makers, of ComfyUI and of trainers: each tensor finds its place."""

from __future__ import annotations

import json
import re

import diffusers
import pytest
import torch
from accelerate import init_empty_weights

from modules.families.registry import FAMILIES
from modules.weights.errors import WeightsError
from modules.weights.own_parts import load_own_part
from modules.weights.part_names import PREFIXES, in_diffusers_names
from modules.weights.safe import load_tensors, save_tensors
from tests.support.makers_names import fused, of_flux, renamed

WEIGHTS = "diffusion_pytorch_model.safetensors"


def read(folder, tensors, file, setting="model.denoiser"):
    """The weights that a part of the kind in `folder` has after it was read from a file with these tensors."""
    save_tensors(file, tensors)
    kind = json.loads((folder / "config.json").read_text())["_class_name"]
    name = "vae" if setting == "model.vae" else "unet"
    return load_own_part(FAMILIES["sd15"], name, getattr(diffusers, kind), file, folder, torch.float32).state_dict()


def assert_equal(got, expected):
    assert got.keys() == expected.keys()
    assert [name for name, tensor in expected.items() if not torch.equal(got[name], tensor)] == []


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_prefix_of_any_program_is_taken_off(prefix, tiny_model, tmp_path):
    folder = tiny_model("qwen_image") / "transformer"
    changed = {name: tensor + 1 for name, tensor in load_tensors(folder / WEIGHTS).items()}
    tensors = {prefix + name: tensor for name, tensor in changed.items()}
    tensors |= {"vae.x": torch.ones(1), "text_encoders.model.x": torch.ones(1)}  # of the whole model
    assert_equal(read(folder, tensors, tmp_path / "file.safetensors"), changed)


# diffusers' names -> Tencent's, in this order
REFINER = [
    ("context_embedder.time_text_embed.timestep_embedder.linear_1", "txt_in.t_embedder.mlp.0"),
    ("context_embedder.time_text_embed.timestep_embedder.linear_2", "txt_in.t_embedder.mlp.2"),
    ("context_embedder.time_text_embed.text_embedder", "txt_in.c_embedder"),
    ("context_embedder.proj_in", "txt_in.input_embedder"),
    ("context_embedder.token_refiner.refiner_blocks", "txt_in.individual_token_refiner.blocks"),
]
TENCENT = [
    ("timestep_embedder_r.linear_1", "time_r_in.mlp.0"),
    ("timestep_embedder_r.linear_2", "time_r_in.mlp.2"),
    ("timestep_embedder.linear_1", "time_in.mlp.0"),
    ("timestep_embedder.linear_2", "time_in.mlp.2"),
    ("guidance_embedder.linear_1", "guidance_in.mlp.0"),
    ("guidance_embedder.linear_2", "guidance_in.mlp.2"),
    ("text_embedder.linear_1", "vector_in.in_layer"),
    ("text_embedder.linear_2", "vector_in.out_layer"),
    ("time_text_embed.", ""),
    ("time_guidance_embed.", ""),
    ("time_embed.", ""),
    ("x_embedder", "img_in"),
    ("cond_type_embed.", "cond_type_embedding."),
    ("image_embedder.norm_in", "vision_in.proj.0"),
    ("image_embedder.linear_1", "vision_in.proj.1"),
    ("image_embedder.linear_2", "vision_in.proj.3"),
    ("image_embedder.norm_out", "vision_in.proj.4"),
    ("context_embedder_2.norm", "byt5_in.layernorm"),
    ("context_embedder_2.linear_", "byt5_in.fc"),
    ("norm1_context.linear", "txt_mod.linear"),
    ("norm1.linear", "img_mod.linear"),
    ("norm.linear", "modulation.linear"),
    ("attn.norm_added_q", "txt_attn_q_norm"),
    ("attn.norm_added_k", "txt_attn_k_norm"),
    ("attn.to_add_out", "txt_attn_proj"),
    ("ff_context.net.0.proj", "txt_mlp.fc1"),
    ("ff_context.net.2", "txt_mlp.fc2"),
]
# ComfyUI's own replacements, in this order: `HunyuanVideo` in comfy/supported_models.py
COMFY = [
    ("txt_in.t_embedder.mlp.0.", "txt_in.t_embedder.in_layer."),
    ("txt_in.t_embedder.mlp.2.", "txt_in.t_embedder.out_layer."),
    ("txt_in.c_embedder.linear_1.", "txt_in.c_embedder.in_layer."),
    ("txt_in.c_embedder.linear_2.", "txt_in.c_embedder.out_layer."),
    ("_mod.linear.", "_mod.lin."),
    ("_attn_qkv.", "_attn.qkv."),
    ("mlp.fc1.", "mlp.0."),
    ("mlp.fc2.", "mlp.2."),
    ("_attn_q_norm.weight", "_attn.norm.query_norm.scale"),
    ("_attn_k_norm.weight", "_attn.norm.key_norm.scale"),
    (".q_norm.weight", ".norm.query_norm.scale"),
    (".k_norm.weight", ".norm.key_norm.scale"),
    ("_attn_proj.", "_attn.proj."),
    (".modulation.linear.", ".modulation.lin."),
    ("_in.mlp.2.", "_in.out_layer."),
    ("_in.mlp.0.", "_in.in_layer."),
]


def of_tencent(tensors, separate=False):
    refiner, double, single, others = {}, {}, {}, {}
    for name, tensor in tensors.items():
        parts = {"context_embedder.": refiner, "transformer_blocks.": double, "single_transformer_blocks.": single}
        next((part for start, part in parts.items() if name.startswith(start)), others)[name] = tensor
    swapped = {name: torch.cat(value.chunk(2)[::-1]) for name, value in others.items() if name.startswith("norm_out.")}
    others = renamed(others | swapped, ("norm_out.linear", "final_layer.adaLN_modulation.1"), *TENCENT)
    others = {name.replace("proj_out", "final_layer.linear"): tensor for name, tensor in others.items()}
    refiner = renamed(
        fused(refiner, [f".attn.to_{part}." for part in "qkv"], ".self_attn_qkv."),
        *REFINER,
        ("attn.to_out.0", "self_attn_proj"),
        ("norm_out.linear", "adaLN_modulation.1"),
        ("ff.net.0.proj", "mlp.fc1"),
        ("ff.net.2", "mlp.fc2"),
    )
    names = [("attn.to_out.0", "img_attn_proj"), ("ff.net.0.proj", "img_mlp.fc1"), ("ff.net.2", "img_mlp.fc2")]
    names += [("transformer_blocks.", "double_blocks."), ("attn.norm_", "img_attn_norm_"), *TENCENT]
    double = renamed(
        double, *TENCENT, *names, ("img_attn_norm_q", "img_attn_q_norm"), ("img_attn_norm_k", "img_attn_k_norm")
    )
    for kind, parts in {"img": [f"attn.to_{p}." for p in "qkv"], "txt": [f"attn.add_{p}_proj." for p in "qkv"]}.items():
        if separate:
            double = renamed(double, *((part, f"{kind}_attn_{p}.") for part, p in zip(parts, "qkv", strict=True)))
        else:
            double = fused(double, parts, f"{kind}_attn_qkv.")
    single = fused(single, [".attn.to_q.", ".attn.to_k.", ".attn.to_v.", ".proj_mlp."], ".linear1.")
    single = renamed(single, ("single_transformer_blocks.", "single_blocks."), ("proj_out", "linear2"), *TENCENT)
    single = renamed(single, (".attn.norm_q", ".q_norm"), (".attn.norm_k", ".k_norm"))
    return {**others, **refiner, **double, **single}


@pytest.mark.parametrize("family", ["hunyuan_video", "hunyuan_video15", "hunyuan_image"])
def test_each_layout_of_hunyuans_transformers_gives_all_weights(family, tiny_model, tmp_path):
    folder = tiny_model(family) / "transformer"
    changed = {name: tensor + torch.randn_like(tensor) for name, tensor in load_tensors(folder / WEIGHTS).items()}
    tencent = of_tencent(changed)
    assert "double_blocks.0.img_attn_qkv.weight" in tencent
    assert "txt_in.individual_token_refiner.blocks.0.self_attn_qkv.bias" in tencent
    assert not any("transformer_blocks" in name or "embedder_" in name or "norm_out" in name for name in tencent)
    comfy = {f"model.model.{name}": tensor for name, tensor in renamed(tencent, *COMFY).items()}
    assert "model.model.double_blocks.0.img_attn.norm.query_norm.scale" in comfy
    assert "model.model.txt_in.t_embedder.in_layer.weight" in comfy
    later = {name.replace("_norm.scale", "_norm.weight"): tensor for name, tensor in comfy.items()}
    for number, tensors in enumerate((tencent, of_tencent(changed, separate=True), comfy, later)):
        assert_equal(read(folder, tensors, tmp_path / f"{number}.safetensors"), changed)


@pytest.mark.parametrize("family", ["flux1", "flux1 schnell", "chroma", "flux2_klein"])
def test_a_transformer_of_flux_gives_all_weights_in_any_width(family, tiny_model, tmp_path):
    folder = tiny_model(family) / "transformer"
    changed = {name: tensor + torch.randn_like(tensor) for name, tensor in load_tensors(folder / WEIGHTS).items()}
    makers = of_flux(changed)
    assert {"single_blocks.0.linear1.weight", "double_blocks.0.txt_attn.qkv.weight"} <= makers.keys()
    assert not any("transformer_blocks" in name or "embedder" in name or "proj_out" in name for name in makers)
    later = {name.replace("_norm.scale", "_norm.weight"): tensor for name, tensor in makers.items()}
    for number, tensors in enumerate((makers, later)):
        assert_equal(read(folder, tensors, tmp_path / f"{number}.safetensors"), changed)


def flux_names(norm):
    """The names in FLUX.1 of one block of each kind, without values, in the width that diffusers' converter expects."""
    with init_empty_weights():
        model = diffusers.FluxTransformer2DModel(num_layers=1, num_single_layers=1, guidance_embeds=True)
        linear = {"img_in": (3072, 64), "txt_in": (3072, 4096), "final_layer.linear": (64, 3072)}
        linear |= {
            "time_in.in_layer": (3072, 256),
            "vector_in.in_layer": (3072, 768),
            "guidance_in.in_layer": (3072, 256),
        }
        linear |= {f"{name}_in.out_layer": (3072, 3072) for name in ("time", "vector", "guidance")}
        linear["final_layer.adaLN_modulation.1"] = (6144, 3072)
        for kind in ("double_blocks.0.img_", "double_blocks.0.txt_"):
            linear |= {
                f"{kind}mod.lin": (18432, 3072),
                f"{kind}attn.qkv": (9216, 3072),
                f"{kind}attn.proj": (3072, 3072),
            }
            linear |= {f"{kind}mlp.0": (12288, 3072), f"{kind}mlp.2": (3072, 12288)}
        linear |= {"single_blocks.0.linear1": (21504, 3072), "single_blocks.0.linear2": (3072, 15360)}
        linear["single_blocks.0.modulation.lin"] = (9216, 3072)
        tensors = {f"{name}.weight": torch.empty(shape, device="meta") for name, shape in linear.items()}
        tensors |= {f"{name}.bias": torch.empty(shape[0], device="meta") for name, shape in linear.items()}
        for place in ("double_blocks.0.img_attn", "double_blocks.0.txt_attn", "single_blocks.0"):
            for name in ("query_norm", "key_norm"):
                tensors[f"{place}.norm.{name}.{norm}"] = torch.empty(128, device="meta")
    return model, tensors


@pytest.mark.parametrize("norm", ["scale", "weight"])
def test_the_norms_of_flux_are_found_by_the_makers_name_and_by_comfyuis(norm):
    model, tensors = flux_names(norm)
    expected = model.state_dict()
    converted = in_diffusers_names(type(model), tensors, model.config, expected.keys())
    assert {name: value.shape for name, value in converted.items()} == {n: value.shape for n, value in expected.items()}


# --- VAEs -------------------------------------------------------------------------------------------------------------


def wan_names(tensors, config):
    """Names as Wan's: of the levels as 2.2 has them, or all layers in a row as 2.1 does."""
    per_level = config["num_res_blocks"] + 2

    def number(found):
        inner = found[3] or per_level - 1
        return f"decoder.upsamples.{int(found[1]) * per_level + int(inner)}."

    result = {}
    for name, tensor in tensors.items():
        name = name.replace("down_blocks.", "downsamples.").replace("mid_block.attentions.0", "middle.1")
        name = name.replace("mid_block.resnets.0", "middle.0").replace("mid_block.resnets.1", "middle.2")
        if config.get("is_residual"):
            layers = config["num_res_blocks"]
            name = re.sub(r"(downsamples\.\d+)\.resnets", r"\1.downsamples", name)
            name = re.sub(r"(downsamples\.\d+)\.downsampler", rf"\1.downsamples.{layers}", name)
            name = re.sub(r"up_blocks\.(\d+)\.resnets", r"upsamples.\1.upsamples", name)
            name = re.sub(r"up_blocks\.(\d+)\.upsampler", rf"upsamples.\1.upsamples.{layers + 1}", name)
        name = re.sub(r"decoder\.up_blocks\.(\d+)\.(resnets\.(\d+)|upsamplers\.0)\.", number, name)
        for ours, theirs in {
            "norm1": "residual.0", "conv1": "residual.2", "norm2": "residual.3", "conv2": "residual.6",
            "conv_shortcut": "shortcut", "conv_in": "conv1", "norm_out": "head.0", "conv_out": "head.2",
            "post_quant_conv": "conv2", "quant_conv": "conv1",
        }.items():  # fmt: skip
            name = re.sub(rf"\b{ours}\.", f"{theirs}.", name)
        result[name] = tensor
    return result


def ldm_names(tensors, config):
    """Names as those of latent diffusion, with 1 x 1 convolutions for the linear layers of attention."""
    kind, last = config["_class_name"], len(config["block_out_channels"]) - 1
    result = {}
    for name, tensor in tensors.items():
        if ".attentions." in name and tensor.dim() == 2:
            tensor = tensor[..., None, None, None] if kind == "AutoencoderKLHunyuanVideo" else tensor[..., None, None]
        if kind in ("AutoencoderKLFlux2", "AutoencoderKLHunyuanVideo"):
            name = re.sub(r"up_blocks\.(\d+)", lambda found: f"up_blocks.{last - int(found[1])}", name)
        name = re.sub(r"(down|up)_blocks\.(\d+)\.resnets\.(\d+)", r"\1.\2.block.\3", name)
        name = re.sub(r"(down|up)_blocks\.(\d+)\.(down|up)samplers\.0", r"\1.\2.\1sample", name)
        name = name.replace("mid_block.resnets.0", "mid.block_1").replace("mid_block.resnets.1", "mid.block_2")
        name = name.replace("mid_block.attentions.0", "mid.attn_1").replace("group_norm", "norm")
        name = name.replace("conv_norm_out", "norm_out").replace("conv_shortcut", "nin_shortcut")
        name = re.sub(r"attn_1\.to_([qkv])\.", r"attn_1.\1.", name)
        name = re.sub(r"attn_1\.(to_out\.0|proj)\.", "attn_1.proj_out.", name)
        if kind == "AutoencoderKLFlux2":
            name = re.sub("^quant_conv", "encoder.quant_conv", re.sub("^post_quant", "decoder.post_quant", name))
        result[name] = tensor
    return result


WAN_LIKE = {"base_dim": 4, "z_dim": 4, "dim_mult": [1, 2, 4, 4], "num_res_blocks": 2}
BLOCKS = {"block_out_channels": (8, 8, 16, 16), "layers_per_block": 1, "latent_channels": 4}
VAES = {
    "Wan 2.1": ("AutoencoderKLWan", WAN_LIKE, wan_names),
    "Wan 2.2": (
        "AutoencoderKLWan",
        WAN_LIKE | {"is_residual": True, "patch_size": 2, "in_channels": 12, "out_channels": 12},
        wan_names,
    ),
    "Qwen-Image": ("AutoencoderKLQwenImage", WAN_LIKE, wan_names),
    "FLUX.2": (
        "AutoencoderKLFlux2",
        BLOCKS
        | {"norm_num_groups": 2, "down_block_types": ("DownEncoderBlock2D",) * 4}
        | {"up_block_types": ("UpDecoderBlock2D",) * 4},
        ldm_names,
    ),
    "HunyuanVideo": ("AutoencoderKLHunyuanVideo", BLOCKS | {"norm_num_groups": 4}, ldm_names),
    "HunyuanVideo 1.5": ("AutoencoderKLHunyuanVideo15", BLOCKS | {"block_out_channels": (32,) * 5}, ldm_names),
}


def saved_vae(name, folder):
    """The folder of a tiny VAE, and its weights in the names of its makers."""
    kind, config, names = VAES[name]
    torch.manual_seed(0)
    vae = getattr(diffusers, kind)(**config)
    for value in vae.state_dict().values():
        if value.is_floating_point():
            value.copy_(torch.randn_like(value).abs())
    vae.save_pretrained(folder)
    return names(vae.state_dict(), {**vae.config, "_class_name": kind}), vae.state_dict()


@pytest.mark.parametrize("name", VAES)
def test_the_vae_of_each_maker_gives_all_weights(name, tmp_path):
    tensors, expected = saved_vae(name, tmp_path)
    if name == "FLUX.2":
        assert {"encoder.quant_conv.weight", "decoder.up.3.upsample.conv.weight"} <= tensors.keys()
    assert tensors.keys() != expected.keys()
    assert_equal(read(tmp_path, tensors, tmp_path / "vae.safetensors", "model.vae"), expected)


def test_the_vae_of_hunyuan_image_gives_all_weights(tiny_model, tmp_path):
    """diffusers numbers its layers through: four levels of 1 (encoder) and 2 layers, three of which resample."""
    folder = tiny_model("hunyuan_image") / "vae"
    expected = load_tensors(folder / WEIGHTS)
    down = ["0.block.0", "0.downsample", "1.block.0", "1.downsample", "2.block.0", "2.downsample", "3.block.0"]
    up = [f"{level}.{layer}" for level in range(4) for layer in ("block.0", "block.1", "upsample")][:-1]
    tensors = {}
    for name, tensor in ldm_names(
        expected, {"_class_name": "AutoencoderKLHunyuanImage", "block_out_channels": ()}
    ).items():
        name = re.sub(r"down_blocks\.(\d+)", lambda found: f"down.{down[int(found[1])]}", name)
        name = re.sub(r"up_blocks\.(\d+)", lambda found: f"up.{up[int(found[1])]}", name)
        tensors[f"vae.{name}"] = tensor.unsqueeze(2) if name.endswith("attn_1.q.weight") else tensor
    assert {"vae.encoder.down.3.block.0.conv1.weight", "vae.decoder.up.3.block.1.conv2.bias"} <= tensors.keys()
    assert_equal(read(folder, tensors, tmp_path / "vae.safetensors", "model.vae"), expected)


def test_a_vae_of_another_kind_is_refused_by_what_it_is(tmp_path):
    flux, _ = saved_vae("FLUX.2", tmp_path / "flux")
    wan, _ = saved_vae("Wan 2.2", tmp_path / "wan")
    with pytest.raises(
        WeightsError, match=r"AutoencoderKLFlux2 of model\.base .+ it is the VAE of Wan 2\.2 5B\); choose"
    ):
        read(tmp_path / "flux", wan, tmp_path / "wan.safetensors", "model.vae")
    with pytest.raises(WeightsError, match=r"AutoencoderKLWan of model\.base .+ it is the VAE of FLUX\.2\); choose"):
        read(tmp_path / "wan", flux, tmp_path / "flux.safetensors", "model.vae")
    del flux["bn.running_var"]  # the scale of its latents
    with pytest.raises(WeightsError, match=r"its weights lack bn\.running_var"):
        read(tmp_path / "flux", flux, tmp_path / "file.safetensors", "model.vae")
