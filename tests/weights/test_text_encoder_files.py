"""Text encoders from files of their own, as ComfyUI has them, take the place of the base model's, everywhere."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from modules.config.files import config_from_values
from modules.config.ModelConfig import ModelConfig
from modules.families.registry import FAMILIES
from modules.layers.QuantizedLinear import QuantizedLinear
from modules.trainer.checks import check_start
from modules.weights.BaseModel import BaseModel
from modules.weights.errors import WeightsError
from modules.weights.load_pipeline import load_pipeline
from modules.weights.own_parts import replaced_parts
from modules.weights.quantization import quantizable_layers
from modules.weights.safe import load_tensors, save_tensors
from modules.weights.single_file import _open_clip
from scripts import sample

WEIGHTS = "model.safetensors"
CPU = torch.device("cpu")


def weights_of(folder: Path, component: str) -> dict[str, torch.Tensor]:
    return load_tensors(folder / component / WEIGHTS)


def other_weights(folder: Path, component: str) -> dict[str, torch.Tensor]:
    """Weights that differ from the folder's, and are exact in float16."""
    torch.manual_seed(7)
    old = weights_of(folder, component)
    return {name: torch.randn(tensor.shape).half().float() for name, tensor in old.items()}


def slim_copy(folder: Path, tmp_path: Path, *components: str) -> Path:
    """The folder without the weights of these components."""
    slim = shutil.copytree(folder, tmp_path / "slim", dirs_exist_ok=True)
    for component in components:
        for file in (slim / component).glob("*.safetensors"):
            file.unlink()
    return slim


def read_both_ways(folder: Path, family: str, files: dict[str, Path]) -> list[dict[str, torch.nn.Module]]:
    """The text encoders as a training and as a sampling pipeline have them. files: component -> its file."""
    paths = [str(file) for file in files.values()]
    base = BaseModel(FAMILIES[family], ModelConfig(base=str(folder), text_encoders=paths), CPU)
    base.require(*files)
    pipe = load_pipeline(str(folder), {}, CPU, dtype="float32", text_encoders=paths)
    return [{name: base.module(name) for name in files}, {name: getattr(pipe, name) for name in files}]


def assert_weights(module: torch.nn.Module, expected: dict[str, torch.Tensor]) -> None:
    """expected: in the names of a folder's file, which transformers may write with levels that its modules lack."""
    own = module.state_dict()
    got = {name: own[name] if name in own else own[name.removeprefix("text_model.")] for name in expected}
    assert [name for name, tensor in expected.items() if not torch.equal(got[name], tensor)] == []


# --- the files that people have ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [".scale_weight", ""])
def test_clip_l_and_float8_t5_take_the_place_of_those_that_the_base_lacks(scale, tiny_model, tmp_path):
    folder = tiny_model("flux1")
    clip, t5 = other_weights(folder, "text_encoder"), other_weights(folder, "text_encoder_2")
    clip_file, t5_file = tmp_path / "clip_l.safetensors", tmp_path / "t5xxl_fp8_e4m3fn_scaled.safetensors"
    ids = {"text_model.embeddings.position_ids": torch.arange(77)[None]}
    levels = ("embeddings.", "encoder.", "final_layer_norm.")
    named = {f"text_model.{name}" if name.startswith(levels) else name: value.half() for name, value in clip.items()}
    save_tensors(clip_file, named | ids)
    save_tensors(t5_file, in_float8(t5, scale) | {"spiece_model": torch.zeros(9, dtype=torch.uint8)})
    slim = slim_copy(folder, tmp_path, "text_encoder", "text_encoder_2")
    # in the other order than the components'
    for parts in read_both_ways(slim, "flux1", {"text_encoder_2": t5_file, "text_encoder": clip_file}):
        assert_weights(parts["text_encoder"], clip)
        assert_weights(parts["text_encoder_2"], t5)


