"""A VAE or denoiser of its own takes the place of the base model's, from any kind of file, and everywhere."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from diffusers import AutoencoderKL, FluxTransformer2DModel, StableDiffusionPipeline

from modules.config.ModelConfig import ModelConfig
from modules.distributed.placeholders import has_placeholders
from modules.families.registry import FAMILIES
from modules.weights.BaseModel import BaseModel
from modules.weights.errors import WeightsError
from modules.weights.load_pipeline import load_pipeline
from modules.weights.own_parts import own_parts, replaced_parts
from modules.weights.safe import load_tensors, save_tensors
from modules.weights.single_file import save_single_file, unet_to_single_file, vae_to_single_file
from scripts import sample
from tests.weights.test_part_files import original

WEIGHTS = "diffusion_pytorch_model.safetensors"


@pytest.fixture(scope="module")
def other(tiny_sd15, tmp_path_factory) -> Path:
    """A folder of the same kind of model with other weights and another scaling factor."""
    pipe = StableDiffusionPipeline.from_pretrained(tiny_sd15)
    torch.manual_seed(7)
    for part in (pipe.vae, pipe.unet):
        for parameter in part.parameters():
            torch.nn.init.normal_(parameter, std=0.1)
    pipe.vae.register_to_config(scaling_factor=0.5)
    folder = tmp_path_factory.mktemp("other") / "model"
    pipe.save_pretrained(folder)
    return folder


def file_of(other: Path, part: str, layout: str, folder: Path) -> Path:
    """The weights of one part of the other model as one file."""
    tensors = load_tensors(other / part / WEIGHTS)
    if layout == "original":
        config = json.loads((other / part / "config.json").read_text())
        tensors = {"vae": vae_to_single_file, "unet": unet_to_single_file}[part](tensors, config)
    save_tensors(folder / f"{part}.safetensors", tensors)
    return folder / f"{part}.safetensors"


def open_base(base, family="sd15", **settings):
    settings = {"channels_last": False, **settings}
    return BaseModel(FAMILIES[family], ModelConfig(base=str(base), **settings), torch.device("cpu"))


def assert_weights(module, folder: Path):
    expected = load_tensors(folder / WEIGHTS)
    got = module.state_dict()
    assert got.keys() == expected.keys()
    assert [name for name, tensor in expected.items() if not torch.equal(got[name], tensor)] == []


@pytest.mark.parametrize("part", ["", "vae"])
def test_a_vae_folder_or_that_of_a_whole_model_gives_the_vae_and_its_scale(tiny_sd15, other, part):
    base = open_base(tiny_sd15, vae=str(other / part))
    assert base.meta_module("vae").config.scaling_factor == 0.5
    base.require("vae", "unet")
    assert_weights(base.vae, other / "vae")
    assert base.vae.config.scaling_factor == 0.5
    assert_weights(base.module("unet"), tiny_sd15 / "unet")
    assert all(not parameter.requires_grad for parameter in base.vae.parameters())


@pytest.mark.parametrize("part", ["", "unet"])
def test_a_folder_of_a_denoiser_or_that_of_a_whole_model_takes_the_place_of_the_base_s(tiny_sd15, other, part):
    base = open_base(tiny_sd15, denoiser=str(other / part))
    base.require("unet", on_device=False, lazily=True)
    assert has_placeholders(base.module("unet"))  # its weights can wait in the files of that folder
    assert base.component_files("unet") == [other / "unet" / "config.json", other / "unet" / WEIGHTS]
    base.release("unet")
    base.require("unet")
    assert_weights(base.module("unet"), other / "unet")
    pipe = load_pipeline(str(tiny_sd15), {}, torch.device("cpu"), dtype="float32", denoiser=str(other / part))
    assert_weights(pipe.unet, other / "unet")
    message = refusal(tiny_sd15, denoiser=str(other / "vae"))
    assert "can't be read as the UNet2DConditionModel of model.base (it is a AutoencoderKL)" in message


@pytest.mark.parametrize("layout", ["diffusers", "original"])
@pytest.mark.parametrize("part", ["vae", "unet"])
@pytest.mark.parametrize("base_kind", ["folder", "single file"])
def test_a_file_of_either_layout_takes_the_place_of_a_part(tiny_sd15, other, tmp_path, part, layout, base_kind):
    base, settings = tiny_sd15, {"vae" if part == "vae" else "denoiser": str(file_of(other, part, layout, tmp_path))}
    if base_kind == "single file":
        pipe = StableDiffusionPipeline.from_pretrained(tiny_sd15)
        base, settings["config_folder"] = tmp_path / "base.safetensors", str(tiny_sd15)
        save_single_file(base, FAMILIES["sd15"], pipe.components)
    model = open_base(base, **settings)
    model.require("vae", "unet")
    for name in ("vae", "unet"):
        assert_weights(model.module(name), (other if name == part else tiny_sd15) / name)


def test_a_transformer_takes_the_place_of_a_folders(tiny_model, tmp_path):
    folder = tiny_model("flux1")
    changed = {name: tensor + 1 for name, tensor in load_tensors(folder / "transformer" / WEIGHTS).items()}
    save_tensors(tmp_path / "flux.safetensors", changed)
    base = open_base(folder, "flux1", denoiser=str(tmp_path / "flux.safetensors"))
    base.require("transformer")
    assert isinstance(base.module("transformer"), FluxTransformer2DModel)
    for name, tensor in base.module("transformer").state_dict().items():
        assert torch.equal(tensor, changed[name])


@pytest.mark.parametrize("given", [("denoiser",), ("denoiser_2",), ("denoiser", "denoiser_2")])
def test_a_file_takes_the_place_of_either_expert(given, tiny_model, tmp_path):
    folder, components = tiny_model("wan22_a14b"), {"denoiser": "transformer", "denoiser_2": "transformer_2"}
    expected = {name: load_tensors(folder / name / WEIGHTS) for name in components.values()}
    files = {setting: str(tmp_path / f"{setting}.safetensors") for setting in given}
    for number, (setting, file) in enumerate(files.items(), start=1):
        changed = {name: tensor + number for name, tensor in expected[components[setting]].items()}
        expected[components[setting]] = changed
        save_tensors(Path(file), {f"model.diffusion_model.{name}": t for name, t in original("wan21", changed).items()})
    base = open_base(folder, "wan22_a14b", **files)
    base.require(*components.values())
    pipe = load_pipeline(str(folder), {}, torch.device("cpu"), dtype="float32", **files)
    for name, tensors in expected.items():
        for module in (base.module(name), getattr(pipe, name)):
            assert all(torch.equal(value, tensors[key]) for key, value in module.state_dict().items())
    save_tensors(Path(file), {"x": torch.zeros(1)})
    assert f"model.{setting} '{file}': can't be read as the WanTransfo" in refusal(folder, "wan22_a14b", **files)


@pytest.mark.parametrize("prefix", ["net.", "diffusion_model."])
def test_the_text_conditioner_in_animas_file_is_used_with_its_transformer(prefix, tiny_model, tmp_path):
    folder, file = tiny_model("anima"), tmp_path / "anima.safetensors"
    expected = {name: load_tensors(folder / name / WEIGHTS) for name in ("transformer", "text_conditioner")}
    changed = {part: {name: tensor + 1 for name, tensor in old.items()} for part, old in expected.items()}
    tensors = {f"{prefix}{name}": tensor for name, tensor in changed["transformer"].items()}
    save_tensors(file, tensors)
    plain = open_base(folder, "anima", denoiser=str(file))
    plain.require("text_conditioner")  # of the folder, as the file has none
    assert_weights(plain.module("text_conditioner"), folder / "text_conditioner")
    tensors |= {f"{prefix}llm_adapter.{name}": tensor for name, tensor in changed["text_conditioner"].items()}
    save_tensors(file, tensors)
    base = open_base(folder, "anima", denoiser=str(file))
    base.require(*changed)
    pipe = load_pipeline(str(folder), {}, torch.device("cpu"), dtype="float32", denoiser=str(file))
    for part, weights in changed.items():
        for module in (base.module(part), getattr(pipe, part)):
            assert all(torch.equal(value, weights[name]) for name, value in module.state_dict().items())
    assert base.component_files("text_conditioner") == [file]  # texts are cached anew
    save_tensors(file, {name: value for name, value in tensors.items() if not name.endswith("adapter.norm.weight")})
    assert f"model.denoiser '{file}': can't be read as the AnimaTextConditioner of" in refusal(
        folder, "anima", part="text_conditioner", denoiser=str(file)
    )


# diffusers' names of the connectors of LTX-2 -> those of its makers, in this order
CONNECTORS = {
    "video_text_proj_in.": "text_embedding_projection.video_aggregate_embed.",
    "audio_text_proj_in.": "text_embedding_projection.audio_aggregate_embed.",
    "text_proj_in.": "text_embedding_projection.aggregate_embed.",
    "video_connector.": "model.diffusion_model.video_embeddings_connector.",
    "audio_connector.": "model.diffusion_model.audio_embeddings_connector.",
    "transformer_blocks.": "transformer_1d_blocks.",
    "norm_q.": "q_norm.",
    "norm_k.": "k_norm.",
}


def with_connectors(folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The tensors of a whole checkpoint of LTX-2, and those of its connectors in the names of diffusers."""
    changed = {name: tensor + 1 for name, tensor in load_tensors(folder / "connectors" / WEIGHTS).items()}
    transformer = original("ltx_video", load_tensors(folder / "transformer" / WEIGHTS))
    tensors = {f"model.diffusion_model.{name}": tensor for name, tensor in transformer.items()}
    for name, tensor in changed.items():
        for ours, theirs in CONNECTORS.items():
            name = name.replace(ours, theirs)
        tensors[name] = tensor
    assert sum("_embeddings_connector.transformer_1d_blocks.0.attn1.q_norm.weight" in name for name in tensors) == 2
    return tensors, changed


