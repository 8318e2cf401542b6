"""The base model of a run: only what is needed is in memory, from a folder or a file, and a wrong one is refused."""

import contextlib
import copy
import gc
import json
import shutil
import weakref

import pytest
import torch
from diffusers import AutoencoderKL, DDPMScheduler, StableDiffusionPipeline
from transformers import CLIPTokenizer

from modules.config.ModelConfig import ModelConfig
from modules.config.OutputConfig import OutputConfig
from modules.families.prediction import objective_of
from modules.families.registry import FAMILIES
from modules.weights.BaseModel import BaseModel
from modules.weights.errors import WeightsError
from modules.weights.FolderComponents import FolderComponents
from modules.weights.model_files import save_model
from modules.weights.safe import load_tensors, save_tensors
from modules.weights.single_file import save_single_file

SD15, SD3 = FAMILIES["sd15"], FAMILIES["sd3"]
MODELS = ("unet", "vae", "text_encoder")
UNET_WEIGHTS = "unet/diffusion_pytorch_model.safetensors"


def open_base(base, family=SD15, **settings):
    return BaseModel(family, ModelConfig(base=str(base), **settings), torch.device("cpu"))


def in_memory(base):
    return {name for name in base.component_names if base.module(name) is not None}


def states(pipe):
    return {f"{part}.{name}": tensor for part in MODELS for name, tensor in getattr(pipe, part).state_dict().items()}


def assert_equal(got, expected):
    assert got.keys() == expected.keys()
    assert [name for name in expected if not torch.equal(got[name], expected[name])] == []


def refusal(base, family=SD15, load=(), **settings):
    with pytest.raises(WeightsError) as caught:
        open_base(base, family, **settings).require(*load)
    message = str(caught.value)
    assert message.startswith("model.base ")
    assert "\n" not in message
    assert message.endswith(".")
    return message


@pytest.fixture
def copy_of_sd15(tiny_sd15, tmp_path):
    return shutil.copytree(tiny_sd15, tmp_path / "copy")


@pytest.fixture
def single_file(tiny_sd15, tmp_path):
    pipe = StableDiffusionPipeline.from_pretrained(tiny_sd15)
    save_single_file(tmp_path / "x.safetensors", FAMILIES["sd15"], pipe.components)
    return tmp_path / "x.safetensors"


def test_nothing_but_the_scheduler_is_loaded_at_first(tiny_sd15):
    base = open_base(tiny_sd15)
    assert set(base.component_names) == {"unet", "vae", "text_encoder", "tokenizer", "scheduler"}
    assert in_memory(base) == {"scheduler"}


def test_require_loads_what_is_asked_for_and_no_more(tiny_sd15):
    base = open_base(tiny_sd15)
    base.require("vae")
    assert in_memory(base) == {"scheduler", "vae"}
    base.require("text_encoder", "tokenizer")
    assert in_memory(base) == {"scheduler", "vae", "text_encoder", "tokenizer"}


def test_what_is_in_memory_is_not_loaded_again(tiny_sd15):
    base = open_base(tiny_sd15)
    base.require("unet")
    unet = base.module("unet")
    base.require("unet", "vae")
    assert base.module("unet") is unet


def test_a_turn_is_taken_where_something_is_loaded_and_nowhere_else(tiny_sd15):
    @contextlib.contextmanager
    def turn():
        before = in_memory(base)
        yield
        turns.append(in_memory(base) - before)

    turns = []
    base = BaseModel(SD15, ModelConfig(base=str(tiny_sd15)), torch.device("cpu"), loading_turn=turn)
    base.require("unet")
    base.require("unet", "vae")
    base.require("unet", "vae")
    assert turns == [{"unet"}, {"vae"}]


def test_release_takes_a_component_out_of_memory(tiny_sd15):
    base = open_base(tiny_sd15)
    base.require("unet", "vae")
    unet = base.module("unet")
    base.release("vae")
    assert in_memory(base) == {"scheduler", "unet"}
    assert base.module("unet") is unet


@pytest.mark.parametrize("name", ["hunyuan_image", "kandinsky5_image"])
def test_a_released_denoiser_that_has_been_adapted_is_freed_without_the_garbage_collector(name, tiny_model):
    """Which may come after what is loaded in its place."""
    base = open_base(tiny_model(name), FAMILIES[name])
    base.require("transformer", on_device=False)
    gc.collect()
    gc.disable()
    try:
        denoiser = weakref.ref(base.module("transformer"))
        base.release("transformer")
        assert denoiser() is None
    finally:
        gc.enable()