def in_float8(weights: dict[str, torch.Tensor], scale: str) -> dict[str, torch.Tensor]:
    """The weights as ComfyUI's scaled files have them; `weights` becomes what they are then."""
    tensors: dict[str, torch.Tensor] = {}
    for name, value in list(weights.items()):
        if (value.dim() == 2 and "SelfAttention" in name) or "_proj.weight" in name:
            tensors[name] = value.to(torch.float8_e4m3fn)
            if scale:
                tensors[name.removesuffix(".weight") + scale] = torch.tensor(0.5)
            if scale == ".weight_scale":
                text = json.dumps({"format": "float8_e4m3fn"}).encode()
                tensors[name.removesuffix(".weight") + ".comfy_quant"] = torch.tensor([*text], dtype=torch.uint8)
            weights[name] = (0.5 if scale else 1) * tensors[name].float()
        else:
            tensors[name] = value.half()
    return tensors | ({"scaled_fp8": torch.zeros(2).to(torch.float8_e4m3fn)} if scale == ".scale_weight" else {})


CODES = {"float8": ("float8_e4m3fn", torch.float8_e4m3fn, 400), "int8": ("int8_tensorwise", torch.int8, 127)}


@pytest.mark.parametrize(
    ("family", "component", "kind", "scale", "prefixes"),
    [
        ("flux1", "text_encoder_2", "float8", ".scale_weight", {}),  # t5xxl_fp8_e4m3fn_scaled
        ("flux1", "text_encoder_2", "float8", "", {}),  # t5xxl_fp8_e4m3fn
        ("flux1", "text_encoder", "int8", ".weight_scale", {"": "text_model."}),
        ("qwen_image", "text_encoder", "int8", ".weight_scale", {"model.language_model.": "model."}),
        ("zimage", "text_encoder", "float8", ".weight_scale", {"": "model."}),
    ],
)
def test_a_file_in_the_format_of_the_setting_gives_its_codes_and_scales_bit_for_bit(
    family, component, kind, scale, prefixes, tiny_model, tmp_path
):
    folder, file = tiny_model(family), tmp_path / "text_encoder.safetensors"
    plain = BaseModel(FAMILIES[family], ModelConfig(base=str(folder), weight_dtype="bfloat16"), CPU)
    plain.require(component)
    layers = quantizable_layers(FAMILIES[family], component, plain.module(component))
    tensors, held = {}, {}
    for name, value in plain.module(component).state_dict().items():
        layer, stored = in_comfyuis_name(name, prefixes).removesuffix(".weight"), value.float()
        if name.removesuffix(".weight") in layers:
            called, dtype, largest = CODES[kind]
            size = stored.abs().amax(1, keepdim=True) / largest if scale else torch.ones(len(stored), 1)
            size = size if kind == "int8" or not scale else size.max()
            codes = stored / size
            stored = (codes.round() if kind == "int8" else codes).to(dtype)
            held[name.removesuffix(".weight")] = stored.view(torch.int8), size.expand(len(stored), 1)
            if scale:
                tensors[layer + scale] = size
            if scale == ".weight_scale":
                tensors[f"{layer}.comfy_quant"] = torch.tensor([*json.dumps({"format": called}).encode()])
        tensors[in_comfyuis_name(name, prefixes)] = stored
    save_tensors(file, tensors)
    options = {"base": str(folder), "text_encoders": [str(file)], "weight_dtype": "bfloat16"}
    base = BaseModel(FAMILIES[family], ModelConfig(**options, text_encoder_quantization=kind), CPU)
    base.require(component)
    found = {name: one for name, one in base.module(component).named_modules() if isinstance(one, QuantizedLinear)}
    assert found.keys() == set(layers)
    for name, layer in found.items():
        assert torch.equal(layer.weight, held[name][0]), name
        assert torch.equal(layer.scale, held[name][1]), name
    loose = BaseModel(FAMILIES[family], ModelConfig(**options), CPU)  # which has the values
    loose.require(component)
    for name, value in loose.module(component).state_dict().items():
        layer = name.removesuffix(".weight")
        own = found[layer].dequantize() if layer in found else base.module(component).state_dict()[name]
        assert torch.equal(own, value), name


def test_clip_g_in_the_names_of_openclip_is_read(tiny_sdxl, tmp_path):
    weights = other_weights(tiny_sdxl, "text_encoder_2")
    top = {name.removeprefix("text_model."): value for name, value in weights.items()}
    projection = top.pop("text_projection.weight")
    tensors = _open_clip(top) | {"text_projection": projection.T.contiguous(), "logit_scale": torch.ones(())}
    save_tensors(tmp_path / "clip_g.safetensors", tensors)
    for parts in read_both_ways(tiny_sdxl, "sdxl", {"text_encoder_2": tmp_path / "clip_g.safetensors"}):
        assert_weights(parts["text_encoder_2"], weights)