def test_the_text_connectors_in_a_checkpoint_of_ltx2_are_used_with_its_transformer(tiny_model, tmp_path):
    folder, file = tiny_model("ltx2"), tmp_path / "ltx2.safetensors"
    tensors, changed = with_connectors(folder)
    save_tensors(file, tensors)
    base = open_base(folder, "ltx2", denoiser=str(file))
    base.require("connectors", "transformer")
    pipe = load_pipeline(str(folder), {}, torch.device("cpu"), dtype="float32", denoiser=str(file))
    for module in (base.module("connectors"), pipe.connectors):
        assert all(torch.equal(value, changed[name]) for name, value in module.state_dict().items())
    assert base.component_files("connectors") == [file]  # texts are cached anew
    assert "connectors" in replaced_parts(FAMILIES["ltx2"], ModelConfig(denoiser=str(file)))
    save_tensors(file, {name: value for name, value in tensors.items() if not name.endswith("blocks.0.ff.net.2.bias")})
    assert f"model.denoiser '{file}': can't be read as the LTX2TextConnectors of" in refusal(
        folder, "ltx2", part="connectors", denoiser=str(file)
    )


def test_what_a_file_of_ltx2s_transformer_lacks_of_its_connectors_is_that_of_the_base(tiny_model, tmp_path):
    folder, file = tiny_model("ltx2"), tmp_path / "transformer_only.safetensors"
    tensors, changed = with_connectors(folder)
    save_tensors(file, {name: value for name, value in tensors.items() if name.startswith("model.diffusion_model.")})
    base = open_base(folder, "ltx2", denoiser=str(file))
    base.require("connectors")
    kept = load_tensors(folder / "connectors" / WEIGHTS)
    for name, value in base.module("connectors").state_dict().items():
        assert torch.equal(value, kept[name] if name.startswith("text_proj_in.") else changed[name]), name
    assert base.component_files("connectors") == [file, *sorted((folder / "connectors").iterdir())]
    assert "connectors" not in replaced_parts(FAMILIES["ltx2"], ModelConfig(denoiser=str(file)))


