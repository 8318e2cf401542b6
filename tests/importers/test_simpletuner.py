"""SimpleTuner's settings mean here what they mean there, or a line says what differs."""

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

KEYS = Path(__file__).parent / "simpletuner_keys.yaml"
PROGRAM = load_program("simpletuner")
FAMILIES = PROGRAM.facts["families"]
TRAINED = {name: family for name, family in FAMILIES.items() if family}
SDNQ: dict[str, Any] = {"base_model_precision": "int8-sdnq", "sdnq_use_quantized_matmul": True}
FLUX: dict[str, Any] = {"model_family": "flux", "model_type": "lora"}
SDXL: dict[str, Any] = {"model_family": "sdxl", "model_type": "lora"}


def imported(folder: Path, settings: dict[str, Any], name: str = "config.json") -> ImportResult:
    path = folder / name
    path.write_text(json.dumps(settings), encoding="utf-8")
    return import_files([path])


def why(result: ImportResult, path: str) -> str:
    return next((line.why for line in result.changed if line.path == path), "")


def left(result: ImportResult, name: str) -> bool:
    return any(name in line.theirs and line.why for line in result.left)


@pytest.mark.parametrize(
    ("settings", "path", "value"),
    [
        ({}, "lora.rank", 16),
        ({"lora_rank": 64}, "lora.alpha", 64.0),
        ({"lora_alpha": "8"}, "lora.alpha", 8.0),
        ({}, "lora.dropout", 0.1),
        ({"use_dora": True}, "lora.dora", True),
        ({}, "denoiser.include_layers", "*.to_k, *.to_q, *.to_v, *.to_out.0, *.to_qkv"),
        (FLUX | {"flux_lora_target": "nano"}, "denoiser.include_layers", "*.single_transformer_blocks.7.proj_out"),
        ({}, "model.base", "stabilityai/stable-diffusion-xl-base-1.0"),
        ({"pretrained_model_name_or_path": "C:\\a b\\x.safetensors"}, "model.base", "C:\\a b\\x.safetensors"),
        ({"model_type": "full"}, "method", "full"),
        ({}, "optimizer.learning_rate", 4e-7),
        ({}, "optimizer.eps", 1e-6),
        ({"optimizer": "optimi-lion"}, "optimizer.beta2", 0.99),
        ({"optimizer_config": "eps=1e-5,weight_decay=0.0"}, "optimizer.eps", 1e-5),
        ({"optimizer_beta1": 0.8, "optimizer_beta2": 0.9}, "optimizer.beta1", 0.8),
        ({"optimizer": "optimi-stableadamw"}, "optimizer.other_name", "StableAdamW"),
        ({"grad_clip_method": "norm"}, "optimizer.max_grad_norm", 2.0),
        ({"lr_scheduler": "constant", "lr_warmup_steps": 50}, "schedule.warmup", 50.0),
        ({"lr_scheduler": "polynomial", "learning_rate": 4e-6}, "schedule.final_share", 0.1),
        ({"lr_scheduler": "polynomial"}, "schedule.power", 0.8),
        ({}, "batch_size", 4),
        ({"max_train_steps": 500, "num_train_epochs": 0}, "max_steps", 500),
        ({"num_train_epochs": 7}, "epochs", 7),
        ({}, "model.mixed_precision", "bf16"),
        ({"base_model_precision": "int8-quanto", "base_model_default_dtype": "fp32"}, "model.weight_dtype", "float32"),
        (FLUX | {"text_encoder_2_precision": "fp8-quanto"}, "model.text_encoder_quantization", "float8"),
        (FLUX, "diffusion.timesteps", "logit_normal"),
        (FLUX, "diffusion.shift", 3.0),
        (FLUX | {"flow_schedule_shift": 0}, "diffusion.shift_by", "none"),
        (FLUX | {"flow_schedule_auto_shift": True}, "diffusion.shift_by", "resolution"),
        (FLUX | {"flow_use_uniform_schedule": "true"}, "diffusion.timesteps", "uniform"),
        (FLUX | {"flow_use_beta_schedule": True}, "diffusion.beta_alpha", 2.0),
        (FLUX | {"flux_guidance_value": 3.5}, "diffusion.guidance", 3.5),
        ({"snr_gamma": 5}, "loss.snr_gamma", 5.0),
        ({"loss_type": "huber"}, "loss.huber_schedule", "snr"),
        ({"use_ema": True}, "ema.decay", 0.995),
        ({"use_ema": True, "ema_validation": "ema_only"}, "ema.sample", True),
        ({"ema_warmup_steps": 20}, "ema.start_after", 20),
        ({}, "data.caption_dropout", 0.1),
        ({"resolution": 512}, "data.resolution", 512),
        ({}, "backup.every", 500.0),
        ({"checkpoints_total_limit": 2}, "backup.keep", 2),
        ({"save_total_limit": 2}, "output.keep", 2),
        ({"checkpoint_epoch_interval": 2}, "backup.unit", "epochs"),
        ({}, "sampling.every", 100.0),
        ({"validation_steps": 20}, "sampling.every", 20.0),
        ({"validation_disable": True}, "sampling.unit", "never"),
        ({"eval_steps_interval": 30}, "validation.every", 30.0),
        ({"report_to": "wandb", "tracker_project_name": "cats"}, "wandb.project", "cats"),
        ({"num_processes": 2}, "enable_multi_gpu", True),
        (FLUX | {"musubi_blocks_to_swap": 5}, "model.blocks_to_swap", 5),
        ({"dynamo_backend": "inductor"}, "model.compile", "blocks"),
        ({"disable_tf32": True}, "model.tf32", False),
        ({"lr_scale": True}, "lr_scaling", "linear"),
        ({"train_text_encoder": True, "text_encoder_lr": 1e-6}, "text_encoder.learning_rate", 1e-6),
        ({"model_family": "wan", "model_flavour": "i2v-14b-2.2-low"}, "denoiser.expert", "low"),
    ],
)  # fmt: skip
def test_a_setting_is_taken(settings, path, value, tmp_path):
    result = imported(tmp_path, SDXL | settings)
    assert result.values[path] == (pytest.approx(value) if isinstance(value, float) else value)
    assert not why(result, path)
    assert not any("look for its meaning" in line.why for line in result.left)
    result.config()


