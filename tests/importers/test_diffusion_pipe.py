"""diffusion-pipe's files mean here what they mean there, or a line says what differs."""

from pathlib import Path
from typing import Any

import pytest

from modules.config.errors import UserError
from modules.config.families import load_families
from modules.config.other_programs import load_program
from modules.importers.import_files import import_files
from modules.importers.ImportResult import ImportResult

READ = Path(__file__).parent / "settings_read" / "diffusion_pipe.txt"
PROGRAM = load_program("diffusion_pipe")
DATA = """
resolutions = [512, [1280, 720]]
enable_ar_bucket = true
min_ar = 0.4
max_ar = 2.0
frame_buckets = [1, 33, 66]
caption_prefix = "sks,"
cache_shuffle_num = 5
subsample_ratio = 0.5
a_setting_of_the_future = 1
[[directory]]
path = 'C:\\Bilder\\Kätzchen'
num_repeats = 3
mask_path = '/masks'
cache_shuffle_delimiter = "; "
online_captions = true
[[directory]]
path = "/before-after"
resolutions = [768]
control_path = "/before"
skip_empty_caption = false
"""


def toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {toml(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return str(value).lower() if isinstance(value, bool) else repr(value)


def imported(folder: Path, settings: dict[str, Any], is_full: bool = False, data: str = "") -> ImportResult:
    """The import of a training file with settings by path, such as {"adapter.rank": 8}."""
    values = {"model.type": "flux", "output_dir": "runs", "epochs": 10, "optimizer.type": "adamw_optimi"}
    values |= {} if is_full else {"adapter.type": "lora"}
    values |= {"dataset": "data.toml"} if data else {}
    sections: dict[str, list[str]] = {"": []}
    for path, value in (values | settings).items():
        section, _, name = path.rpartition(".")
        sections.setdefault(section, []).append(f"{name} = {toml(value)}")
    text = "".join((f"[{name}]\n" if name else "") + "\n".join(lines) + "\n" for name, lines in sections.items())
    (folder / "data.toml").write_text("\ufeff" + data, encoding="utf-8")
    (folder / "train.toml").write_text("\ufeff" + text, encoding="utf-8")
    return import_files([folder / "train.toml"])


def why(result: ImportResult, path: str) -> str:
    return next((line.why for line in result.changed if line.path == path), "")


def left(result: ImportResult, name: str) -> bool:
    return any(name in line.theirs and line.why for line in result.left)


SDXL = {"model.type": "sdxl", "model.checkpoint_path": "sdxl.safetensors", "optimizer.lr": 1e-4}
WAN = {"model.type": "wan", "model.ckpt_path": "/models/Wan2.1-T2V-14B"}
TWO = {"model.type": "wan", "model.transformer_path": "/models/wan2.2_t2v_low_noise_14B.safetensors"}


def test_every_setting_that_the_program_reads_has_a_line_in_the_table():
    documented = set(READ.read_text(encoding="utf-8").split())
    assert len(documented) > 170
    assert documented <= PROGRAM.settings.keys()


@pytest.mark.parametrize(
    ("settings", "path", "value"),
    [
        ({"adapter.rank": 8}, "lora.rank", 8),
        ({"adapter.rank": 8}, "lora.alpha", 8.0),
        ({}, "lora.targets", "linear"),
        ({}, "denoiser.include_layers", "*blocks*"),
        ({"model.type": "z_image"}, "denoiser.include_layers", "layers.*, noise_refiner.*, context_refiner.*"),
        ({"adapter.type": "lokr", "adapter.rank": 1e6}, "lora.rank", 1_000_000),
        ({"adapter.type": "lokr", "adapter.decompose_factor": 4}, "lora.lokr_factor", 4),
        ({"adapter.type": "lokr"}, "lora.lokr_factor", None),
        ({"adapter.type": "lokr", "adapter.rank_dropout": 0.1}, "lora.rank_dropout", 0.1),
        ({"adapter.dropout": 0.1}, "lora.dropout", 0.1),
        ({"adapter.init_from_existing": "a.safetensors"}, "lora.start_from", "a.safetensors"),
        ({"model.merge_adapters": ["a.safetensors"]}, "model.training_adapter", "a.safetensors"),
        ({"adapter.fuse_adapters": [{"path": "a", "weight": 1.0}]}, "model.training_adapter", "a"),
        ({}, "text_encoder.train", False),
        (SDXL, "text_encoder.train", True),
        (SDXL | {"model.text_encoder_1_lr": 2e-5}, "text_encoder.learning_rates", [2e-5, 1e-4]),
        (SDXL | {"model.text_encoder_1_lr": 0}, "text_encoder.only", [2]),
        (SDXL | {"model.text_encoder_1_lr": 0, "model.text_encoder_2_lr": 0.0}, "text_encoder.train", False),
        (SDXL | {"model.unet_lr": 3e-5}, "denoiser.learning_rate", 3e-5),
        (SDXL | {"model.v_pred": True}, "model.prediction_type", "v_prediction"),
        (SDXL | {"model.v_pred": True}, "model.zero_terminal_snr", True),
        (SDXL | {"model.min_snr_gamma": 5}, "loss.snr_gamma", 5.0),
        (SDXL | {"model.debiased_estimation_loss": True}, "loss.debiased_v", "kohya"),
        (SDXL, "diffusion.timesteps", "uniform"),
        (SDXL, "model.base", "sdxl.safetensors"),
        ({"model.diffusers_path": "/flux"}, "model.base", "/flux"),
        ({"model.vae": "vae.safetensors"}, "model.vae", "vae.safetensors"),
        ({"model.text_encoders": [{"paths": ["a.safetensors", "b.safetensors"], "type": "flux2"}]},
         "model.text_encoders", ["a.safetensors", "b.safetensors"]),
        ({"model.llm_path": "a.safetensors"}, "model.text_encoders", ["a.safetensors"]),
        ({"model.text_encoder_fp8": True}, "model.text_encoder_quantization", "float8"),
        ({"model.dtype": "float16"}, "model.mixed_precision", "fp16"),
        ({"model.transformer_dtype": "nf4"}, "model.denoiser_quantization", "nf4"),
        ({"model.guidance": 3.5}, "diffusion.guidance", 3.5),
        ({}, "diffusion.timesteps", "logit_normal"),
        ({"model.sigmoid_scale": 1.5}, "diffusion.logit_normal_std", 1.5),
        ({"model.timestep_sample_method": "uniform"}, "diffusion.timesteps", "uniform"),
        ({"model.shift": 3}, "diffusion.shift", 3.0),
        ({"model.shift": 3, "model.flux_shift": True}, "diffusion.shift_by", "factor"),
        ({}, "diffusion.shift_by", "none"),
        ({"model.type": "ltx-video", "model.first_frame_conditioning_p": 0.5}, "data.image_to_video", 0.5),
        ({}, "optimizer.beta2", 0.99),
        ({}, "optimizer.weight_decay", 0.0),
        ({}, "optimizer.eps", 1e-6),
        ({"optimizer.lr": "2e-5"}, "optimizer.learning_rate", 2e-5),
        ({"optimizer.type": "AdamW8bitKahan"}, "optimizer.name", "adamw_8bit"),
        ({"optimizer.type": "sgd"}, "optimizer.sgd_momentum", 0.0),
        ({"optimizer.type": "Prodigy"}, "optimizer.learning_rate", 1.0),
        ({"optimizer.type": "Prodigy", "optimizer.d_coef": 2}, "optimizer.prodigy_d_coef", 2.0),
        ({"optimizer.type": "Adan", "optimizer.betas": [0.9, 0.8, 0.7]}, "optimizer.other_arguments",
         "betas=(0.9, 0.8, 0.7)"),
        ({"optimizer.type": "Adan"}, "optimizer.other_name", "Adan"),
        ({"optimizer.type": "ScheduleFreeAdamW"}, "optimizer.name", "schedule_free"),
        ({"optimizer.type": "AdaFactor", "optimizer.lr": 1e-4, "optimizer.relative_step": False},
         "optimizer.learning_rate", 1e-4),
        ({"force_constant_lr": 1e-5, "warmup_steps": 9}, "optimizer.learning_rate", 1e-5),
        ({"force_constant_lr": 1e-5, "warmup_steps": 9}, "schedule.warmup", 0.0),
        ({"warmup_steps": 100}, "schedule.warmup", 100.0),
        ({"lr_scheduler": "linear"}, "schedule.final_share", 0.0),
        ({"gradient_clipping": 0.5}, "optimizer.max_grad_norm", 0.5),
        ({"max_steps": 500}, "max_steps", 500),
        ({"gradient_accumulation_steps": 4}, "gradient_accumulation_steps", 4),
        ({"micro_batch_size_per_gpu": 3}, "batch_size", 3),
        ({"micro_batch_size_per_gpu": 3, "image_micro_batch_size_per_gpu": 6}, "batch_size", 6),
        ({"activation_checkpointing": "unsloth"}, "model.activation_offloading", True),
        ({"activation_checkpointing": True}, "model.gradient_checkpointing", True),
        ({"activation_checkpointing": True, "blocks_to_swap": 20}, "model.blocks_to_swap", 20),
        ({"compile": True}, "model.compile", "blocks"),
        ({"uncond_fraction": 0.1}, "data.caption_dropout", 0.1),
        ({"save_every_n_epochs": 2}, "output.every", 2.0),
        ({"save_every_n_steps": 100}, "output.unit", "steps"),
        ({"save_dtype": "float32"}, "output.dtype", "float32"),
        ({"model.dtype": "float32", "adapter.dtype": "float16"}, "output.dtype", "float16"),
        ({}, "output.dtype", "bfloat16"),
        ({"checkpoint_every_n_minutes": 120}, "backup.every", 120.0),
        ({}, "backup.unit", "never"),
        ({"eval_every_n_epochs": 1}, "validation.unit", "never"),  # without a dataset for it
        ({"monitoring.enable_wandb": True, "monitoring.wandb_tracker_name": "cats"}, "wandb.project", "cats"),
    ],
)  # fmt: skip
def test_a_setting_is_taken(settings, path, value, tmp_path):
    result = imported(tmp_path, settings)
    assert result.values[path] == value
    result.config()


@pytest.mark.parametrize(
    ("settings", "path", "value"),
    [
        ({}, "workspace_dir", "runs"),
        ({"model.transformer_dtype": "float8_e5m2"}, "model.denoiser_quantization", "float8"),
        ({"model.diffusion_model": "a.safetensors"}, "model.denoiser", "a.safetensors"),
        ({"model.diffusers_path": "/f", "model.transformer_path": "a.safetensors"}, "model.base", "/f"),
        ({"adapter.init_from_existing": "/epoch50/"}, "lora.start_from", "/epoch50/adapter_model.safetensors"),
        ({"model.flux_shift": True}, "diffusion.shift_by", "resolution"),
        (WAN | {"model.min_t": 0.2}, "diffusion.min_timestep", 200),
        (WAN | {"model.max_t": 0.875}, "diffusion.max_timestep", 875),
        (TWO, "model.denoiser_2", TWO["model.transformer_path"]),
        (TWO, "denoiser.expert", "low"),
        (TWO | {"model.min_t": 0.875}, "denoiser.expert", "high"),
        ({"huber_delta": 0.2}, "loss.huber", 0.5),
        ({"smooth_l1_beta": 0.2}, "loss.smooth_l1", 0.5),
        (SDXL | {"model.debiased_estimation_loss": False}, "loss.weighting", "debiased"),
        ({"optimizer.type": "offload"}, "optimizer.state_in_ram", True),
        ({"optimizer.type": "AdaFactor", "optimizer.lr": 1e-4}, "optimizer.learning_rate", 0.01),
        ({"optimizer.betas": [0.9, 0.99], "optimizer.beta2_half_life": 8, "micro_batch_size_per_gpu": 8},
         "optimizer.beta2", 0.5),
        ({"lr_scheduler": "cosine", "optimizer.lr": 2e-6}, "schedule.final_share", 0.5),
        ({"lr_scheduler": "linear", "max_steps": 10}, "schedule.name", "linear"),
        ({"micro_batch_size_per_gpu": [[512, 4], [1024, 2]]}, "batch_size", 2),
        ({"blocks_to_swap": 20}, "model.gradient_checkpointing", True),
        ({"save_every_n_examples": 100, "micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 5},
         "output.every", 10.0),
        ({}, "backup.keep", 1000),
        (WAN | {"video_clip_mode": "multiple_overlapping"}, "data.clips", "chunks"),
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
        {"a_setting_of_the_future": 3},
        {"model.ckpt_path": "/models/x"},
        {"model.type": "chroma", "model.diffusers_path": "/models/FLUX.1-dev"},
        {"model.transformer_path": "model.pt"},
        {"model.llm_path": "/llava"},
        {"model.dtype": "float12"},
        {"model.bypass_guidance_embedding": True},
        {"model.merge_adapters": ["a", "b"]},
        {"adapter.fuse_adapters": [{"path": "a", "weight": 0.5}]},
        {"model.min_snr_gamma": 5},
        {"model.type": "anima", "model.llm_adapter_lr": 1e-5},
        {"model.timestep_sample_method": "mode"},
        WAN | {"video_clip_mode": "from_the_future"},
        TWO | {"model.min_t": 0.1},
        {"adapter.type": "ia3"},
        {"adapter.alpha": 3},
        {"adapter.exclude_modules": ["norm1"]},
        {"adapter.dtype": "bfloat16"},
        {"optimizer.type": "automagic"},
        {"optimizer.type": "GenericOptim", "optimizer.muon": True},
        {"optimizer.stabilize": True},
        {"optimizer.gradient_release": True},
        {"optimizer.type": "adamw", "optimizer.amsgrad": True},
        {"lr_scheduler": "rex"},
        {"epochs": "many"},
        {"pipeline_stages": 2},
        {"pseudo_huber_c": 0.5},
        {"save_every_n_epochs": 1, "save_every_n_steps": 100},
        {"checkpoint_every_n_minutes": 10, "checkpoint_every_n_epochs": 2},
        WAN | {"image_micro_batch_size_per_gpu": 4},
        {"eval_datasets": [{"name": "held", "config": "nowhere.toml"}]},
        {"resume_from_checkpoint": True},
        {"monitoring.wandb_api_key": "0123456789abcdef"},
        {"dataset": "nowhere.toml"},
    ],
)
def test_what_is_not_taken_has_a_line(settings, tmp_path):
    result = imported(tmp_path, settings)
    name = list(settings)[-1].rpartition(".")[2]
    assert left(result, {"llm_path": "text encoder"}.get(name, name))
    assert "0123456789abcdef" not in result.text()
    result.config()


@pytest.mark.parametrize("kind", PROGRAM.facts["types"])
def test_each_type_tells_the_family_or_that_chorus_lacks_it(kind, tmp_path):
    family = PROGRAM.facts["types"][kind]
    if family is None:
        with pytest.raises(UserError, match=kind):
            imported(tmp_path, {"model.type": kind})
        return
    result = imported(tmp_path, {"model.type": kind})
    assert result.config().family == family
    assert bool(why(result, "family")) == (kind in PROGRAM.facts["variants"])


@pytest.mark.parametrize(
    ("kind", "path", "family"),
    [
        ("flux", "/m/flux1-kontext-dev.safetensors", "flux1_kontext"),
        ("flux2", "/m/flux-2-klein-base-4b.safetensors", "flux2_klein"),
        ("flux2", "/klein/models/comfyui/flux2-dev.safetensors", "flux2_dev"),
        ("qwen_image", "/m/Qwen-Image-Edit", "qwen_image_edit"),
        ("qwen_image", "/m/qwen_image_edit_2509_bf16.safetensors", "qwen_image_edit_plus"),
        ("wan", "/m/Wan2.1-T2V-1.3B", "wan21"),
        ("wan", "/m/Wan2.1-I2V-14B-720P", "wan21_i2v"),
        ("wan", "/m/Wan2.1-FLF2V-14B-720P", "wan21_flf2v"),
        ("wan", "/m/Wan2.2-TI2V-5B", "wan22_5b"),
        ("wan", "/m/Wan2.2-T2V-A14B/low_noise_model", "wan22_a14b"),
        ("wan", "/m/Wan2.2-I2V-A14B", "wan22_i2v_a14b"),
        ("wan", "/m/SkyReels-V2-T2V-14B-540P", "skyreels_v2"),
        ("wan", "/m/SkyReels-V2-I2V-14B-540P/", "skyreels_v2_i2v"),
    ],
)
def test_the_names_of_files_tell_models_of_the_same_type_apart(kind, path, family, tmp_path):
    result = imported(tmp_path, {"model.type": kind, "model.transformer_path": path})
    assert result.values["family"] == family
    assert why(result, "family")
    assert {name for names in PROGRAM.facts["variants"].values() for name in names.values()} <= load_families().keys()


def test_without_an_adapter_all_weights_train(tmp_path):
    result = imported(tmp_path, {"model.dtype": "bfloat16"}, is_full=True)
    assert (result.values["method"], result.values["output.format"]) == ("full", "diffusers")
    assert why(result, "optimizer.stochastic_rounding")
    assert imported(tmp_path, SDXL, is_full=True).values["output.format"] == "single_file"
    assert left(imported(tmp_path, {"blocks_to_swap": 9}, is_full=True), "blocks_to_swap")
    assert left(imported(tmp_path, {"optimizer.type": "adamw8bitkahan"}, is_full=True), "adamw8bitkahan")
    released = imported(tmp_path, {"optimizer.type": "adamw", "optimizer.gradient_release": True}, is_full=True)
    assert (released.values["optimizer.fused_backward"], released.values["optimizer.max_grad_norm"]) == (True, 0.0)


def test_directories_are_concepts(tmp_path):
    result = imported(tmp_path, {}, data=DATA)
    config = result.config()
    cats, edits = config.concepts
    assert config.family == "flux1_kontext"
    assert (cats.path, cats.repeats, cats.include_subfolders) == ("C:\\Bilder\\Kätzchen", 3.0, False)
    assert (cats.caption_prefix, cats.shuffle_tags, cats.tag_separator, cats.mask_folder) == (
        "sks,",
        True,
        ";",
        "/masks",
    )
    assert (edits.repeats, edits.resolution, edits.reference_folder) == (0.5, 768, "/before")
    assert (config.data.resolution, config.data.resolutions, config.data.bucket_step) == (960, [512, 960], 16)
    assert (config.data.bucketing, config.data.max_aspect, config.data.caption_variants) == (True, 2.5, 5)
    assert (config.loss.masked_training, config.loss.unmasked_weight, config.loss.unmasked_probability) == (True, 0, 0)
    paths = ("concepts.0.repeats", "concepts.0.caption_prefix", "data.resolutions", "data.max_aspect")
    assert all(why(result, path) for path in paths)
    assert all(left(result, name) for name in ("online_captions", "a_setting_of_the_future"))
    skipped = [line.theirs for line in result.left if "skip_empty_caption" in line.theirs]
    assert len(skipped) == 1  # the second directory takes images without a caption
    assert skipped[0].startswith("directory 1")


def test_defaults_of_a_dataset_are_written_out_and_it_comes_in_alone(tmp_path):
    path = tmp_path / "data.toml"
    path.write_text('[[directory]]\npath = "/i"\ncontrol_path = "/c"\n', encoding="utf-8")
    result = import_files([path])
    (concept,) = result.config().concepts
    assert (concept.repeats, concept.reference_folder, concept.include_subfolders) == (1.0, "/c", False)
    assert (result.values["data.bucketing"], result.values["data.resolution"]) == (False, 512)
    assert "family" not in result.values


def test_frames_of_clips_are_the_largest_that_the_model_takes(tmp_path):
    result = imported(tmp_path, WAN | {"video_clip_mode": "single_middle"}, data=DATA)
    assert (result.values["data.frames"], result.values["data.clips"]) == (65, "middle")
    assert why(result, "data.frames")
    assert left(result, "control_path")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("size_buckets = [[960, 704, 1]]", {"bucketing": False, "width": 960, "height": 704}),
        ("size_buckets = [[960, 960, 1], [1280, 640, 1]]", {"bucketing": True, "max_aspect": 2.0, "resolution": 933}),
        ("enable_ar_bucket = true\nar_buckets = [[448, 896], [512, 512]]", {"bucketing": True, "max_aspect": 2.0}),
        ("ar_buckets = [1.0, 1.5]", {"bucketing": False}),
    ],
)
def test_buckets_of_fixed_sizes_and_ratios_are_the_nearest_shapes(text, expected, tmp_path):
    data = f'{text}\nresolutions = [512]\n[[directory]]\npath = "/i"\n'
    config = imported(tmp_path, {}, data=data).config()
    assert {name: getattr(config.data, name) for name in expected} == expected


def test_datasets_for_evaluation_are_held_out(tmp_path):
    (tmp_path / "held.toml").write_text('resolutions = [256]\n[[directory]]\npath = "/held"\n', encoding="utf-8")
    settings = {"eval_datasets": [{"name": "a", "config": "held.toml"}, "held.toml"], "eval_every_n_steps": 100}
    result = imported(tmp_path, settings, data=DATA)
    config = result.config()
    assert [(one.path, one.validation) for one in config.concepts[2:]] == [("/held", True)] * 2
    assert not any(one.validation for one in config.concepts[:2])
    assert (config.validation.every, config.validation.unit, config.validation.timesteps) == (100.0, "steps", 9)


@pytest.mark.parametrize(
    ("settings", "path", "value"),
    [
        ({"model.type": "flux", "model.min_t": 0.5}, "diffusion.min_timestep", 0),
        ({"model.type": "ltx-video", "model.shift": 3}, "diffusion.shift_by", "none"),
        ({"model.type": "ltx-video", "huber_delta": 0.2}, "loss.huber", 0.0),
        ({"model.type": "lumina_2", "model.flux_shift": True}, "diffusion.shift_by", "none"),
        ({"model.type": "qwen_image", "model.lumina_shift": True}, "diffusion.shift_by", "none"),
        (SDXL | {"model.timestep_sample_method": "uniform"}, "diffusion.timesteps", "uniform"),
    ],
)
def test_what_the_code_of_a_model_ignores_has_no_effect_here_either(settings, path, value, tmp_path):
    result = imported(tmp_path, settings)
    assert result.values[path] == value
    assert left(result, list(settings)[-1])


@pytest.mark.parametrize(("model", "divides"), [("flux", False), ("ltx-video", True)])
def test_the_loss_is_divided_by_the_area_of_masks_where_the_code_of_the_model_does_so(model, divides, tmp_path):
    result = imported(tmp_path, {"model.type": model}, data=DATA)
    assert result.values["loss.normalize_masked_area_loss"] is divides