@pytest.mark.parametrize("left", ["nothing", "a pickle that runs code"])
def test_of_a_part_that_is_replaced_the_base_needs_no_more_than_its_config(left, tiny_sd15, other, tmp_path):
    slim = shutil.copytree(tiny_sd15, tmp_path / "slim")
    for part in ("unet", "vae"):
        (slim / part / WEIGHTS).unlink()
        if left != "nothing":
            torch.save({"x": shutil.rmtree}, slim / part / "diffusion_pytorch_model.bin")
    files = {
        "denoiser": file_of(other, "unet", "diffusers", tmp_path),
        "vae": file_of(other, "vae", "diffusers", tmp_path),
    }
    settings = {setting: str(file) for setting, file in files.items()}
    base = open_base(slim, **settings)
    base.require("vae", "unet", "text_encoder")
    pipe = load_pipeline(str(slim), {}, torch.device("cpu"), dtype="float32", **settings)
    for part in ("vae", "unet"):
        assert_weights(base.module(part), other / part)
        assert_weights(getattr(pipe, part), other / part)


def test_one_expert_alone_that_is_replaced_needs_no_weights(tiny_model, tmp_path):
    slim = shutil.copytree(tiny_model("wan22_a14b"), tmp_path / "slim")
    file = shutil.move(slim / "transformer_2" / WEIGHTS, tmp_path / "low.safetensors")
    options = ["--base", str(slim), "--denoiser-2", str(file), "--prompt", "a", "--steps", "1", "--frames", "1"]
    sizes = ["--width", "32", "--height", "32", "--out", str(tmp_path / "out")]
    assert sample.main([*options, *sizes]) == 0
    with pytest.raises(WeightsError, match=r"its transformer_2 can't be loaded \(Error no file named"):
        open_base(slim, "wan22_a14b", denoiser=str(file)).require("transformer_2")