@pytest.mark.parametrize(
    ("settings", "path", "value"),
    [
        ({}, "optimizer.max_grad_norm", 2.0),
        ({"optimizer": "prodigy", "learning_rate": 1}, "optimizer.max_grad_norm", 0.0),
        ({"optimizer": "prodigy"}, "optimizer.name", "prodigy"),
        ({"lr_scheduler": "cosine", "lr_warmup_steps": 100, "max_train_steps": 800}, "schedule.restarts", 4),
        ({"lr_scheduler": "cosine", "max_train_steps": 500}, "schedule.name", "cosine"),
        ({"lr_scheduler": "sine", "lr_warmup_steps": 100, "max_train_steps": 800}, "schedule.name", "cosine_waves"),
        ({"lr_scheduler": "cosine_with_restarts"}, "schedule.name", "constant"),
        ({"lr_scheduler": "polynomial", "optimizer": "adamw_schedulefree"}, "schedule.name", "constant"),
        ({"base_model_precision": "int4-quanto"}, "model.denoiser_quantization", "nf4"),
        (SDNQ, "model.quantized_matmul", "on"),
        (SDNQ | {"sdnq_use_hadamard": True}, "model.quantized_matmul_rotation", True),
        (FLUX | {"pretrained_model_name_or_path": "/a/flux.safetensors"}, "model.denoiser", "/a/flux.safetensors"),
        ({"peft_lora_target_modules": ["to_k"]}, "denoiser.include_layers", "to_k, *.to_k"),
        ({"offset_noise": True}, "diffusion.offset_noise", 0.05),
        ({"ema_decay": 0.81, "ema_update_interval": 2}, "ema.decay", 0.9),
        ({"use_ema": True}, "ema.sample", True),
        (FLUX | {"ramtorch": True}, "model.blocks_to_swap", None),
        (FLUX | {"musubi_blocks_to_swap": 5, "gradient_checkpointing": False}, "model.gradient_checkpointing", True),
        (FLUX | {"flux_guidance_mode": "random-range"}, "diffusion.guidance", 1.0),
        (FLUX | {"lora_format": "comfyui"}, "output.format", "both"),
        ({}, "seed", 42),
    ],
)  # fmt: skip
def test_a_setting_that_means_something_else_is_taken_with_a_line(settings, path, value, tmp_path):
    result = imported(tmp_path, SDXL | settings)
    assert result.values[path] == (pytest.approx(value) if isinstance(value, float) else value)
    assert why(result, path)
    result.config()


