"""Files of one part in the names of their makers, of ComfyUI and of trainers: each tensor finds its place."""

from __future__ import annotations

import json

import diffusers
import pytest
import torch
from accelerate import init_empty_weights

from modules.weights.own_parts import load_own_part
from modules.weights.part_names import PREFIXES, in_diffusers_names
from modules.weights.safe import load_tensors, save_tensors

WEIGHTS = "diffusion_pytorch_model.safetensors"


def read(folder, tensors, file, setting="model.denoiser"):
    """The weights that a part of the kind in `folder` has after it was read from a file with these tensors."""
    save_tensors(file, tensors)
    kind = json.loads((folder / "config.json").read_text())["_class_name"]
    return load_own_part(getattr(diffusers, kind), file, folder, torch.float32, setting).state_dict()


def assert_equal(got, expected):
    assert got.keys() == expected.keys()
    assert [name for name, tensor in expected.items() if not torch.equal(got[name], tensor)] == []


def renamed(tensors, *replacements):
    """The tensors after plain replacements in their names, one after another."""
    result = {}
    for name, tensor in tensors.items():
        for old, new in replacements:
            name = name.replace(old, new)
        result[name] = tensor
    return result


def fused(tensors, parts, whole):
    """The tensors with those called alike, but for `parts`, in one called `whole`."""
    result = dict(tensors)
    for name in [name for name in tensors if parts[0] in name]:
        result[name.replace(parts[0], whole)] = torch.cat([result.pop(name.replace(parts[0], part)) for part in parts])
    return result


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