def test_latents_are_cached_by_the_vae_that_made_them_and_text_as_ever(tiny_sd15, other):
    plain, changed = open_base(tiny_sd15), open_base(tiny_sd15, vae=str(other))
    assert changed.component_files("vae") == sorted((other / "vae").iterdir())
    assert changed.component_files("text_encoder") == plain.component_files("text_encoder")
    assert changed.component_files("vae", "unet") == sorted((other / "vae").iterdir()) + plain.component_files("unet")


def test_samples_of_the_command_line_are_made_with_the_other_vae(tiny_sd15, other, tmp_path, capsys):
    pipe = load_pipeline(str(tiny_sd15), {}, torch.device("cpu"), dtype="float32", vae=str(other))
    assert_weights(pipe.vae, other / "vae")
    options = ["--prompt", "a cat", "--steps", "1", "--width", "32", "--height", "32", "--out", str(tmp_path)]
    assert sample.main(["--base", str(tiny_sd15), "--vae", str(other), *options]) == 0
    assert len(list(tmp_path.glob("*.png"))) == 1
    assert sample.main(["--base", str(tiny_sd15), "--denoiser-2", "a", *options]) == 2
    assert "--denoiser-2 'a': Stable Diffusion 1.x / 2.x has one denoiser; leave it out." in capsys.readouterr().err


def test_a_distilled_base_trains_and_samples_with_the_denoiser_beside_its_own(tiny_model, tmp_path):
    base = shutil.copytree(tiny_model("ltx25"), tmp_path / "base")
    shutil.copytree(base / "transformer", base / "transformer_full")
    (base / "transformer" / WEIGHTS).unlink()  # not even downloaded
    index = json.loads((base / "model_index.json").read_text())
    index["diffusion_decoder"] = ["diffusers", "LTX2VideoDiffusionDecoderModel"]  # of which the pipeline knows nothing
    (base / "model_index.json").write_text(json.dumps(index))
    scheduler = base / "scheduler" / "scheduler_config.json"
    own = {**json.loads(scheduler.read_text()), "use_dynamic_shifting": False, "shift_terminal": None}
    scheduler.write_text(json.dumps(own))
    whole = base / "transformer_full"
    trained = open_base(base, "ltx25", denoiser=str(whole))
    trained.require("transformer")
    assert_weights(trained.module("transformer"), whole)
    sampled = load_pipeline(base, {}, torch.device("cpu"), dtype="float32", denoiser=str(whole))
    for pipe in (trained.pipe, sampled):
        assert (pipe.scheduler.config.use_dynamic_shifting, pipe.scheduler.config.shift_terminal) == (True, 0.1)
    message = refusal(base, "ltx25")
    assert message.startswith(
        f"model.base '{base}': its transformer is distilled to few steps, which training would undo"
    )
    assert f"; set model.denoiser to '{whole}', the one to train, or" in message