@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": "soap"},
        {"lr_scheduler": "a_new_one"},
        {"use_soft_min_snr": True},
        {"crepa_enabled": True},
        {"distillation_method": "dmd"},
        {"push_to_hub": True},
        {"controlnet": True},
        {"validation_prompt_library": True},
        {"max_train_steps": "many"},
        {"learning_rate": "inf"},
        {"optimizer_config": "amsgrad=true"},
        {"timestep_bias_strategy": "later"},
        {"lora_init_type": "pissa"},
        {"lora_type": "a_new_one"},
        {"model_type": "a_new_one"},
        {"validation_guidance": 3},
        {"validation_prompt": "a cat", "validation_randomize": True},
        {"validation_prompt": "a cat", "validation_resolution": "large"},
        {"report_to": "comet_ml"},
        {"base_model_precision": "fancy-quanto"},
        {"model_type": "full", "base_model_precision": "int8-quanto"},
        {"base_model_precision": "int8-quanto", "sdnq_use_quantized_matmul": True},
        {"base_model_precision": "int8-sdnq", "sdnq_use_quantized_matmul": False, "sdnq_use_hadamard": True},
        {"vae_cache_ondemand": True},
        {"prediction_type": "sample"},
        {"user_prompt_library": "nowhere.json"},
        {"lora_type": "lycoris", "lycoris_config": "nowhere.json"},
        {"pretrained_model_name_or_path": "old.ckpt"},
        {"data_backend_config": "nowhere.json"},
        {"a_setting_of_the_future": 3},
        {"a_key": "hf_abcdefghijklmnopqrstuvwxyzABCDEFGH"},
    ],
)
def test_what_is_not_taken_has_a_line(settings, tmp_path):
    result = imported(tmp_path, SDXL | settings)
    assert left(result, list(settings)[-1])
    assert "hf_abc" not in result.text()
    result.config()


def test_every_setting_that_the_program_reads_has_a_line_in_the_table():
    documented = {
        f"{prefix}{name}" for prefix, names in yaml.safe_load(KEYS.read_text("utf-8")).items() for name in names
    }
    assert len(documented) > 600
    assert not documented - PROGRAM.settings.keys()
    assert set(PROGRAM.facts["variables"].values()) | set(PROGRAM.facts["earlier"].values()) <= PROGRAM.settings.keys()


@pytest.mark.parametrize("name", TRAINED)
def test_each_model_tells_the_family(name, tmp_path):
    family, _, flavour = name.partition(":")
    given = {"model_family": family, "model_type": "lora"} | ({"model_flavour": flavour} if flavour else {})
    result = imported(tmp_path, given)
    assert result.config().family == TRAINED[name]
    assert result.values["model.base"]


@pytest.mark.parametrize(
    "settings",
    [
        {"model_family": "ace_step"},
        {"model_family": "wan", "model_flavour": "vace-14b-2.1"},
        {"model_family": "sdxl", "model_flavour": "refiner-1.0"},
        {"model_family": "a_new_model"},
    ],
)
def test_a_model_that_chorus_lacks_is_refused(settings, tmp_path):
    with pytest.raises(UserError, match="does not train this model"):
        imported(tmp_path, settings)


def test_every_family_of_the_table_is_one_of_chorus_and_every_flavour_has_weights():
    assert set(TRAINED.values()) <= load_families().keys()
    bases = PROGRAM.facts["bases"]
    assert all(flavour in bases[model] for model, flavour in PROGRAM.facts["flavours"].items())


@pytest.mark.parametrize(
    ("model", "flavour", "family"),
    [
        ("kandinsky5_video", "i2v-lite-5s", "kandinsky5_i2v"),
        ("minimaxh3", "convrot-int8", "minimax_h3"),
        ("ltxvideo2", "2.5-dev", "ltx25"),
    ],
)
def test_a_model_is_known_by_its_name_with_either_sign(model, flavour, family, tmp_path):
    result = imported(tmp_path, {"model_family": model, "model_flavour": flavour, "model_type": "lora"})
    values = result.values
    assert values["family"] == family
    assert bool(why(result, "model.base")) is ("int8" in flavour)  # whose file is not taken
    assert values["model.base"] in PROGRAM.facts["bases"][model.replace("_", "-")].values()


def test_names_with_dashes_and_the_section_of_the_window_mean_the_same(tmp_path):
    plain = SDXL | {"learning_rate": "1e-4", "lora_rank": 8}
    dashed = {f"--{name}": value for name, value in plain.items()}
    expected = imported(tmp_path, plain).values
    assert imported(tmp_path, dashed).values == expected
    assert imported(tmp_path, {"_metadata": {"name": "a"}, "config": dashed}).values == expected


