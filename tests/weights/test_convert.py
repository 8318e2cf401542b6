"""Conversion there and back gives every tensor back; what fits nowhere is refused in one sentence."""

import json

import diffusers
import pytest
import torch
from peft import LoraConfig

from modules.families.registry import FAMILIES
from modules.weights.convert import convert
from modules.weights.errors import WeightsError
from modules.weights.lora_files import AdaptedModel, load_lora, save_lora
from modules.weights.lora_layers import LoraMetadata
from modules.weights.safe import load_tensors, read_header, save_tensors

MODELS = {"tiny_sd15": "sd15", "tiny_sd15_v": "sd15", "tiny_sdxl": "sdxl", "tiny_sdxl_v": "sdxl", "tiny_sd3": "sd3"}
MODELS["tiny_sd35"] = "sd3"


def weights(folder):
    """Every tensor of a diffusers folder by its component and name."""
    files = sorted(folder.glob("*/*.safetensors"))
    return {f"{file.parent.name}.{name}": tensor for file in files for name, tensor in load_tensors(file).items()}


def assert_equal(got, expected):
    assert got.keys() == expected.keys()
    assert [name for name in expected if not torch.equal(got[name], expected[name])] == []


def named_as_saved(tensors):
    """transformers writes a CLIP as it is in memory; we write it with the level that other readers look for."""
    return {name.replace(".text_model.", "."): tensor for name, tensor in tensors.items()}


@pytest.mark.parametrize("model", MODELS)
def test_a_folder_that_becomes_a_file_and_a_folder_again_is_the_same(model, tmp_path, request):
    folder = request.getfixturevalue(model)
    file = convert(str(folder), tmp_path / "x.safetensors")
    back = convert(str(file), tmp_path / "back", config_folder=str(folder))
    assert_equal(named_as_saved(weights(back)), named_as_saved(weights(folder)))
    again = convert(str(back), tmp_path / "again.safetensors")
    assert_equal(load_tensors(again), load_tensors(file))
    index = json.loads((back / "model_index.json").read_text())
    assert index["_class_name"] == FAMILIES[MODELS[model]].pipeline


def test_the_type_is_the_sources_unless_another_is_asked_for(tiny_sd15, tmp_path):
    half = convert(str(tiny_sd15), tmp_path / "half.safetensors", dtype="float16")
    same = convert(str(half), tmp_path / "same", config_folder=str(tiny_sd15))
    full = convert(str(half), tmp_path / "full", dtype="float32", config_folder=str(tiny_sd15))
    file = convert(str(half), tmp_path / "full.safetensors", dtype="float32", config_folder=str(tiny_sd15))
    assert file.is_file()
    for path, expected in ((half, "F16"), (same, "F16"), (full, "F32"), (file, "F32")):
        files = path.glob("*/*.safetensors") if path.is_dir() else [path]
        types = {e["dtype"] for file in files for name, e in read_header(file).items() if name != "__metadata__"}
        assert types == {expected}


def adapted(family, folder, **options):
    pipe = getattr(diffusers, FAMILIES[family].pipeline).from_pretrained(folder)
    components = {}
    torch.manual_seed(1)
    for name, targets in FAMILIES[family].lora_targets.items():
        module = components[name] = getattr(pipe, name)
        module.add_adapter(LoraConfig(r=4, lora_alpha=8, target_modules=list(targets), **options))
        for key, parameter in module.named_parameters():
            if "lora_" in key:
                parameter.data.normal_(0.0, 0.1)
    return pipe, components


LORAS = {"sd15": "tiny_sd15", "sdxl": "tiny_sdxl", "sd3": "tiny_sd3"}


@pytest.mark.parametrize("options", [{}, {"use_dora": True}, {"rank_pattern": {".*attn.*to_k": 2}}], ids=str)
@pytest.mark.parametrize("family", LORAS)
def test_a_lora_there_and_back_is_the_same_tensor_by_tensor(family, options, tmp_path, request):
    pipe, components = adapted(family, request.getfixturevalue(LORAS[family]), **options)
    metadata = {"trigger": "cat", "family": family}
    of_diffusers, of_kohya = save_lora(
        tmp_path / "x", AdaptedModel(components, type(pipe)), "both", metadata=LoraMetadata(metadata)
    )
    to_kohya = convert(str(of_diffusers), tmp_path / "k.safetensors")
    to_diffusers = convert(str(of_kohya), tmp_path / "d.safetensors")
    assert_equal(load_tensors(to_kohya), load_tensors(of_kohya))
    assert_equal(load_tensors(to_diffusers), load_tensors(of_diffusers))
    assert_equal(load_tensors(convert(str(to_kohya), tmp_path / "dd.safetensors")), load_tensors(to_diffusers))
    for file in (to_kohya, to_diffusers):
        assert read_header(file)["__metadata__"]["trigger"] == "cat"