def test_clip_l_without_its_projection_gives_stable_diffusion_3_its_outputs_as_they_are(tiny_model, tmp_path):
    folder, file = tiny_model("sd3"), tmp_path / "clip_l.safetensors"
    weights = other_weights(folder, "text_encoder")
    projection = weights.pop("text_projection.weight")
    save_tensors(file, {f"text_encoders.clip_l.transformer.{name}": value for name, value in weights.items()})
    for parts in read_both_ways(folder, "sd3", {"text_encoder": file}):
        assert_weights(parts["text_encoder"], weights | {"text_projection.weight": torch.eye(len(projection))})


# family -> what its text encoder's names begin with in a file of ComfyUI, by what they begin with in transformers
LANGUAGE_MODELS = {
    "zimage": {"": "model."},
    "flux2_klein": {"model.": "model."},
    "lumina2": {"": "model."},
    "hunyuan_video15": {"": "model."},
    "qwen_image": {"model.language_model.": "model.", "model.visual.": "visual."},
    "ltx2": {"model.language_model.": "model.", "model.vision_tower.": "vision_model."},
    "flux2_dev": {"model.language_model.": "model.", "model.vision_tower.": "vision_tower."},
    "wan21": {"": ""},
    "krea2": {"language_model.": "model.language_model.", "visual.": "model.visual."},
    "anima": {"": "model."},
    "kandinsky5_image": {"model.language_model.": "language_model.model.", "model.visual.": "visual."},
}


FEW = ("zimage", "qwen_image", "wan21")
PROVED = [family if family in FEW else pytest.param(family, marks=pytest.mark.proof) for family in LANGUAGE_MODELS]


@pytest.mark.parametrize("family", PROVED)
def test_language_models_are_read_in_the_names_of_comfyuis_files(family, tiny_model, tmp_path):
    folder, file = tiny_model(family), tmp_path / "text_encoder.safetensors"
    plain = BaseModel(FAMILIES[family], ModelConfig(base=str(folder)), CPU)
    plain.require("text_encoder")
    torch.manual_seed(3)
    expected = {name: torch.randn(value.shape) for name, value in plain.module("text_encoder").state_dict().items()}
    tied = {"lm_head.weight", "encoder.embed_tokens.weight"}
    needed = {name: value for name, value in expected.items() if name not in tied and "vis" not in name}
    stored = needed.copy()
    tensors = in_float8(stored, ".weight_scale")
    needed = {name: stored[name] for name in needed if "multi_modal" not in name}
    prefixes = LANGUAGE_MODELS[family]
    save_tensors(file, {in_comfyuis_name(name, prefixes): value for name, value in tensors.items()})
    for parts in read_both_ways(slim_copy(folder, tmp_path, "text_encoder"), family, {"text_encoder": file}):
        got = parts["text_encoder"].state_dict()
        differ = [name for name, value in needed.items() if not torch.allclose(got[name], value, atol=1e-2)]
        assert differ == []
        assert all(not got[name].any() for name in got if "vis" in name and name not in needed)


def in_comfyuis_name(name: str, prefixes: dict[str, str]) -> str:
    start = next((start for start in prefixes if name.startswith(start)), None)
    return name if start is None else prefixes[start] + name.removeprefix(start)


def test_flux_2s_mistral_without_its_last_layers_gives_the_outputs_of_the_whole_one(tiny_model, tmp_path):
    folder, file = tiny_model("flux2_dev"), tmp_path / "mistral_3_small_flux2_bf16.safetensors"
    weights = weights_of(folder, "text_encoder")
    layers = [name for name in weights if "language_model" in name and ".layers.30." in name]
    assert layers
    save_tensors(file, {name: value for name, value in weights.items() if name not in layers})
    whole = BaseModel(FAMILIES["flux2_dev"], ModelConfig(base=str(folder)), CPU)
    whole.require("text_encoder")
    outputs = []
    for one in (whole.module("text_encoder"), *read_both_ways(folder, "flux2_dev", {"text_encoder": file})):
        encoder = one["text_encoder"] if isinstance(one, dict) else one
        states = encoder(input_ids=torch.tensor([[3, 1, 4, 1, 5]]), output_hidden_states=True).hidden_states
        outputs.append(torch.stack([states[number] for number in (10, 20, 30)]))
    assert all(torch.equal(output, outputs[0]) for output in outputs)
    save_tensors(file, {name: value for name, value in weights.items() if ".layers.29." not in name})
    assert "its weights lack model.language_model.layers.29." in refusal(folder, "flux2_dev", file)


