"""A transformer from one file of ComfyUI: in the layout of its makers, with a prefix, and in float8."""

from __future__ import annotations

import json

import pytest
import torch

from modules.config.ModelConfig import ModelConfig
from modules.config.quantizations import QUANTIZATIONS
from modules.families.registry import FAMILIES
from modules.layers.QuantizedLinear import QuantizedLinear
from modules.weights.BaseModel import BaseModel
from modules.weights.errors import WeightsError
from modules.weights.quantization import quantizable_layers
from modules.weights.safe import load_tensors, save_tensors
from modules.weights.ScaledRows import ScaledRows

PREFIX = "model.diffusion_model."
# diffusers' name -> that of the makers, in this order; read by `diffusers.loaders.single_file_utils`
ORIGINAL = {
    "wan21_flf2v": {
        "condition_embedder.image_embedder.norm1": "img_emb.proj.0",
        "condition_embedder.image_embedder.ff.net.0.proj": "img_emb.proj.1",
        "condition_embedder.image_embedder.ff.net.2": "img_emb.proj.3",
        "condition_embedder.image_embedder.norm2": "img_emb.proj.4",
        "condition_embedder.image_embedder.pos_embed": "img_emb.emb_pos",
        "norm_added_k": "norm_k_img",
        "add_k_proj": "k_img",
        "add_v_proj": "v_img",
    },
    "wan21": {
        "condition_embedder.time_embedder.linear_1": "time_embedding.0",
        "condition_embedder.time_embedder.linear_2": "time_embedding.2",
        "condition_embedder.text_embedder.linear_1": "text_embedding.0",
        "condition_embedder.text_embedder.linear_2": "text_embedding.2",
        "condition_embedder.time_proj": "time_projection.1",
        "attn1": "self_attn",
        "attn2": "cross_attn",
        ".to_out.0.": ".o.",
        ".to_": ".",
        "ffn.net.0.proj": "ffn.0",
        "ffn.net.2": "ffn.2",
        "norm2": "norm_",
        "norm3": "norm2",
        "norm_.": "norm3.",
        "proj_out": "head.head",
    },
    "zimage": {
        "all_final_layer.2-1.": "final_layer.",
        "all_x_embedder.2-1.": "x_embedder.",
        ".to_out.0.": ".out.",
        ".norm_q.": ".q_norm.",
        ".norm_k.": ".k_norm.",
    },
    "ltx_video": {"proj_in": "patchify_proj", "time_embed": "adaln_single", "norm_q": "q_norm", "norm_k": "k_norm"},
    "qwen_image": {},
}
ORIGINAL["wan21_flf2v"] |= ORIGINAL["wan21"]


def weights_of(folder):
    return load_tensors(folder / "transformer" / "diffusion_pytorch_model.safetensors")


def original(family, tensors):
    """The tensors with the names of the makers."""
    renamed = {}
    for name, tensor in tensors.items():
        for ours, theirs in ORIGINAL[family].items():
            name = name.replace(ours, theirs)
        if family.startswith("wan21") and name.endswith("scale_shift_table"):
            name = ("" if name.startswith("blocks") else "head.") + name.replace("scale_shift_table", "modulation")
        renamed[name] = tensor
    for name in [name for name in renamed if name.endswith(".attention.to_q.weight")]:
        parts = [renamed.pop(name.replace("to_q", part)) for part in ("to_q", "to_k", "to_v")]
        renamed[name.replace("to_q", "qkv")] = torch.cat(parts)
    return renamed


def open_base(folder, family, file, **settings):
    model = ModelConfig(base=str(folder), denoiser=str(file), **settings)
    base = BaseModel(FAMILIES[family], model, torch.device("cpu"))
    base.require("transformer")
    return base.module("transformer")


def refusal(folder, family, file) -> str:
    with pytest.raises(WeightsError) as caught:
        open_base(folder, family, file)
    message = str(caught.value)
    assert message.startswith(f"model.denoiser '{file}': can't be read as the ")
    assert message.endswith("; choose one that was made for this kind of model.")
    return message


@pytest.mark.parametrize("prefix", ["", PREFIX])
@pytest.mark.parametrize("family", ORIGINAL)
def test_a_file_of_the_makers_gives_the_weights_and_dtypes_of_a_folder(family, prefix, tiny_model, tmp_path):
    folder = tiny_model(family)
    changed = {name: tensor + 1 for name, tensor in weights_of(folder).items()}
    tensors = {prefix + name: tensor for name, tensor in original(family, changed).items()}
    assert tensors.keys() != changed.keys() or (family, prefix) == ("qwen_image", "")
    if prefix:
        tensors["vae.decoder.conv_in.weight"] = torch.ones(1)  # of the whole model
    save_tensors(tmp_path / "file.safetensors", tensors)
    loaded = open_base(folder, family, tmp_path / "file.safetensors", weight_dtype="bfloat16").state_dict()
    plain = open_base(folder, family, "", weight_dtype="bfloat16").state_dict()
    assert {name: value.dtype for name, value in loaded.items()} == {n: value.dtype for n, value in plain.items()}
    for name, value in loaded.items():
        assert torch.equal(value, changed[name].to(value.dtype)), name