# --- what can't be used -----------------------------------------------------------------------------------------------


def refusal(base, family="sd15", part="vae", **settings) -> str:
    with pytest.raises(WeightsError) as caught:
        open_base(base, family, **settings).require(part, *FAMILIES[family].denoisers)
    return str(caught.value)


def test_a_missing_file_and_one_of_another_kind_are_refused_before_anything_is_loaded(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "weights.ckpt").touch()
    for setting, path, message in (
        ("vae", "nowhere", "is not a .safetensors file; choose one."),
        ("denoiser", "nowhere", "is not a .safetensors file; choose one."),
        ("vae", tmp_path / "weights.ckpt", "is not a .safetensors file; choose one."),
        ("vae", tmp_path / "empty", "has no config.json; choose the folder of a VAE, that of a model, or a file."),
    ):
        with pytest.raises(WeightsError) as caught:
            own_parts(FAMILIES["sd15"], ModelConfig(**{setting: str(path)}))
        assert str(caught.value) == f"model.{setting} '{path}': {message}"
    with pytest.raises(WeightsError, match=r"^model\.denoiser_2 'nowhere': is not a \.safetensors file; choose"):
        own_parts(FAMILIES["wan22_a14b"], ModelConfig(denoiser_2="nowhere"))


def test_a_file_that_is_no_model_is_refused_before_anything_is_loaded(tmp_path):
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n"
    (tmp_path / "vae").mkdir()
    (tmp_path / "vae" / "config.json").write_text("{}")
    for file in (tmp_path / "a.safetensors", tmp_path / "vae" / "diffusion_pytorch_model.safetensors"):
        file.write_bytes(pointer)
    for setting, path in (
        ("vae", tmp_path / "a.safetensors"),
        ("vae", tmp_path / "vae"),
        ("denoiser", tmp_path / "a.safetensors"),
    ):
        with pytest.raises(WeightsError, match=rf"^model\.{setting} '.+': is a Git LFS pointer, .+ run 'git lfs pull'"):
            own_parts(FAMILIES["sd15"], ModelConfig(**{setting: str(path)}))


def test_a_part_of_another_kind_or_with_weights_missing_is_refused_in_one_sentence(tiny_sd15, tiny_model, tmp_path):
    sana = tiny_model("sana")
    message = refusal(tiny_sd15, vae=str(sana))
    assert message == (
        f"model.vae '{sana / 'vae'}': can't be read as the AutoencoderKL of model.base (it is a AutoencoderDC); "
        "choose one that was made for this kind of model."
    )
    tensors = load_tensors(tiny_sd15 / "vae" / WEIGHTS)
    tensors.pop("encoder.conv_in.weight")
    save_tensors(tmp_path / "part.safetensors", tensors)
    message = refusal(tiny_sd15, vae=str(tmp_path / "part.safetensors"))
    assert message.startswith(f"model.vae '{tmp_path / 'part.safetensors'}': can't be read as the AutoencoderKL")
    assert "\n" not in message
    save_tensors(tmp_path / "other.safetensors", {"x": torch.zeros(1)})
    message = refusal(tiny_sd15, denoiser=str(tmp_path / "other.safetensors"))
    assert "can't be read as the UNet2DConditionModel" in message


def test_a_folder_with_weights_missing_is_refused(tiny_sd15, tmp_path):
    shutil.copytree(tiny_sd15 / "vae", tmp_path / "vae")
    tensors = load_tensors(tmp_path / "vae" / WEIGHTS)
    tensors.pop("encoder.conv_in.weight")
    save_tensors(tmp_path / "vae" / WEIGHTS, tensors)
    assert "its weights lack encoder.conv_in.weight" in refusal(tiny_sd15, vae=str(tmp_path / "vae"))


def test_its_own_vae_is_of_the_base_models_class(tiny_sd15, other):
    assert isinstance(open_base(tiny_sd15, vae=str(other)).meta_module("vae"), AutoencoderKL)