def test_a_converted_lora_has_its_strength_in_plain_diffusers(tiny_sdxl, tmp_path):
    patterns = {"rank_pattern": {"mid_block.*": 2}, "alpha_pattern": {"mid_block.*": 5}}
    reference, components = adapted("sdxl", tiny_sdxl, **patterns)
    (of_kohya,) = save_lora(tmp_path / "x", AdaptedModel(components, type(reference)), "single_file")
    converted = convert(str(of_kohya), tmp_path / "d.safetensors")
    pipes = [type(reference).from_pretrained(tiny_sdxl) for _ in range(2)]
    pipes[0].load_lora_weights(tmp_path, weight_name=converted.name)
    load_lora(pipes[1], of_kohya)
    ids = torch.arange(77)[None]
    generator = torch.Generator().manual_seed(0)
    inputs = {
        "sample": torch.randn(1, 4, 16, 24, generator=generator),
        "timestep": 321,
        "encoder_hidden_states": torch.randn(1, 5, 80, generator=generator),
        "added_cond_kwargs": {"text_embeds": torch.randn(1, 48, generator=generator), "time_ids": torch.ones(1, 6)},
    }
    with torch.no_grad():
        expected = reference.unet(**inputs).sample, reference.text_encoder_2(ids).text_embeds
        for pipe in pipes:
            got = pipe.unet(**inputs).sample, pipe.text_encoder_2(ids).text_embeds
            assert max((a - b).abs().max() for a, b in zip(got, expected, strict=True)) <= 1e-5


def refusal(source, target, **options):
    with pytest.raises(WeightsError) as caught:
        convert(str(source), target, **options)
    assert not target.exists()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_can_not_be_converted_is_refused(tiny_sd15, tmp_path):
    target = tmp_path / "y.safetensors"
    save_tensors(tmp_path / "flux.safetensors", {"double_blocks.0.img_attn.x": torch.ones(1)})
    message = refusal(tmp_path / "flux.safetensors", target)
    assert "is a FLUX.1 model, which can't be converted; choose a model or a LoRA of another family (" in message
    assert "no such folder or file" in refusal(tmp_path / "none", target)
    assert "on this machine" in refusal("some/model", target)
    assert "its family is sd15, not sdxl" in refusal(tiny_sd15, target, family="sdxl")
    assert "choose a name with this extension" in refusal(tiny_sd15, tmp_path / "y")
    with pytest.raises(WeightsError, match="already exists"):
        convert(str(tiny_sd15), tmp_path)


def test_a_lora_is_converted_as_its_own_family_only(tmp_path):
    target = tmp_path / "y.safetensors"
    name = "unet.mid_block.attentions.0.transformer_blocks.1.attn1.to_q"
    save_tensors(tmp_path / "xl.safetensors", {f"{name}.lora_A.weight": torch.ones(4, 8)})
    assert "is a LoRA for sdxl; choose a LoRA for sd15" in refusal(tmp_path / "xl.safetensors", target, family="sd15")
    assert f"lacks half of the LoRA on '{name}'" in refusal(tmp_path / "xl.safetensors", target)
    layer = "lora_te1_text_model_encoder_layers_0_mlp_fc1"
    halves = {f"{layer}.lora_down.weight": torch.ones(4, 8), f"{layer}.lora_up.weight": torch.ones(8, 4)}
    save_tensors(tmp_path / "text.safetensors", halves)
    message = refusal(tmp_path / "text.safetensors", target)
    assert "specify the family: docs/families.md lists them." in message
    convert(str(tmp_path / "text.safetensors"), target, family="sdxl")
    layer = "text_encoder.text_model.encoder.layers.0.mlp.fc1"
    assert set(load_tensors(target)) == {f"{layer}.lora_A.weight", f"{layer}.lora_B.weight"}
    loha = {"lora_unet_mid_block_attentions_0_proj_in.hada_w1_a": torch.ones(4, 4)}
    save_tensors(tmp_path / "loha.safetensors", loha)
    (tmp_path / "y.safetensors").unlink()
    message = refusal(tmp_path / "loha.safetensors", target, family="sd15")
    assert "hada_w1_a' do not belong to a LoRA for sd15" in message