@pytest.mark.parametrize(("scale", "marks"), [(".scale_weight", ["scaled_fp8"]), (".weight_scale", [])])
def test_float8_weights_are_multiplied_by_their_scales(scale, marks, tiny_model, tmp_path):
    folder = tiny_model("qwen_image")
    exact, tensors = weights_of(folder), {}
    for name, tensor in exact.items():
        tensors[name] = tensor
        if tensor.dim() == 2:
            factor = tensor.abs().max() / 400
            tensors[name] = (tensor / factor).to(torch.float8_e4m3fn)
            tensors[name.removesuffix(".weight") + scale] = factor
    tensors |= {mark: torch.empty(2, dtype=torch.float8_e4m3fn) for mark in marks}
    if not marks:  # as ComfyUI has written its files since 2025
        tensors["proj_out.comfy_quant"] = torch.tensor(list(json.dumps({"format": "float8_e4m3fn"}).encode()))
    save_tensors(tmp_path / "file.safetensors", tensors)
    for name, value in open_base(folder, "qwen_image", tmp_path / "file.safetensors").state_dict().items():
        assert (value - exact[name]).norm() <= 0.04 * exact[name].norm(), name  # three bits behind the point


H4 = torch.tensor([[1.0, 1, 1, -1], [1, 1, -1, 1], [1, -1, 1, 1], [-1, 1, 1, 1]])  # Comfy's own, of size 4


@pytest.mark.parametrize(
    ("place", "turned", "rows"),
    [("tensors", 0, True), ("tensors", 0, False), ("tensors", 4, True), ("metadata", 16, True)],
)
def test_int8_weights_of_comfyui_are_scaled_and_turned_back(place, turned, rows, tiny_model, tmp_path):
    folder = tiny_model("qwen_image")
    exact, tensors, layers = weights_of(folder), {}, {}
    for name, tensor in exact.items():
        tensors[PREFIX + name] = tensor
        if tensor.dim() == 2 and "blocks." in name:
            layer, how = PREFIX + name.removesuffix(".weight"), {"format": "int8_tensorwise"}
            if turned:
                how |= {"convrot": True, "convrot_groupsize": turned}
                matrix = (H4 if turned == 4 else torch.kron(H4, H4)) / turned**0.5
                tensor = (tensor.reshape(len(tensor), -1, turned) @ matrix.T).reshape(tensor.shape)
            scale = (tensor.abs().amax(1, keepdim=True) if rows else tensor.abs().max()) / 127
            tensors[PREFIX + name] = (tensor / scale).round().to(torch.int8)
            tensors[f"{layer}.weight_scale"], layers[layer] = scale, how
    metadata = {"_quantization_metadata": json.dumps({"layers": layers})} if place == "metadata" else {}
    if place == "tensors":
        texts = {f"{layer}.comfy_quant": json.dumps(how).encode() for layer, how in layers.items()}
        tensors |= {name: torch.tensor(list(text), dtype=torch.uint8) for name, text in texts.items()}
    save_tensors(tmp_path / "file.safetensors", tensors, metadata)
    for name, value in open_base(folder, "qwen_image", tmp_path / "file.safetensors").state_dict().items():
        assert (value - exact[name]).norm() <= 0.02 * exact[name].norm(), name


CODES = {"float8": ("float8_e4m3fn", torch.float8_e4m3fn, 400), "int8": ("int8_tensorwise", torch.int8, 127)}