def test_using_loads_for_its_block_and_leaves_what_was_there(tiny_sd15):
    base = open_base(tiny_sd15)
    base.require("unet")
    unet = base.module("unet")
    with base.using("unet", "vae") as pipe:
        assert pipe is base.pipe
        assert in_memory(base) == {"scheduler", "unet", "vae"}
        with base.using("vae", "tokenizer"):
            assert in_memory(base) == {"scheduler", "unet", "vae", "tokenizer"}
        assert base.module("vae") is not None  # still wanted outside
    assert in_memory(base) == {"scheduler", "unet"}
    assert base.module("unet") is unet


def test_using_releases_after_an_error_too(tiny_sd15):
    base = open_base(tiny_sd15)
    with pytest.raises(KeyError), base.using("vae"):
        raise KeyError("inside")
    assert in_memory(base) == {"scheduler"}


def test_where_one_component_does_not_fit_on_the_device_none_of_them_stays(tiny_sd15, monkeypatch):
    def refuse(vae, device):
        raise torch.OutOfMemoryError("the third does not fit")

    base = open_base(tiny_sd15, channels_last=False)
    base.require("unet")
    monkeypatch.setattr(AutoencoderKL, "to", refuse)
    with pytest.raises(torch.OutOfMemoryError), base.using("unet", "text_encoder", "vae"):
        pass
    assert in_memory(base) == {"scheduler", "unet"}


