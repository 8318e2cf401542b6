"""The check of a base before a start: what fits passes, everything else is told apart in one sentence."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from diffusers import StableDiffusionPipeline

from modules.config.families import DENOISER_CONFIG
from modules.families.registry import FAMILIES, family_of
from modules.weights.errors import WeightsError
from modules.weights.inspect import BaseInfo, check_base, check_fits, describe_index, inspect_base
from modules.weights.safe import load_tensors, save_tensors
from modules.weights.single_file import save_single_file

SD15, SD3 = FAMILIES["sd15"], FAMILIES["sd3"]
UNET = "model.diffusion_model.input_blocks."


def refusal(base, family=SD15, **options):
    with pytest.raises(WeightsError) as caught:
        check_base(str(base), family, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith(".")
    assert str(base) in message
    return message


def write_file(path, shapes):
    save_tensors(path, {name: torch.zeros(shape) for name, shape in shapes.items()})
    return path


@pytest.fixture
def copy_of_sd15(tiny_sd15, tmp_path):
    return shutil.copytree(tiny_sd15, tmp_path / "copy")


def test_a_fitting_folder_passes(tiny_sd15):
    info = check_base(str(tiny_sd15), SD15)
    assert (info.kind, info.pipeline) == ("folder", "StableDiffusionPipeline")
    assert info.size_bytes == sum(file.stat().st_size for file in tiny_sd15.rglob("*") if file.is_file())


def test_a_fitting_single_file_passes(tiny_sd15, tmp_path):
    pipe = StableDiffusionPipeline.from_pretrained(tiny_sd15)
    save_single_file(tmp_path / "x.safetensors", FAMILIES["sd15"], pipe.components)
    info = check_base(str(tmp_path / "x.safetensors"), SD15)
    assert (info.kind, info.pipeline) == ("single_file", "StableDiffusionPipeline")
    assert info.size_bytes == (tmp_path / "x.safetensors").stat().st_size


@pytest.mark.parametrize("base", ["stable-diffusion-v1-5/stable-diffusion-v1-5", "a/b", "org/name.v2_x"])
def test_a_name_on_the_hub_passes_unread(base):
    info = check_base(base, SD15)
    assert (info.kind, info.pipeline, info.size_bytes) == ("hub", None, 0)


@pytest.mark.parametrize(
    "base",
    ["", "/no/where", "models/x.safetensors", "nothing", "../a", "./a", "a/b/c", "C:\\models\\x", "~/x", "~no.such/x"],
)
def test_a_missing_path_is_refused(base, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WeightsError, match=r"^model.base '.*': no such folder or file; choose"):
        check_base(base, SD15)


def test_the_wrong_family_is_named_with_the_right_one(tiny_sd15, tiny_sd3):
    label_15, label_3 = FAMILIES["sd15"].label, FAMILIES["sd3"].label
    assert refusal(tiny_sd3) == (
        f"model.base '{tiny_sd3}': is a {label_3} model; the family sd15 needs {label_15}: "
        "choose family sd3 or another base."
    )
    assert "choose family sd15 or another base" in refusal(tiny_sd15, SD3)


@pytest.mark.parametrize(
    ("name", "part", "own", "of_other", "other"),
    [
        (
            "hunyuan_video_i2v",
            DENOISER_CONFIG,
            {"image_condition_type": "token_replace"},
            {"image_condition_type": "latent_concat"},
            "a HunyuanVideo I2V 33ch",
        ),
    ],
)
def test_another_model_with_the_same_pipeline_is_refused_by_its_name(name, part, own, of_other, other):
    family = FAMILIES[name]
    index = {"_class_name": family.pipeline, part: own}
    assert family_of(index) is family
    index[part] = of_other
    info = BaseInfo("hub", family.pipeline, 0, describe_index(index), index)
    with pytest.raises(WeightsError, match=f"is {other} model; the family {name} needs {family.label}: choose"):
        check_fits("a/b", info, family)


def test_each_pipeline_is_of_a_family_by_its_name_alone():
    """As saving a LoRA asks for its names."""
    assert [family.name for family in FAMILIES.values() if family_of({"_class_name": family.pipeline}) is None] == []


@pytest.mark.parametrize(
    "mark",
    [
        {"duration_head": ["ltx2", "LTX2DurationHead"]},
        {"prompt_enhancer": ["transformers", "Gemma4ForConditionalGeneration"]},
        {"text_encoder": ["transformers", "Gemma4UnifiedForConditionalGeneration"]},
        {DENOISER_CONFIG: {"ff_bias": False}},
    ],
)
def test_a_later_model_with_the_pipeline_of_an_earlier_one_is_told_apart(mark):
    earlier, later = FAMILIES["ltx2"], FAMILIES["ltx25"]
    absent = {"duration_head": [None, None], "prompt_enhancer": [None, None], DENOISER_CONFIG: {"ff_bias": True}}
    index = {"_class_name": earlier.pipeline, **absent}
    assert family_of(index) is earlier
    index |= mark
    assert family_of(index) is later
    info = BaseInfo("hub", earlier.pipeline, 0, describe_index(index), index)
    with pytest.raises(WeightsError, match=r"is an LTX-2.5 model; the family ltx2 needs LTX-2: choose family ltx25 or"):
        check_fits("a/b", info, earlier)


def test_variants_of_a_pipeline_are_told_apart(tiny_model, tmp_path):
    wan, experts = FAMILIES["wan21"], FAMILIES["wan22_a14b"]
    assert refusal(tiny_model("wan22_a14b"), wan).endswith(
        f"is a {experts.label} model; the family wan21 needs {wan.label}: choose family wan22_a14b or another base."
    )
    unknown = shutil.copytree(tiny_model("wan22_a14b"), tmp_path / "unknown")
    index = json.loads((unknown / "model_index.json").read_text())
    (unknown / "model_index.json").write_text(json.dumps({**index, "expand_timesteps": True}))
    for family in (wan, experts):
        assert "is a model of the pipeline WanPipeline; the family" in refusal(unknown, family)


def test_a_single_file_of_a_family_that_is_read_from_folders_is_refused(tmp_path):
    file = write_file(tmp_path / "x.safetensors", {"double_blocks.0.img_attn.x": (1,)})
    assert refusal(file, FAMILIES["flux1"]).endswith(
        "is a FLUX.1 model in a single file, and FLUX.1 is read from diffusers folders; choose a folder or a model's "
        "name on the Hugging Face Hub, and this file as model.denoiser if it has the transformer."
    )
    unknown = write_file(tmp_path / "y.safetensors", {"blocks.0.self_attn.q.weight": (1,)})
    assert "and this file as model.denoiser" in refusal(unknown, FAMILIES["wan21"])
    assert "this file as model.denoiser or model.denoiser_2 if" in refusal(unknown, FAMILIES["wan22_a14b"])


def test_the_setting_of_the_caller_is_named(tiny_sd3):
    assert refusal(tiny_sd3, setting="model.vae").startswith("model.vae '")


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        ({f"{UNET}0.0.weight": (1, 4), f"{UNET}1.1.attn2.to_k.weight": (1, 2048)}, "Stable Diffusion XL model"),
        ({f"{UNET}0.0.weight": (1, 4), "conditioner.embedders.1.model.x": (1,)}, "Stable Diffusion XL model"),
        ({f"{UNET}0.0.weight": (1, 4), f"{UNET}1.1.attn2.to_k.weight": (1, 1280)}, "Stable Diffusion XL refiner model"),
        ({f"{UNET}0.0.weight": (1, 9), f"{UNET}1.1.attn2.to_k.weight": (1, 768)}, FAMILIES["sd15_inpaint"].label),
        ({f"{UNET}0.0.weight": (1, 9), f"{UNET}1.1.attn2.to_k.weight": (1, 2048)}, FAMILIES["sdxl_inpaint"].label),
        ({f"{UNET}0.0.weight": (1, 8), f"{UNET}1.1.attn2.to_k.weight": (1, 768)}, "InstructPix2Pix model"),
        ({"model.diffusion_model.joint_blocks.0.x": (1,)}, FAMILIES["sd3"].label),
        ({"joint_blocks.0.x": (1,)}, FAMILIES["sd3"].label),
        ({"double_blocks.0.img_attn.x": (1,)}, "FLUX.1 model"),
        ({"model.diffusion_model.double_blocks.0.x": (1,), "distilled_guidance_layer.x": (1,)}, "Chroma model"),
        ({"double_blocks.0.x": (1,), "single_stream_modulation.lin.weight": (1,)}, "FLUX.2 klein model"),
        (dict.fromkeys(("double_blocks.0.x", "single_stream_modulation.x", "guidance_in.x"), (1,)), "FLUX.2 dev model"),
        ({"lora_unet_mid_block_x.lora_down.weight": (4, 8)}, "a LoRA, not a base model"),
        ({"unet.mid_block.to_q.lora_A.weight": (4, 8)}, "a LoRA, not a base model"),
        ({"encoder.down.0.block.0.conv1.weight": (1,)}, "a VAE alone"),
        ({"conv_in.weight": (1,), "time_embedding.linear_1.weight": (1,)}, "a single part"),
        ({"emb_params": (1, 768)}, "an embedding"),
        ({"something.else": (1,)}, "an unknown layout"),
        ({}, "an unknown layout"),
    ],
)
def test_another_kind_of_single_file_is_called_by_its_name(shapes, expected, tmp_path):
    assert expected in refusal(write_file(tmp_path / "x.safetensors", shapes))


@pytest.mark.parametrize(("width", "detail"), [(768, "Stable Diffusion 1.x"), (1024, "Stable Diffusion 2.x")])
def test_1_x_and_2_x_are_told_apart_by_the_width_of_their_text(width, detail, tmp_path):
    shapes = {f"{UNET}0.0.weight": (1, 4), f"{UNET}1.1.attn2.to_k.weight": (1, width)}
    info = inspect_base(str(write_file(tmp_path / "x.safetensors", shapes)))
    assert (info.pipeline, info.detail) == ("StableDiffusionPipeline", f"a {detail} model")


def test_a_model_is_named_with_the_article_that_its_name_wants():
    assert describe_index({"_class_name": "AuraFlowPipeline"}) == "an AuraFlow model"
    assert describe_index({"_class_name": "HeliosPyramidPipeline"}) == "a Helios-Mid model"


def test_a_folder_that_is_no_pipeline_is_refused(tmp_path):
    assert "has no model_index.json" in refusal(tmp_path)


def test_an_index_that_names_no_pipeline_is_refused(copy_of_sd15):
    (copy_of_sd15 / "model_index.json").write_text("{}")
    assert "does not name a pipeline" in refusal(copy_of_sd15)


def test_a_lora_folder_is_refused(tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    assert "is a LoRA, not a base model" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "Git LFS pointer"),
        (b"<html>Not found</html>", "a web page"),
        (b"", "is empty"),
        (b"PK\x03\x04" + bytes(99), "a pickled checkpoint"),
    ],
)
def test_files_that_are_no_models_are_refused_alone_and_inside_a_folder(content, reason, copy_of_sd15, tmp_path):
    (tmp_path / "x.safetensors").write_bytes(content)
    assert reason in refusal(tmp_path / "x.safetensors")
    (copy_of_sd15 / "vae" / "diffusion_pytorch_model.safetensors").write_bytes(content)
    assert reason in refusal(copy_of_sd15)
    check_base(str(copy_of_sd15), replace(SD15, unused=("vae",)))


def test_a_pickled_checkpoint_is_refused(tmp_path):
    torch.save({"state_dict": {}}, tmp_path / "x.ckpt")
    assert "a pickled checkpoint, not safetensors" in refusal(tmp_path / "x.ckpt")


@pytest.mark.parametrize(("pickled", "is_refused"), [({}, False), ({"step": print}, True)])
def test_a_folder_of_pickled_weights_is_refused_where_they_are_more_than_weights(pickled, is_refused, copy_of_sd15):
    safe = copy_of_sd15 / "unet" / "diffusion_pytorch_model.safetensors"
    torch.save({**load_tensors(safe), **pickled}, copy_of_sd15 / "unet" / "diffusion_pytorch_model.bin")
    check_base(str(copy_of_sd15), SD15)  # nobody unpickles what is beside safetensors
    safe.rename(safe.with_name("diffusion_pytorch_model.fp16.safetensors"))  # which is not loaded
    if is_refused:
        assert "diffusion_pytorch_model.bin': is damaged, or contains more than weights" in refusal(copy_of_sd15)
        check_base(str(copy_of_sd15), replace(SD15, unused=("unet",)))
    else:
        check_base(str(copy_of_sd15), SD15)


def test_a_folder_below_the_home_folder_may_be_named_from_there(copy_of_sd15, monkeypatch):
    monkeypatch.setenv("HOME", str(copy_of_sd15.parent))
    monkeypatch.setenv("USERPROFILE", str(copy_of_sd15.parent))
    assert check_base(f"~/{copy_of_sd15.name}", SD15).kind == "folder"


def test_a_folder_that_lacks_a_part_is_refused(copy_of_sd15):
    shutil.rmtree(copy_of_sd15 / "unet")
    assert "lacks the folder 'unet'" in refusal(copy_of_sd15)


def test_a_part_that_the_pipeline_goes_without_is_not_missed(copy_of_sd15):
    index = json.loads((copy_of_sd15 / "model_index.json").read_text())
    assert index["safety_checker"] == [None, None]
    check_base(str(copy_of_sd15), SD15)


def test_a_folder_without_a_part_that_the_family_needs_is_refused(copy_of_sd15):
    path = copy_of_sd15 / "model_index.json"
    index = {**json.loads(path.read_text(encoding="utf-8")), "text_encoder": [None, None]}
    path.write_text(json.dumps(index), encoding="utf-8")
    assert "has no text_encoder, which Stable Diffusion 1.x / 2.x needs" in refusal(copy_of_sd15)