def test_a_command_and_an_environment_file_mean_the_same_as_the_settings(tmp_path):
    expected = imported(tmp_path, SDXL | {"learning_rate": "1e-4", "max_train_steps": 300, "use_dora": True}).values
    command = tmp_path / "run.sh"
    text = "accelerate launch train.py --model_family=sdxl --model-type lora --learning_rate 1e-4 \\\n"
    command.write_text(f"{text}  --max_train_steps=300 --use_dora # now\n", "utf-8")
    assert import_files([command]).values == expected
    command.write_text(command.read_text("utf-8").replace("accelerate launch train.py", "simpletuner train"), "utf-8")
    assert import_files([command]).values == expected
    environment = tmp_path / "config.env"
    lines = ["export MODEL_FAMILY='sdxl'", 'MODEL_TYPE="lora"', "# a comment", "LEARNING_RATE=1e-4 # more"]
    lines += ["MAX_NUM_STEPS=300", 'export TRAINER_EXTRA_ARGS="--use_dora"']
    environment.write_text("\ufeff" + "\n".join(lines), "utf-8")
    assert import_files([environment]).values == expected


def test_the_file_of_lycoris_tells_kind_and_size(tmp_path):
    file = tmp_path / "lycoris.json"
    settings = SDXL | {"lora_type": "lycoris", "lycoris_config": "lycoris.json"}
    preset = {"target_module": ["Attention", "FeedForward"], "module_algo_map": {"FeedForward": {"factor": 8}}}
    file.write_text(
        json.dumps({"algo": "lokr", "factor": 16, "linear_dim": 8, "linear_alpha": 4, "apply_preset": preset})
    )
    result = imported(tmp_path, settings)
    found = [result.values[f"lora.{name}"] for name in ("adapter", "lokr_factor", "rank", "alpha")]
    assert found == ["lokr", 16, 8, 4.0]
    assert result.values["denoiser.layers"] == "attention_mlp"
    assert left(result, "module_algo_map")
    file.write_text(json.dumps({"algo": "lokr", "full_matrix": True, "a_new_one": 1}))
    whole = imported(tmp_path, settings)
    assert (whole.values["lora.rank"], bool(why(whole, "lora.rank")), left(whole, "a_new_one")) == (
        1_000_000,
        True,
        True,
    )
    file.write_text(json.dumps({"algo": "glora", "linear_dim": "many"}))
    other = imported(tmp_path, settings)
    assert other.values["lora.adapter"] == "lora"
    assert all(left(other, name) for name in ("glora", "linear_dim"))


DATASETS: list[dict[str, Any]] = [
    {"id": "cats", "type": "local", "instance_data_dir": "C:\\Bilder\\Kätzchen", "resolution": 1.0,
     "resolution_type": "area", "repeats": 9, "caption_strategy": "textfile", "prepend_instance_prompt": True,
     "instance_prompt": "sks", "crop": True, "crop_aspect": "preserve", "minimum_image_size": 0.5,
     "caption_shuffle": {"enable": True, "count": 3, "position_start": 1}, "conditioning_data": "masks", "new": 1,
     "vae_cache_ondemand": True, "aws_secret_access_key": "wxyz"},
    {"id": "others", "instance_data_dir": "/reg", "resolution": 512, "resolution_type": "pixel", "disabled": True,
     "caption_strategy": "instanceprompt", "instance_prompt": "a cat", "is_regularisation_data": True},
    {"id": "held", "dataset_type": "eval", "instance_data_dir": "/held", "resolution": 1000},
    {"id": "masks", "dataset_type": "conditioning", "conditioning_type": "mask", "instance_data_dir": "/masks"},
    {"id": "text", "dataset_type": "text_embeds", "default": True, "cache_dir": "/cache"},
    {"id": "far", "type": "aws", "aws_bucket_name": "a"},
    {"id": "songs", "dataset_type": "audio", "instance_data_dir": "/songs"},
]  # fmt: skip


def test_datasets_are_concepts(tmp_path):
    (tmp_path / "data.json").write_text(json.dumps(DATASETS), "utf-8")
    result = imported(tmp_path, SDXL | {"data_backend_config": "data.json", "masked_loss_probability": 0.75})
    config = result.config()
    cats, others, held = config.concepts
    assert (cats.path, cats.name, cats.repeats, cats.mask_folder) == (DATASETS[0]["instance_data_dir"], "cats", 10.0,
        "/masks")  # fmt: skip
    assert (cats.captions, cats.caption_per_line, cats.caption_prefix) == ("txt", True, "sks")
    assert (cats.shuffle_tags, cats.keep_tags, cats.augmentation.crop_jitter) == (True, 1, True)
    assert (others.captions, others.prompt, others.enabled, others.regularisation) == ("prompt", "a cat", False, True)
    assert (others.resolution, held.validation, held.captions) == (512, True, "file_name")
    assert (config.data.resolution, config.data.bucketing, config.data.caption_variants) == (1000, True, 4)
    assert (config.loss.masked_training, config.loss.unmasked_probability) == (True, 0.25)
    assert config.loss.prior_by_frozen_model
    assert all(why(result, path) for path in ("concepts.0.repeats", "data.resolution", "concepts.1.resolution"))
    assert all(left(result, name) for name in ("minimum_image_size", "new", "far", "songs", "aws_secret_access_key"))
    assert "wxyz" not in result.text()