def test_a_failed_loading_leaves_the_rest_usable(copy_of_sd15):
    base = open_base(copy_of_sd15)
    (copy_of_sd15 / "vae" / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(WeightsError, match="its vae can't be loaded"), base.using("vae"):
        pass
    assert in_memory(base) == {"scheduler"}
    base.require("unet")
    assert in_memory(base) == {"scheduler", "unet"}


@pytest.mark.parametrize("weight_dtype", ["float32", "bfloat16", "float64"])
def test_components_come_frozen_in_evaluation_mode_and_in_their_dtype(weight_dtype, tiny_sd15):
    base = open_base(tiny_sd15, weight_dtype=weight_dtype)
    base.require(*MODELS)
    for part in MODELS:
        module = base.module(part)
        assert not module.training
        assert not any(parameter.requires_grad for parameter in module.parameters())
        assert {parameter.dtype for parameter in module.parameters()} == {getattr(torch, weight_dtype)}


def test_a_folder_gives_the_tensors_of_a_plain_pipeline(tiny_sd15):
    base = open_base(tiny_sd15)
    with base.using(*base.component_names) as pipe:
        assert_equal(states(pipe), states(StableDiffusionPipeline.from_pretrained(tiny_sd15)))


def test_the_pipelines_scale_follows_the_vae_that_was_loaded_late(tiny_sd15):
    base = open_base(tiny_sd15)
    with base.using("vae") as pipe:
        assert pipe.vae_scale_factor == StableDiffusionPipeline.from_pretrained(tiny_sd15).vae_scale_factor == 2


@pytest.mark.parametrize("channels_last", [False, True])
def test_convolutions_have_the_memory_layout_of_the_setting(channels_last, tiny_sd15):
    base = open_base(tiny_sd15, channels_last=channels_last)
    base.require("unet")
    weight = base.module("unet").mid_block.resnets[0].conv1.weight
    assert weight.is_contiguous(memory_format=torch.channels_last) == channels_last


def test_the_files_of_a_component_are_named(tiny_sd15, single_file):
    files = open_base(tiny_sd15).component_files("vae", "scheduler")
    assert [file.relative_to(tiny_sd15).as_posix() for file in files] == [
        "scheduler/scheduler_config.json",
        "vae/config.json",
        "vae/diffusion_pytorch_model.safetensors",
    ]
    base = open_base(single_file, config_folder=str(tiny_sd15))
    assert base.component_files("vae") == [single_file, tiny_sd15 / "vae/config.json"]


@pytest.mark.parametrize("model", ["tiny_sd15", "tiny_sd15_v"])
def test_a_single_file_gives_the_tensors_of_its_folder(model, tmp_path, request):
    folder = request.getfixturevalue(model)
    plain = StableDiffusionPipeline.from_pretrained(folder)
    save_single_file(tmp_path / "x.safetensors", FAMILIES["sd15"], plain.components)
    base = open_base(tmp_path / "x.safetensors", config_folder=str(folder))
    assert set(base.component_names) == {"unet", "vae", "text_encoder", "tokenizer", "scheduler"}
    with base.using(*base.component_names) as pipe:
        assert_equal(states(pipe), states(plain))
        assert pipe.tokenizer("a cat").input_ids == plain.tokenizer("a cat").input_ids
        assert pipe.scheduler.config.prediction_type == plain.scheduler.config.prediction_type
        for part in MODELS:
            assert not any(parameter.requires_grad for parameter in getattr(pipe, part).parameters())


LARGER = {"tiny_sdxl": "sdxl", "tiny_sdxl_v": "sdxl", "tiny_sd3": "sd3", "tiny_sd35": "sd3"}


@pytest.mark.parametrize("model", LARGER)
def test_a_single_file_of_the_larger_families_gives_the_tensors_of_its_folder(model, tmp_path, request):
    folder, family = request.getfixturevalue(model), FAMILIES[LARGER[model]]
    plain = open_base(folder, family)
    plain.require(*plain.component_names)
    save_single_file(tmp_path / "x.safetensors", family, plain.pipe.components)
    # the configuration is that of the model with everything, and of epsilon
    described_by = request.getfixturevalue("tiny_sdxl" if family.name == "sdxl" else model)
    base = open_base(tmp_path / "x.safetensors", family, config_folder=str(described_by))
    assert set(base.component_names) == set(plain.component_names)
    for name in base.component_names:
        if hasattr(base.module(name), "state_dict"):
            assert_equal(base.module(name).state_dict(), plain.module(name).state_dict())
    predicted = [one.pipe.scheduler.config.get("prediction_type") for one in (base, plain)]
    assert predicted == [{"tiny_sdxl": "epsilon", "tiny_sdxl_v": "v_prediction"}.get(model)] * 2


def test_a_released_part_of_a_single_file_comes_back(single_file, tiny_sd15):
    base = open_base(single_file, config_folder=str(tiny_sd15))
    base.require("vae")
    base.release("vae")
    base.require("vae")
    expected = StableDiffusionPipeline.from_pretrained(tiny_sd15).vae.state_dict()
    assert_equal(base.module("vae").state_dict(), expected)


def test_a_single_file_without_configuration_asks_for_a_folder_when_offline(single_file):
    message = refusal(single_file)
    assert str(single_file) in message
    assert "set model.config_folder to a diffusers folder of the same kind" in message


def test_a_configuration_folder_that_is_none_is_named(single_file, tmp_path):
    message = refusal(single_file, config_folder=str(tmp_path))
    assert f"model.config_folder {str(tmp_path)!r}" in message


@pytest.mark.parametrize(
    ("prefix", "part"),
    [
        ("first_stage_model.", "has no VAE; set model.vae to that of a Stable Diffusion 1.x / 2.x model"),
        ("cond_stage_model.", "has no text_encoder, which Stable Diffusion 1.x / 2.x needs"),
        ("cond_stage_model.transformer.text_model.encoder.layers.1.", "text_encoder"),
        ("first_stage_model.decoder.mid.", "tensors are missing"),
        ("model.diffusion_model.middle_block.", "tensors are missing"),
    ],
)
def test_a_single_file_that_lacks_tensors_is_refused(prefix, part, single_file, tiny_sd15):
    save_tensors(single_file, {n: t for n, t in load_tensors(single_file).items() if not n.startswith(prefix)})
    message = refusal(single_file, config_folder=str(tiny_sd15))
    assert part in message
    assert "choose a checkpoint that contains the complete model" in message


def test_a_missing_model_is_refused(tmp_path):
    assert "no such folder or file" in refusal(tmp_path / "nothing")


def test_a_model_of_the_hub_that_cannot_be_fetched_is_refused():
    message = refusal("nobody/nothing")
    assert "'nobody/nothing' can't be fetched from the Hub: " in message
    assert "local_files_only" not in message  # an argument in Python, which nobody who reads this can pass


def test_a_version_that_can_not_be_trained_is_refused_before_it_is_loaded(tiny_model, tmp_path):
    folder = shutil.copytree(tiny_model("hunyuan_video15"), tmp_path / "distilled")
    edit_json(folder / "transformer" / "config.json", use_meanflow=True)
    message = "is the distilled HunyuanVideo 1.5, which can't be trained yet; choose another"
    assert message in refusal(folder, FAMILIES["hunyuan_video15"])


def test_families_with_the_same_pipeline_are_told_apart_by_the_config_of_the_denoiser(tiny_model):
    one, other = FAMILIES["cogvideox"], FAMILIES["cogvideox15"]
    assert one.pipeline == other.pipeline
    assert "is a CogVideoX 1.5 model" in refusal(tiny_model("cogvideox15"), one)
    assert "choose family cogvideox or another" in refusal(tiny_model("cogvideox"), other)


def test_what_was_fetched_from_the_hub_is_looked_at_before_it_is_loaded(tiny_model, monkeypatch):
    monkeypatch.setattr(FolderComponents, "_local_folder", lambda self: tiny_model("wan22_a14b"))
    assert "choose family wan22_a14b or another base" in refusal("somebody/wan", FAMILIES["wan21"])


@pytest.mark.parametrize(("model", "family", "fitting"), [("tiny_sd3", SD15, "sd3"), ("tiny_sd15", SD3, "sd15")])
def test_a_folder_of_another_architecture_is_refused(model, family, fitting, request):
    message = refusal(request.getfixturevalue(model), family)
    assert f"the family {family.name} needs" in message
    assert f"choose family {fitting}" in message


def edit_json(path, **values):
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **values}), encoding="utf-8")