def quantized_file(path, tensors, kind, rows, scaled=True, rotation=0):
    """Writes a file of ComfyUI with all matrices in a format; returns the codes and scales of each, by its name.

    rotation: of those that are as wide, in groups of 16.
    """
    called, dtype, largest = CODES[kind]
    written, held = {}, {}
    for name, tensor in tensors.items():
        written[name] = tensor
        if tensor.dim() == 2 and name.endswith(".weight"):
            how = {"format": called}
            if rotation and tensor.shape[1] % rotation == 0:
                how |= {"convrot": True, "convrot_groupsize": rotation}
                turned = tensor.reshape(len(tensor), -1, rotation) @ (torch.kron(H4, H4) / 4)
                tensor = turned.reshape(tensor.shape)
            scale = (tensor.abs().amax(1, keepdim=True) if rows else tensor.abs().max()) / largest
            codes = tensor / scale if scaled else tensor
            codes = (codes.round() if dtype == torch.int8 else codes).to(dtype)
            written[name] = codes
            held[name] = codes.view(torch.int8), scale.expand(len(codes), 1) if scaled else torch.ones(len(codes), 1)
            if scaled:
                layer = name.removesuffix(".weight")
                written[f"{layer}.weight_scale"] = scale
                written[f"{layer}.comfy_quant"] = torch.tensor(list(json.dumps(how).encode()))
    save_tensors(path, written)
    return held


@pytest.mark.parametrize(
    ("family", "kind", "rows", "scaled", "rotation"),
    [
        ("zimage", "int8", True, True, 0),  # whose queries, keys and values are one matrix in the file
        ("zimage", "int8", True, True, 16),
        ("zimage", "float8", False, True, 0),
        ("qwen_image", "float8", False, False, 0),
    ],
)
def test_layers_that_are_to_be_quantized_as_the_file_is_take_its_codes_and_scales(
    family, kind, rows, scaled, rotation, tiny_model, tmp_path
):
    folder, file = tiny_model(family), tmp_path / "file.safetensors"
    held = quantized_file(file, original(family, weights_of(folder)), kind, rows, scaled, rotation)
    options = {"weight_dtype": "bfloat16"}
    module = open_base(folder, family, file, denoiser_quantization=kind, **options)
    plain = open_base(folder, family, file, **options)
    found = {name: layer for name, layer in module.named_modules() if isinstance(layer, QuantizedLinear)}
    assert found.keys() == set(quantizable_layers(FAMILIES[family], "transformer", plain))
    for place in ("weight", "scale"):  # in the names of the file, which may have joined several
        for name, tensor in original(
            family, {f"{name}.weight": getattr(layer, place) for name, layer in found.items()}
        ).items():
            assert torch.equal(tensor, held[name][place == "scale"]), name
    exact = plain.state_dict()
    for name, value in module.state_dict().items():
        if name.rpartition(".")[0] not in found:
            assert torch.equal(value, exact[name]), name
    for name, layer in found.items():
        assert layer.rotation == (0 if rotation and layer.in_features % rotation else rotation)
        inputs = torch.randn(4, layer.in_features)
        torch.testing.assert_close(layer(inputs), inputs @ layer.dequantize(torch.float32).T + biased(layer))
        assert (layer.dequantize() - exact[f"{name}.weight"]).norm() <= 0.01 * exact[f"{name}.weight"].norm()


def biased(layer):
    return 0 if layer.bias is None else layer.bias.float()


def test_a_rotated_file_is_used_as_it_is_also_where_the_settings_rotate(tiny_model, tmp_path):
    folder, file = tiny_model("qwen_image"), tmp_path / "file.safetensors"
    held = quantized_file(file, weights_of(folder), "int8", True, rotation=16)
    options = {"quantized_matmul": "on", "quantized_matmul_size": 0, "quantized_matmul_rotation": True}
    module = open_base(folder, "qwen_image", file, denoiser_quantization="int8", **options)
    layers = {name: layer for name, layer in module.named_modules() if isinstance(layer, QuantizedLinear)}
    assert all(layer.in_8_bits and layer.rotation == 16 for layer in layers.values())
    assert all(torch.equal(layer.weight, held[f"{name}.weight"][0]) for name, layer in layers.items())
    assert layers


@pytest.mark.parametrize("quantization", ["float8", "nf4"])
def test_a_file_in_another_format_than_the_layers_is_quantized_anew(quantization, tiny_model, tmp_path):
    if package := QUANTIZATIONS[quantization].package:
        pytest.importorskip(package, reason="an optional package")
    folder, file = tiny_model("qwen_image"), tmp_path / "file.safetensors"
    quantized_file(file, weights_of(folder), "int8", True)
    module = open_base(folder, "qwen_image", file, denoiser_quantization=quantization)
    layers = [layer for layer in module.modules() if isinstance(layer, QuantizedLinear)]
    assert {layer.quantization for layer in layers} == {quantization}