def test_of_the_base_neither_weights_nor_cache_keys_of_the_encoder_are_used(tiny_model, tmp_path):
    folder, file = tiny_model("flux1"), tmp_path / "t5xxl_fp16.safetensors"
    save_tensors(file, other_weights(folder, "text_encoder_2"))
    family, model = FAMILIES["flux1"], ModelConfig(base=str(folder), text_encoders=[str(file)])
    assert replaced_parts(family, model) == {*family.unused, "text_encoder_2"}
    base, plain = BaseModel(family, model, CPU), BaseModel(family, ModelConfig(base=str(folder)), CPU)
    assert base.component_files("text_encoder_2") == [file]
    assert base.component_files("text_encoder") == plain.component_files("text_encoder")
    own = base.component_files(*family.text_components)
    assert own == [file, *plain.component_files("text_encoder", "tokenizer", "tokenizer_2")]


def test_a_whole_model_is_saved_with_it_and_a_single_file_takes_it(tiny_sdxl, tmp_path):
    from modules.config.OutputConfig import OutputConfig
    from modules.weights.model_files import save_model

    weights, file = other_weights(tiny_sdxl, "text_encoder"), tmp_path / "clip_l.safetensors"
    save_tensors(file, weights)
    own = {"text_encoders": [str(file)]}
    base = BaseModel(FAMILIES["sdxl"], ModelConfig(base=str(tiny_sdxl), **own), CPU)
    saved = save_model(base, OutputConfig(dtype="float32"), tmp_path, "whole", {})
    folder = next(path for path in saved if path.is_dir())
    single = next(path for path in saved if path.suffix == ".safetensors")
    pipe = load_pipeline(str(folder), {}, CPU, dtype="float32")
    assert_weights(pipe.text_encoder, weights)
    save_tensors(file, weights_of(tiny_sdxl, "text_encoder"))
    again = load_pipeline(str(single), {}, CPU, str(tiny_sdxl), dtype="float32", text_encoders=[str(file)])
    assert_weights(again.text_encoder, weights_of(tiny_sdxl, "text_encoder"))
    assert_weights(again.text_encoder_2, weights_of(tiny_sdxl, "text_encoder_2"))


def test_the_command_line_samples_with_it(tiny_sd15, tmp_path, capsys):
    file = tmp_path / "clip_l.safetensors"
    save_tensors(file, other_weights(tiny_sd15, "text_encoder"))
    slim = slim_copy(tiny_sd15, tmp_path, "text_encoder")
    options = ["--prompt", "a", "--steps", "1", "--width", "32", "--height", "32", "--out", str(tmp_path / "out")]
    assert sample.main(["--base", str(slim), "--text-encoder", str(file), *options]) == 0
    assert len(list((tmp_path / "out").glob("*.png"))) == 1
    assert sample.main(["--base", str(slim), "--text-encoder", "gone.safetensors", *options]) == 2
    assert "--text-encoder 'gone.safetensors': is not a .safetensors file; choose one." in capsys.readouterr().err


# --- what can't be used -----------------------------------------------------------------------------------------------


def open_encoders(folder: Path, family: str, *files: Path) -> None:
    base = BaseModel(FAMILIES[family], ModelConfig(base=str(folder), text_encoders=list(map(str, files))), CPU)
    base.require(*FAMILIES[family].text.encoders)


def refusal(folder: Path, family: str, *files: Path) -> str:
    with pytest.raises(WeightsError) as caught:
        open_encoders(folder, family, *files)
    return str(caught.value)