def drop_tensors(path, part):
    save_tensors(path, {name: tensor for name, tensor in load_tensors(path).items() if part not in name})


# What is broken -> (how, the component that the refusal names).
BROKEN = {
    "config is missing": (lambda f: (f / "text_encoder/config.json").unlink(), "text_encoder"),
    "weights are missing": (lambda f: (f / UNET_WEIGHTS).unlink(), "unet"),
    "text weights are missing": (lambda f: (f / "text_encoder/model.safetensors").unlink(), "text_encoder"),
    "other sizes": (lambda f: edit_json(f / "unet/config.json", block_out_channels=[8, 32]), "unet"),
    "other sizes of text": (lambda f: edit_json(f / "text_encoder/config.json", hidden_size=64), "text_encoder"),
    "tensors are missing": (lambda f: drop_tensors(f / UNET_WEIGHTS, "mid_block"), "unet"),
    "tensors of text are missing": (
        lambda f: drop_tensors(f / "text_encoder/model.safetensors", "layers.1."),
        "text_encoder",
    ),
    "no vocabulary": (lambda f: [file.unlink() for file in (f / "tokenizer").iterdir()], "tokenizer"),
    "no schedule": (lambda f: (f / "scheduler/scheduler_config.json").unlink(), "scheduler"),
    "unknown class": (lambda f: edit_json(f / "model_index.json", unet=["diffusers", "OtherUNet"]), "unet"),
    "code of its own": (lambda f: edit_json(f / "model_index.json", unet=["this", "s"]), "unet"),
}


def test_a_component_that_needs_torchvision_is_refused_with_that_package(tiny_sd15, monkeypatch):
    base = BaseModel(SD15, ModelConfig(base=str(tiny_sd15)), torch.device("cpu"))

    def load(*args, **options):
        raise ImportError("Qwen2VLVideoProcessor requires the Torchvision library")

    monkeypatch.setattr(CLIPTokenizer, "from_pretrained", load)
    with pytest.raises(WeightsError, match="its tokenizer needs the package torchvision"), base.using("tokenizer"):
        pass


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_component_is_refused_by_its_name(case, copy_of_sd15):
    damage, part = BROKEN[case]
    damage(copy_of_sd15)
    message = refusal(copy_of_sd15, load=(*MODELS, "tokenizer"))
    assert f"model.base {str(copy_of_sd15)!r}: its {part} can't be loaded (" in message
    assert message.endswith("; download the model again or choose another.")


def test_a_cut_weights_file_is_refused_before_anything_is_loaded(copy_of_sd15):
    path = copy_of_sd15 / UNET_WEIGHTS
    path.write_bytes(path.read_bytes()[:-100])
    assert "damaged" in refusal(copy_of_sd15)


def test_parts_that_training_never_needs_are_not_loaded(copy_of_sd15):
    edit_json(copy_of_sd15 / "model_index.json", safety_checker=["stable_diffusion", "StableDiffusionSafetyChecker"])
    base = open_base(copy_of_sd15)  # its folder isn't even there
    assert "safety_checker" not in base.component_names
    with base.using(*base.component_names) as pipe:
        assert pipe.safety_checker is None


def test_an_sd3_that_goes_without_its_t5_is_used_without(tiny_sd3, tmp_path):
    folder = shutil.copytree(tiny_sd3, tmp_path / "no_t5")
    edit_json(folder / "model_index.json", text_encoder_3=[None, None], tokenizer_3=[None, None])
    for part in ("text_encoder_3", "tokenizer_3"):
        shutil.rmtree(folder / part)
    base = open_base(folder, SD3)
    assert {"text_encoder_3", "tokenizer_3"}.isdisjoint(base.component_names)
    with base.using(*SD3.text_components) as pipe:
        assert pipe.text_encoder_2 is not None
        assert pipe.text_encoder_3 is None
    assert base.component_files("text_encoder_3") == []