def test_a_file_of_datasets_comes_in_alone_and_behind_the_settings(tmp_path):
    data = tmp_path / "multidatabackend.json"
    data.write_text(json.dumps(DATASETS), "utf-8")
    assert len(import_files([data]).data_alone().config().concepts) == 3
    assert "family" not in import_files([data]).values
    settings = tmp_path / "config.json"
    settings.write_text(json.dumps(SDXL | {"--lora_rank": 8}), "utf-8")
    both = import_files([settings, data]).config()
    assert (len(both.concepts), both.family, both.lora.rank) == (3, "sdxl", 8)


def test_references_and_clips_are_taken_for_models_that_see_them(tmp_path):
    datasets = [
        {"id": "a", "dataset_type": "video", "instance_data_dir": "/a", "video": {"num_frames": 41, "min_frames": 9}},
        {"id": "b", "dataset_type": "conditioning", "conditioning_type": "reference_strict",
         "instance_data_dir": "/before", "source_dataset_id": "a"},
    ]  # fmt: skip
    given: dict[str, Any] = {"model_type": "lora", "data_backend_config": json.dumps(datasets)}
    edit = imported(tmp_path, given | {"model_family": "qwen_image", "model_flavour": "edit-v2"})
    assert edit.values["concepts.0.reference_folder"] == "/before"
    video = imported(tmp_path, given | {"model_family": "wan", "framerate": "16"})
    assert (video.config().data.frames, video.config().data.fps) == (41, 16.0)
    assert all(left(video, name) for name in ("/before", "min_frames"))


def test_prompts_in_several_resolutions_are_samples(tmp_path):
    (tmp_path / "prompts.json").write_text(json.dumps({"short": "a dog"}), "utf-8")
    given = {"validation_prompt": "a cat", "user_prompt_library": "prompts.json", "validation_seed": 7}
    result = imported(tmp_path, SDXL | given | {"validation_resolution": "1280x768, 1", "validation_guidance": 5})
    samples = result.config().sampling.samples
    assert [(one.prompt, one.width, one.height) for one in samples] == [
        ("a cat", 1280, 768), ("a cat", 1024, 1024), ("a dog", 1280, 768), ("a dog", 1024, 1024),
    ]  # fmt: skip
    assert {(one.seed, one.guidance, one.steps, one.negative_prompt) for one in samples} == {
        (7, 5.0, 30, "blurry, cropped, ugly")
    }


@pytest.mark.parametrize(
    ("model", "given", "path", "value"),
    [
        ("sana", {"flow_use_beta_schedule": True}, "diffusion.timesteps", "uniform"),
        ("sana", {"flow_schedule_shift": 4}, "diffusion.shift_by", "none"),
        ("flux2", {"flux_guidance_value": 3.5}, "diffusion.guidance", 1.0),
        ("ideogram", {"flow_schedule_shift": 4}, "diffusion.timesteps", "trained"),
        ("sd2x", {"rescale_betas_zero_snr": False}, "model.zero_terminal_snr", True),
        ("qwen_image", {"aspect_bucket_alignment": 64}, "data.bucket_step", 32),
    ],
)
def test_what_simpletuner_sets_itself_for_a_model_is_set_here(model, given, path, value, tmp_path):
    result = imported(tmp_path, {"model_family": model, "model_type": "lora", **given})
    assert result.values.get(path, 1.0) == value
    assert left(result, next(iter(given)))
    result.config()


@pytest.mark.parametrize(("given", "norm"), [({}, 0.01), ({"i_know_what_i_am_doing": True}, 2.0)])
def test_the_gradients_of_pixart_are_clipped_hard_unless_one_knows_what_one_does(given, norm, tmp_path):
    result = imported(
        tmp_path, {"model_family": "pixart_sigma", "model_type": "lora", "grad_clip_method": "norm", **given}
    )
    assert result.values["optimizer.max_grad_norm"] == norm
