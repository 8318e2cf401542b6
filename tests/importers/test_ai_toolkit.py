"""ai-toolkit's jobs mean here what they mean there, or a line says what differs."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from modules.config.errors import UserError
from modules.config.families import load_families
from modules.config.other_programs import load_program
from modules.importers.import_files import import_files
from modules.importers.ImportResult import ImportResult

KEYS = Path(__file__).parent / "ai_toolkit_keys.yaml"
PROGRAM = load_program("ai_toolkit")
ARCHES = {arch: family for arch, family in PROGRAM.facts["families"].items() if family}


def put(values: dict, path: str, value: Any) -> dict:
    place = values
    *sections, last = path.split(".")
    for name in sections:
        place = place.setdefault(name, {})
    place[last] = value
    return values


def job(settings: dict[str, Any], **more: Any) -> dict:
    """A job that trains a LoRA, with settings of its process by path, such as {"train.lr": 1e-4}."""
    process: dict = {"type": "sd_trainer", "network": {"type": "lora"}, "model": {"name_or_path": "some/model"}}
    for path, value in settings.items():
        put(process, path, value)
    return {"job": "extension", "config": {"name": "cats", "process": [process]}, **more}


def imported(folder: Path, settings: dict[str, Any]) -> ImportResult:
    path = folder / "job.json"
    path.write_text(json.dumps(job(settings)), encoding="utf-8")
    return import_files([path])


def why(result: ImportResult, path: str) -> str:
    return next((line.why for line in result.changed if line.path == path), "")


def left(result: ImportResult, name: str) -> bool:
    return any(name in line.theirs and line.why for line in result.left)


FLUX = {"model.arch": "flux"}
SDXL = {"model.arch": "sdxl"}


@pytest.mark.parametrize(
    ("settings", "path", "value"),
    [
        ({}, "lora.rank", 4),
        ({}, "lora.alpha", 1.0),
        ({"network.rank": 8, "network.linear": 32}, "lora.rank", 8),
        ({"network.alpha": 2}, "lora.alpha", 2.0),
        ({"network.conv": 8}, "lora.conv_alpha", 8.0),
        ({"network.conv": 8}, "lora.targets", "linear_conv"),
        (FLUX, "denoiser.include_layers", "*blocks*"),
        ({"model.arch": "zimage"}, "denoiser.include_layers", "layers.*"),
        ({"network.type": "dora"}, "lora.dora", True),
        ({"network.type": "lokr", "network.lokr_full_rank": False, "network.lokr_factor": 8}, "lora.lokr_factor", 8),
        ({"network.type": "lokr"}, "lora.lokr_factor", None),
        ({}, "optimizer.learning_rate", 1e-6),
        ({}, "optimizer.eps", 1e-6),
        ({"train.optimizer": "adamw8bit"}, "optimizer.weight_decay", 0.01),
        ({"train.optimizer_params": {"weight_decay": 1e-4, "betas": [0.8, 0.9]}}, "optimizer.beta1", 0.8),
        ({"train.optimizer": "Lion8bit"}, "optimizer.beta2", 0.99),
        ({"train.optimizer": "adafactor"}, "optimizer.adafactor_scale_parameter", False),
        ({"train.optimizer": "prodigy", "train.lr": 0.5}, "optimizer.learning_rate", 0.5),
        ({"train.lr_scheduler": "constant_with_warmup"}, "schedule.warmup", 1000.0),
        ({"train.lr": 1e-4, "train.lr_scheduler": "cosine", "train.lr_scheduler_params": {"eta_min": 1e-5}},
         "schedule.final_share", 0.1),
        ({"train.lr_scheduler": "cosine_with_restarts"}, "schedule.restarts", 1),
        ({}, "max_steps", 1000),
        ({"train.gradient_accumulation": 4}, "gradient_accumulation_steps", 4),
        ({"train.gradient_accumulation": 4}, "max_steps", 1000),
        ({"train.dtype": "bf16"}, "model.mixed_precision", "bf16"),
        ({"model.quantize": True}, "model.text_encoder_quantization", "float8"),
        ({}, "model.gradient_checkpointing", True),
        (FLUX, "diffusion.timesteps", "logit_normal"),
        (FLUX, "diffusion.shift_by", "none"),
        (FLUX | {"train.timestep_type": "linear"}, "diffusion.timesteps", "uniform"),
        (FLUX | {"train.timestep_type": "shift"}, "diffusion.shift_by", "resolution"),
        ({"model.arch": "wan22_5b", "train.timestep_type": "shift"}, "diffusion.shift", 5.0),
        (SDXL | {"train.timestep_type": "shift"}, "diffusion.timesteps", "uniform"),
        ({"train.content_or_style": "content"}, "diffusion.beta_alpha", 1.0),
        ({"train.content_or_style": "style"}, "diffusion.beta_beta", 1.0),
        ({"train.min_snr_gamma": 5}, "loss.snr_gamma", 5.0),
        ({"train.loss_type": "mae"}, "loss.mae", 1.0),
        ({"train.ema_config": {"use_ema": "true"}}, "ema.decay", 0.999),
        ({"train.diff_output_preservation": True}, "loss.output_preservation_weight", 1.0),
        ({"train.blank_prompt_preservation": True}, "loss.blank_preservation_weight", 1.0),
        ({"model.assistant_lora_path": "a/b"}, "model.training_adapter", "a/b"),
        ({}, "output.keep", 5),
        ({}, "output.dtype", "float16"),
        ({}, "sampling.every", 100.0),
        ({}, "sampling.at_start", True),
        ({"train.disable_sampling": True}, "sampling.unit", "never"),
        ({"device": "cuda:1"}, "device_indexes", [1]),
        ({"training_folder": "D:\\runs/[name]"}, "workspace_dir", "D:\\runs/cats/cats"),
        ({"model.arch": "wan22_14b", "model.model_kwargs": {"train_high_noise": False}}, "denoiser.expert", "low"),
        ({"train.noise_offset": "0.05"}, "diffusion.offset_noise", 0.05),
        ({}, "lr_scaling", "none"),
    ],
)  # fmt: skip
def test_a_setting_is_taken(settings, path, value, tmp_path):
    result = imported(tmp_path, settings)
    assert result.values[path] == (pytest.approx(value) if isinstance(value, float) else value)
    assert not any("look for its meaning" in line.why for line in result.left)
    result.config()


@pytest.mark.parametrize(
    ("settings", "path", "value"),
    [
        (FLUX | {"network.linear": 16, "network.linear_alpha": 1}, "lora.alpha", 16.0),
        ({"network.type": "lokr"}, "lora.rank", 1_000_000),
        ({}, "lora.targets", "linear"),
        ({"train.optimizer": "prodigy"}, "optimizer.learning_rate", 1.0),
        ({"train.optimizer": "adafactor", "train.optimizer_params": {"relative_step": True}},
         "optimizer.learning_rate", 0.01),
        ({"train.optimizer": "adafactor"}, "optimizer.max_grad_norm", 0.0),
        ({"train.gradient_accumulation_steps": 4}, "max_steps", 250),
        ({"train.gradient_accumulation_steps": 4}, "output.every", 250.0),
        ({"train.lr_scheduler": "constant_with_warmup", "train.gradient_accumulation_steps": 4},
         "schedule.warmup", 250.0),
        ({"train.min_denoising_steps": 200}, "diffusion.max_timestep", 800),
        ({"train.max_denoising_steps": 500}, "diffusion.min_timestep", 499),
        (FLUX | {"train.timestep_type": "sigmoid", "train.max_denoising_steps": 799}, "diffusion.min_timestep", 301),
        ({"model.arch": "zimage", "train.timestep_type": "shift", "train.max_denoising_steps": 799},
         "diffusion.min_timestep", 429),
        (FLUX | {"train.timestep_type": "weighted"}, "diffusion.timesteps", "uniform"),
        (FLUX | {"train.content_or_style": "content"}, "diffusion.timesteps", "beta"),
        ({"train.loss_type": "pseudo_huber"}, "loss.huber", 50.0),
        (FLUX | {"train.bypass_guidance_embedding": True}, "diffusion.guidance", 1.0),
        (FLUX | {"model.quantize": True, "model.qtype": "uint4|a/b"}, "model.denoiser_quantization", "nf4"),
        ({"model.layer_offloading": True}, "model.blocks_to_swap", None),
        (FLUX | {"network.network_kwargs": {"ignore_if_contains": ["proj_out"]}},
         "denoiser.exclude_layers", "*proj_out*"),
        (FLUX | {"model.only_if_contains": ["transformer.single_transformer_blocks.1."]},
         "denoiser.include_layers", "*single_transformer_blocks.1.*"),
        ({"model.arch": "wan22_14b", "train.switch_boundary_every": 10}, "diffusion.expert_share", 0.5),
        (FLUX | {"model.name_or_path": "C:\\a b\\flux.safetensors"}, "model.denoiser", "C:\\a b\\flux.safetensors"),
        ({}, "seed", 42),
        ({}, "backup.every", 1000.0),
    ],
)  # fmt: skip
def test_a_setting_that_means_something_else_is_taken_with_a_line(settings, path, value, tmp_path):
    result = imported(tmp_path, settings)
    assert result.values[path] == value
    assert why(result, path)
    result.config()


@pytest.mark.parametrize(
    "settings",
    [
        {"train.optimizer": "automagic"},
        {"train.lr_scheduler": "linear"},
        {"train.loss_type": "wavelet"},
        {"train.snr_gamma": 5},
        FLUX | {"train.timestep_type": "one_step"},
        {"train.do_differential_guidance": True},
        {"train.steps": "many"},
        {"train.gradient_accumulation_steps": -1},
        {"network.type": "lorm"},
        {"network.network_kwargs": {"parameter_threshold": 3}},
        {"model.name_or_path": "old.ckpt"},
        {"model.quantize": True, "model.qtype": "int3"},
        {"train.lr_scheduler_params": {"last_epoch": 3}},
        {"save.push_to_hub": True},
        {"train.a_setting_of_the_future": 3},
        {"train.lr": "inf"},
        {"training_folder": "${HOME}/runs"},
        {"first_sample": {"prompts": ["a"]}},
        {"a_key": "hf_abcdefghijklmnopqrstuvwxyzABCDEFGH"},
    ],
)
def test_what_is_not_taken_has_a_line(settings, tmp_path):
    result = imported(tmp_path, settings)
    assert left(result, list(settings)[-1].rpartition(".")[2])
    assert "hf_abc" not in result.text()
    result.config()


@pytest.mark.parametrize("arch", ARCHES)
def test_each_architecture_tells_the_family(arch, tmp_path):
    config = imported(tmp_path, {"model.arch": f"{arch}:some_tag"}).config()
    assert config.family == ARCHES[arch]
    assert config.family in load_families()


@pytest.mark.parametrize(("flag", "arch"), PROGRAM.facts["flags"].items())
def test_files_from_before_architectures_had_names_come_in(flag, arch, tmp_path):
    assert imported(tmp_path, {f"model.{flag}": True}).values["family"] == ARCHES[arch]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model.arch": "flex2"}, "flex2"),
        ({"model.arch": "krea2:o_edit"}, "o_edit"),
        ({"type": "image_reference_slider_trainer"}, "image_reference_slider_trainer"),
        ({"model.arch": "minimax_h3_ref2va"}, "minimax_h3_ref2va"),
        ({"network": None, "adapter": {"type": "ip"}}, "adapter"),
    ],
)
def test_what_chorus_does_not_train_is_refused(settings, message, tmp_path):
    with pytest.raises(UserError, match=message):
        imported(tmp_path, settings)


def test_every_setting_that_the_program_reads_has_a_line_in_the_table():
    documented = {
        f"{prefix}{name}" for prefix, names in yaml.safe_load(KEYS.read_text("utf-8")).items() for name in names
    }
    assert len(documented) > 400
    assert not documented - PROGRAM.settings.keys()


def test_without_a_network_all_weights_train_and_with_an_embedding_words_do(tmp_path):
    full = imported(tmp_path, {"network": None})
    assert (full.values["method"], full.values["output.format"]) == ("full", "single_file")
    words = imported(tmp_path, {"network": None, "embedding": {"trigger": "My Cat", "tokens": 3}})
    assert (words.values["method"], words.values["embeddings.0.placeholder"]) == ("embedding", "my-cat")
    assert words.config().embeddings[0].vectors == 3
    assert imported(tmp_path, {"embedding": {"trigger": "cat"}}).values["method"] == "pivotal"
    without = imported(tmp_path, FLUX | {"embedding": {"trigger": "cat"}})
    assert without.values["method"] == ("pivotal" if load_families()["flux1"].embedding_keys else "lora")


SLIDER = {"target_class": "person", "positive_prompt": "old person", "negative_prompt": "young person"}


def test_a_concept_slider_comes_in_with_its_prompts(tmp_path):
    given = {**SLIDER, "guidance_strength": 4, "anchor_class": "tree", "anchor_strength": 0.5, "new_key": 1}
    datasets = [{"folder_path": "/people"}]
    result = imported(tmp_path, {"type": "concept_slider", "slider": given, "datasets": datasets, "train.lr": 1e-4})
    config = result.config()
    slider = config.slider
    assert (config.method, slider.source) == ("slider", "prompts")
    assert (slider.target, slider.positive, slider.negative) == ("person", "old person", "young person")
    assert (slider.eta, config.concepts[0].path, config.optimizer.learning_rate) == (4.0, "/people", 1e-4)
    assert all(left(result, name) for name in ("anchor_class", "anchor_strength", "new_key"))
    assert why(result, "slider.eta")
    without = imported(tmp_path, {"type": "concept_slider", "slider": {**SLIDER, "anchor_strength": 1.0}})
    assert without.values["slider.eta"] == 3.0  # its default
    assert not left(without, "anchor")
    assert left(imported(tmp_path, {"slider": SLIDER}), "slider")  # of a process that trains none


def test_a_slider_without_images_has_the_first_of_its_targets(tmp_path):
    target = {"target_class": "", "positive": "high detail", "negative": "blurry", "weight": 0.5, "shuffle": True}
    slider = {"targets": [target, {"positive": "b"}], "resolutions": [[512, 512], [512, 768]], "batch_full_slide": True}
    sample = {"prompts": ["a dog --m -3"]}
    given = {"type": "slider", "slider": slider, "train.max_denoising_steps": 40, "sample": sample}
    result = imported(tmp_path, given)
    config = result.config()
    assert (config.method, config.slider.positive, config.slider.negative) == ("slider", "high detail", "blurry")
    assert (config.data.resolution, config.concepts, config.diffusion.min_timestep) == (627, [], 0)
    assert config.sampling.samples[0].prompt == "a dog"
    assert all(left(result, name) for name in ("weight", "shuffle", "targets", "max_denoising_steps", "--m -3"))
    assert not left(result, "batch_full_slide")


def test_the_sound_of_minimax_h3_has_its_weight(tmp_path):
    model = {"model.arch": "minimax_h3", "model.name_or_path": "Comfy-Org/MiniMax-H3", "train.audio_loss_multiplier": 2}
    heard = imported(tmp_path, model | {"datasets": [{"folder_path": "/a", "do_audio": True}]})
    assert heard.config().loss.sound_weight == 2.0
    assert left(heard, "name_or_path")
    assert imported(tmp_path, model | {"datasets": [{"folder_path": "/a"}]}).values["loss.sound_weight"] == 0.0
    assert left(imported(tmp_path, SDXL | {"train.audio_loss_multiplier": 2}), "audio_loss_multiplier")


DATASETS = [
    {"folder_path": "C:\\Bilder\\Kätzchen", "resolution": [512, "768"], "caption_ext": "txt", "flip_x": True,
     "num_repeats": 2, "caption_dropout_rate": 0.05, "shuffle_tokens": True, "keep_tokens": 1, "mask_path": "/masks",
     "mask_min_value": 0.2, "default_caption": "a cat", "cache_latents_to_disk": True},
    {"folder_path": "/reg", "resolution": 512, "is_reg": True, "loss_multiplier": 2, "flip_y": True, "new_key": 1},
]  # fmt: skip


def test_datasets_are_concepts(tmp_path):
    preserved = {"train.diff_output_preservation": True, "train.diff_output_preservation_class": "cat"}
    settings = {"datasets": DATASETS, "trigger_word": "sks", "train.reg_weight": 0.5}
    result = imported(tmp_path, settings | preserved)
    config = result.config()
    cats, others = config.concepts
    assert (cats.path, cats.repeats, cats.augmentation.flip, cats.mask_folder) == (
        "C:\\Bilder\\Kätzchen", 8.0, True, "/masks")  # fmt: skip
    assert (cats.caption_extension, cats.caption_fallback, cats.keep_tags) == (".txt", "a cat", 1)
    assert (cats.caption_prefix, cats.trigger_word, cats.class_word) == ("sks", "sks", "cat")
    assert (others.caption_prefix, others.regularisation, others.loss_weight, others.resolution) == ("", True, 1.0, 512)
    assert (config.data.resolution, config.data.resolutions, config.data.no_upscale) == (768, [512, 768], True)
    assert (config.data.caption_dropout, config.loss.masked_training, config.loss.unmasked_weight) == (0.05, True, 0.2)
    assert why(result, "concepts.0.repeats")
    assert all(left(result, name) for name in ("flip_y", "new_key", "cache_latents_to_disk"))
    assert len(result.data_alone().config().concepts) == 2


def test_references_and_clips_are_taken_for_models_that_see_them(tmp_path):
    images = {"folder_path": "/a", "control_path_1": "/before", "control_path_2": "/more"}
    datasets = [images | {"num_frames": 41, "fps": 16, "do_i2v": True}]
    edit = imported(tmp_path, {"model.arch": "qwen_image_edit_plus", "datasets": datasets})
    assert edit.values["concepts.0.reference_folder"] == "/before"
    assert left(edit, "control_path_2")
    assert left(imported(tmp_path, SDXL | {"datasets": datasets}), "control_path_1")
    video = imported(tmp_path, {"model.arch": "wan22_5b", "datasets": datasets}).config().data
    assert (video.frames, video.fps, video.clips, video.image_to_video) == (41, 16.0, "chunks", 1.0)


def test_prompts_and_samples_are_samples(tmp_path):
    sample = {"width": 1024, "seed": 7, "walk_seed": True, "neg": "bad"}
    old = imported(
        tmp_path, {"sample": {**sample, "prompts": ["[trigger] a --w 768 --d 9", "b"]}, "trigger_word": "sks"}
    )
    first, second = old.config().sampling.samples
    assert (first.prompt, first.width, first.seed, first.negative_prompt, first.guidance) == (
        "sks a",
        768,
        9,
        "bad",
        7.0,
    )
    assert (second.prompt, second.width, second.seed, second.steps) == ("b", 1024, 8, 20)
    given = [{"prompt": "c", "seed": 3, "guidance_scale": 2, "ctrl_img": "a.png", "ctrl_img_2": "b.png"}]
    new = imported(tmp_path, {"model.arch": "qwen_image_edit_plus", "sample": {**sample, "samples": given}})
    (only,) = new.config().sampling.samples
    assert (only.prompt, only.seed, only.guidance, only.reference) == ("c", 3, 2.0, "a.png")
    assert left(new, "ctrl_img_2")


def test_a_written_yaml_file_of_several_processes_comes_in(tmp_path):
    path = tmp_path / "job.yml"
    text = yaml.safe_dump(job({"train.lr": "1e-4"}, meta={"version": "1.0"}, other=1))
    more = "  - type: generate\n  - type: sd_trainer # comment\n"
    path.write_text(
        "\ufeff" + text.replace("  process:\n", "  process:\n" + more[: more.index("  - type: sd")]), "utf-8"
    )
    result = import_files([path])
    assert result.values["optimizer.learning_rate"] == 1e-4
    assert left(result, "second process")
    assert left(result, "other")