def test_a_file_that_is_not_rotated_is_quantized_anew_where_the_settings_rotate(tiny_model, tmp_path):
    folder, file = tiny_model("qwen_image"), tmp_path / "file.safetensors"
    quantized_file(file, weights_of(folder), "int8", True)
    options = {"quantized_matmul": "on", "quantized_matmul_size": 0, "quantized_matmul_rotation": True}
    rotated, plain = (
        open_base(folder, "qwen_image", file, denoiser_quantization="int8", **each) for each in (options, {})
    )
    for name, layer in rotated.named_modules():
        if isinstance(layer, QuantizedLinear) and layer.in_8_bits:
            assert layer.rotation
            weight = plain.get_submodule(name).dequantize()
            assert (layer.dequantize() - weight).norm() <= 0.01 * weight.norm()


def test_rows_stay_quantized_when_they_are_divided_and_joined_and_give_values_for_all_else():
    codes, scale = torch.randint(-127, 128, (6, 4), dtype=torch.int8), torch.rand(6, 1)
    rows, turned = (ScaledRows(codes, scale, torch.bfloat16, rotation) for rotation in (0, 4))
    values = rows.values()
    assert torch.equal(values, (codes.float() * scale).bfloat16())
    assert turned.chunk(3)[0].rotation == torch.cat([turned, turned]).rotation == 4
    assert type(torch.cat([rows, turned])) is torch.Tensor
    first, second, third = rows.chunk(3)
    swapped = torch.cat([second, first, third[1:]])
    assert isinstance(swapped, ScaledRows)
    assert torch.equal(swapped.codes, codes[[2, 3, 0, 1, 5]])
    assert torch.equal(swapped.scale, scale[[2, 3, 0, 1, 5]])
    for operation in (
        lambda one: one[:, 1:3],
        lambda one: torch.cat([one, one], dim=1),
        lambda one: one.split(2, dim=-1)[1],
        lambda one: one.t().contiguous(),
        lambda one: one.reshape(3, 8) + 1,
    ):
        assert type(operation(rows)) is torch.Tensor
        assert torch.equal(operation(rows), operation(values))


@pytest.mark.parametrize(
    ("how", "dtype", "reason"),
    [
        ({"format": "nvfp4"}, torch.uint8, "is quantized to nvfp4 with scales of the shape (), which can't be read"),
        ({"format": "int8_blockwise"}, torch.int8, "is quantized to int8_blockwise with scales of the shape (), "),
        (
            {"format": "int8_tensorwise", "convrot": True, "convrot_groupsize": 8},
            torch.int8,
            "is quantized to int8_tensorwise and rotated in groups of 8, which can't be read; choose the file in ",
        ),
    ],
)
def test_other_formats_of_comfyui_are_refused_by_name(how, dtype, reason, tiny_model, tmp_path):
    folder = tiny_model("qwen_image")
    tensors = weights_of(folder)
    layer = "transformer_blocks.0.attn.to_q"
    tensors[f"{layer}.weight"] = tensors[f"{layer}.weight"].to(dtype)
    tensors[f"{layer}.weight_scale"] = torch.ones(())
    tensors[f"{layer}.comfy_quant"] = torch.tensor(list(json.dumps(how).encode()), dtype=torch.uint8)
    save_tensors(tmp_path / "file.safetensors", tensors)
    assert f"(its {layer}.weight {reason}" in refusal(folder, "qwen_image", tmp_path / "file.safetensors")


def test_what_can_not_be_read_is_refused_in_one_sentence(tiny_model, tmp_path):
    file = tmp_path / "file.safetensors"
    dev, schnell, cogview = (tiny_model(name) for name in ("flux1", "flux1 schnell", "cogview4"))
    save_tensors(file, weights_of(dev))
    expected = "(it has a time_text_embed.guidance_embedder.linear_1.bias, and that of model.base has none)"
    assert expected in refusal(schnell, "flux1", file)
    save_tensors(file, weights_of(schnell))
    assert "(its weights lack time_text_embed.guidance_embedder.linear_1.weight)" in refusal(dev, "flux1", file)
    save_tensors(file, {"x.weight": torch.ones(2)})
    assert "(its tensors are not named as those of this kind are, such as context_embedder.bias)" in refusal(
        dev, "flux1", file
    )
    assert "(this kind is read with diffusers' own names of tensors only, as " in refusal(cogview, "cogview4", file)
    packed = {name: tensor.to(torch.uint8) if tensor.dim() == 2 else tensor for name, tensor in weights_of(dev).items()}
    save_tensors(file, packed)
    assert "is quantized to uint8, which can't be read; choose the file in bfloat16, " in refusal(dev, "flux1", file)
    wider = {
        name: torch.cat([tensor] * 2) if name == "x_embedder.bias" else tensor
        for name, tensor in weights_of(dev).items()
    }
    save_tensors(file, wider)
    assert "(its x_embedder.bias has the shape (" in refusal(dev, "flux1", file)