@pytest.mark.parametrize(
    ("model", "setting", "expected"),
    [
        ("tiny_sd15", "auto", "epsilon"),
        ("tiny_sd15_v", "auto", "v_prediction"),
        ("tiny_sd15", "v_prediction", "v_prediction"),
        ("tiny_sd15_v", "epsilon", "epsilon"),
    ],
)
def test_the_objective_is_the_schedulers_unless_the_settings_say_otherwise(model, setting, expected, request):
    base = open_base(request.getfixturevalue(model), prediction_type=setting)
    objective = objective_of(base.family, base.pipe.scheduler.config)
    assert objective.prediction_type == expected
    assert torch.equal(objective.alphas_cumprod, base.pipe.scheduler.alphas_cumprod)


def test_an_option_that_the_pipeline_does_not_know_is_passed_over(tiny_sd15, tmp_path):
    folder = shutil.copytree(tiny_sd15, tmp_path / "newer")
    edit_json(folder / "model_index.json", made_by_a_newer_diffusers=True)
    assert open_base(folder).pipe.config.requires_safety_checker is False


@pytest.mark.parametrize(("model", "prediction_type"), [("tiny_sd15_v", "auto"), ("tiny_sd15", "v_prediction")])
def test_zero_terminal_snr_is_in_the_sampler_and_in_training(model, prediction_type, request):
    base = open_base(request.getfixturevalue(model), prediction_type=prediction_type, zero_terminal_snr=True)
    scheduler = base.pipe.scheduler
    usual = open_base(request.getfixturevalue(model)).pipe.scheduler
    expected = DDPMScheduler.from_config(usual.config, rescale_betas_zero_snr=True).alphas_cumprod
    assert (scheduler.config.rescale_betas_zero_snr, scheduler.config.timestep_spacing) == (True, "trailing")
    assert torch.equal(objective_of(base.family, scheduler.config).alphas_cumprod, expected)
    assert expected[-1] == 0
    scheduler.set_timesteps(4)
    assert scheduler.timesteps[0] == 999


def test_a_scheduler_that_can_not_end_in_noise_alone_gives_way_to_one_that_can(tiny_sd15_v, tmp_path):
    folder = shutil.copytree(tiny_sd15_v, tmp_path / "pndm")
    edit_json(folder / "scheduler/scheduler_config.json", _class_name="PNDMScheduler", skip_prk_steps=True)
    edit_json(folder / "model_index.json", scheduler=["diffusers", "PNDMScheduler"])
    assert type(open_base(folder).pipe.scheduler).__name__ == "PNDMScheduler"
    scheduler = open_base(folder, zero_terminal_snr=True).pipe.scheduler
    assert type(scheduler).__name__ == "DDIMScheduler"
    assert scheduler.config.rescale_betas_zero_snr
    assert scheduler.config.clip_sample is False  # latents go beyond the [-1, 1] of DDIM's default


def test_zero_terminal_snr_is_refused_where_epsilon_is_predicted(tiny_sd15):
    with pytest.raises(WeightsError) as refused:
        open_base(tiny_sd15, zero_terminal_snr=True)
    assert "set model.prediction_type to v_prediction" in str(refused.value)


def test_a_model_saved_with_v_and_zero_terminal_snr_says_so(tiny_sd15, tmp_path):
    base = open_base(tiny_sd15, prediction_type="v_prediction", zero_terminal_snr=True)
    save_model(base, OutputConfig(format="diffusers"), tmp_path, "model", {})
    config = StableDiffusionPipeline.from_pretrained(tmp_path / "model").scheduler.config
    assert (config.prediction_type, config.rescale_betas_zero_snr) == ("v_prediction", True)


@pytest.mark.parametrize("kind", ["folder", "single_file"])
def test_a_component_is_replaced_inside_of_the_context_only(kind, tiny_sd15, single_file):
    base = open_base(tiny_sd15) if kind == "folder" else open_base(single_file, config_folder=str(tiny_sd15))
    base.require("unet")
    own = base.module("unet")
    other = copy.deepcopy(own)
    with base.replaced({"unet": other}):
        assert base.module("unet") is other
        with base.using("vae", on_device=False) as pipe:  # creates the pipeline of a folder again
            assert pipe.unet is other
    assert base.module("unet") is own