def test_what_is_no_text_encoder_of_the_model_is_refused_before_the_start(tiny_model, tiny_sd15, tmp_path):
    folder = tiny_model("flux1")
    t5, vae, twice = (tmp_path / f"{name}.safetensors" for name in ("t5", "vae", "twice"))
    config = json.loads((folder / "text_encoder" / "config.json").read_text())
    save_tensors(t5, {"shared.weight": torch.zeros(8, 48), "encoder.block.0.layer.0.SelfAttention.q.weight": ONE})
    save_tensors(vae, {"decoder.mid.block_1.norm1.weight": ONE, "encoder.conv_in.weight": ONE})
    save_tensors(twice, weights_of(folder, "text_encoder"))
    wanted = f"CLIP with a width of {config['hidden_size']} and T5 with a width of 32"
    cases = {
        (t5,): f"'{t5}': is T5 with a width of 48, and FLUX.1 has {wanted}; leave it out, or choose the file of one of "
        "FLUX.1's text encoders.",
        (vae,): f"'{vae}': is a VAE like that of Stable Diffusion or FLUX.1; choose the file of a text encoder.",
        (twice, twice): f"'{twice}': is CLIP with a width of {config['hidden_size']}, as '{twice}' is, which is the "
        "text_encoder already; leave one of them out.",
    }
    for files, message in cases.items():
        model = {"base": str(folder), "text_encoders": [*map(str, files)]}
        values = {"family": "flux1", "method": "lora", "model": model, "concepts": [{"path": str(tmp_path)}]}
        with pytest.raises(WeightsError) as caught:
            check_start(config_from_values(values), 1)
        assert str(caught.value) == f"model.text_encoders {message}"


def test_of_a_single_file_without_configs_the_encoder_may_have_another_width_if_only_one_is_like_it(
    tmp_path, monkeypatch
):
    """Stable Diffusion 2 has a wider CLIP than 1; of two CLIPs, the width has to tell which one a file has."""
    file, base = tmp_path / "clip.safetensors", tmp_path / "base.safetensors"
    save_tensors(file, {f"{CLIP}.weight": torch.zeros(2, 1024)})
    save_tensors(base, {"x": ONE})
    (tmp_path / "text_encoder").mkdir()
    (tmp_path / "text_encoder" / "config.json").write_text('{"hidden_size": 8}')
    monkeypatch.chdir(tmp_path)  # what happens to be there is no config of the base
    model = ModelConfig(base=str(base), text_encoders=[str(file)])
    assert replaced_parts(FAMILIES["sd15"], model) == {*FAMILIES["sd15"].unused, "text_encoder"}
    with pytest.raises(WeightsError, match=r"is CLIP with a width of 1024, and Stable Diffusion XL has CLIP with a w"):
        replaced_parts(FAMILIES["sdxl"], model)


CLIP = "text_model.embeddings.token_embedding"
ONE = torch.ones(1)


def test_one_that_lacks_or_exceeds_the_models_layers_is_refused_in_a_sentence(tiny_model, tmp_path):
    folder, file = tiny_model("zimage"), tmp_path / "qwen.safetensors"
    weights = {f"model.{name}": value for name, value in weights_of(folder, "text_encoder").items()}
    lacking = dict(weights)
    del lacking["model.layers.0.mlp.up_proj.weight"]
    more = weights | {"model.layers.99.mlp.up_proj.weight": ONE}
    wider = weights | {"model.layers.0.mlp.up_proj.weight": torch.ones(2, 2)}
    for tensors, reason in (
        (lacking, "its weights lack layers.0.mlp.up_proj.weight"),
        (more, "it has a layers.99.mlp.up_proj.weight, and that of model.base has none"),
        (wider, "its layers.0.mlp.up_proj.weight has the shape (2, 2) and that of model.base "),
    ):
        save_tensors(file, tensors)
        message = refusal(folder, "zimage", file)
        assert message.startswith(f"model.text_encoders '{file}': can't be read as the Qwen3Model of model.base (")
        assert reason in message
        assert message.endswith("choose one that was made for this kind of model.")


def test_a_vision_tower_that_the_model_needs_may_not_be_missing(tiny_model, tmp_path):
    folder, file = tiny_model("qwen_image_edit"), tmp_path / "qwen_2.5_vl_7b.safetensors"
    weights = weights_of(folder, "text_encoder")
    save_tensors(file, {name: value for name, value in weights.items() if "visual" not in name})
    assert "its weights lack model.visual." in refusal(folder, "qwen_image_edit", file)


def test_an_encoder_that_the_base_goes_without_is_refused(tmp_path, tiny_model):
    folder, file = tiny_model("sd35 without T5"), tmp_path / "t5xxl.safetensors"
    save_tensors(file, {"shared.weight": torch.zeros(2, 4096)})
    assert refusal(folder, "sd3", file) == (
        f"model.text_encoders '{file}': is the text_encoder_3 of Stable Diffusion 3 / 3.5, and model.base '{folder}' "
        "goes without; leave it out, or choose a base model that has one."
    )
