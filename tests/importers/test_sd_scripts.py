"""sd-scripts' arguments and datasets mean here what they mean there, or a line says what differs."""

from pathlib import Path

import pytest

from modules.config.families import load_families
from modules.config.other_programs import load_program
from modules.importers.command_lines import read_commands
from modules.importers.import_files import import_files
from modules.importers.ImportResult import ImportResult

SCRIPTS = load_program("sd_scripts").facts["scripts"]
DATA = """
[general]
enable_bucket = true
shuffle_caption = true
[[datasets]]
resolution = [1024, 768]
batch_size = 2
  [[datasets.subsets]]
  image_dir = 'C:\\Bilder\\Kätzchen'
  num_repeats = 10
  caption_extension = ".txt"
  keep_tokens = 1
  [[datasets.subsets]]
  image_dir = "/reg"
  is_reg = true
  class_tokens = "cat"
"""


def imported(arguments: str, folder: Path, script: str = "train_network.py") -> ImportResult:
    path = folder / "train.sh"
    path.write_text(f"accelerate launch {script} {arguments}\n", encoding="utf-8")
    return import_files([path])


def changed(result: ImportResult, path: str) -> bool:
    return any(line.path == path and line.why for line in result.changed)


def left(result: ImportResult, name: str) -> bool:
    return any(name in line.theirs and line.why for line in result.left)


@pytest.mark.parametrize(
    ("arguments", "path", "value"),
    [
        ("", "lora.rank", 4),
        ("--network_dim 32", "lora.alpha", 1.0),
        ("", "text_encoder.train", True),
        ("--network_train_unet_only", "text_encoder.train", False),
        ("--text_encoder_lr 0", "text_encoder.train", False),
        ("--text_encoder_lr 1e-5 2e-5", "text_encoder.learning_rate", 1e-5),
        ("", "optimizer.learning_rate", 2e-6),
        ("--max_train_steps=500", "max_steps", 500),
        ("--max_train_epochs=5 --max_train_steps=500", "max_steps", None),
        ("--lr_scheduler=cosine_with_restarts", "schedule.restarts", 1),
        ("--lr_scheduler polynomial", "schedule.power", 1.0),
        ("--lr_scheduler=warmup_stable_decay --lr_decay_steps=0.1", "schedule.decay", 0.1),
        ("--lr_warmup_steps=0.1", "schedule.warmup", 0.1),
        ("--optimizer_type Lion", "optimizer.beta2", 0.99),
        ("--optimizer_type DAdaptAdam", "optimizer.other_name", "DAdaptAdam"),
        ("--optimizer_args weight_decay=0.1 betas=0.9,0.95", "optimizer.beta2", 0.95),
        ("--optimizer_type PagedAdamW8bit", "optimizer.name", "adamw_8bit"),
        ("--use_8bit_adam", "optimizer.name", "adamw_8bit"),
        ("--optimizer_type=AdaFactor --learning_rate=1e-4 --optimizer_args relative_step=False scale_parameter=False",
         "optimizer.learning_rate", 1e-4),
        ("--network_module=lycoris.kohya --network_args algo=loha", "lora.adapter", "loha"),
        ("--network_args conv_dim=8", "lora.conv_rank", 8),
        ("", "denoiser.include_layers", "*attentions*"),
        ("--scale_weight_norms=1", "lora.max_norm", 1.0),
        ("--max_token_length=225", "model.text_chunks", 3),
        ("--weighted_captions", "model.word_weights", True),
        ("--min_snr_gamma=5", "loss.weighting", "min_snr_gamma"),
        ("--debiased_estimation_loss", "loss.debiased_v", "kohya"),
        ("--loss_type smooth_l1", "loss.smooth_l1", 1.0),
        ("--loss_type huber", "loss.huber_schedule", "snr"),
        ("--ip_noise_gamma 0.1", "diffusion.input_perturbation", 0.1),
        ("--noise_offset 0.05 --adaptive_noise_scale 0.01", "diffusion.offset_noise_adaptive", 0.01),
        ("--multires_noise_iterations 6", "diffusion.multires_noise_discount", 0.3),
        ("--v_parameterization --zero_terminal_snr", "model.zero_terminal_snr", True),
        ("", "model.prediction_type", "epsilon"),
        ("--masked_loss", "loss.unmasked_weight", 0.0),
        ("--save_state --save_every_n_epochs=2", "backup.every", 2.0),
        ("--mixed_precision=fp16", "output.dtype", "float16"),
        ("--torch_compile", "model.compile", "blocks"),
        ("--sample_every_n_steps=50", "sampling.every", 50.0),
        ("--gradient_accumulation_steps 4", "gradient_accumulation_steps", 4),
        ("", "data.bucketing", False),
        ("--log_with wandb --log_tracker_name cats", "wandb.project", "cats"),
        ("", "lr_scaling", "none"),
    ],
)  # fmt: skip
def test_an_argument_is_taken(arguments, path, value, tmp_path):
    result = imported(arguments, tmp_path)
    assert result.values[path] == value
    result.config()


@pytest.mark.parametrize(("stop", "trains"), [("", True), ("--stop_text_encoder_training=-1", False)])
def test_a_full_fine_tune_trains_the_text_encoder_unless_it_stops_before_the_first_step(stop, trains, tmp_path):
    assert imported(stop, tmp_path, "train_db.py").values["text_encoder.train"] is trains


@pytest.mark.parametrize(
    ("arguments", "path", "value"),
    [
        ("--optimizer_type=AdaFactor --learning_rate=1e-4", "optimizer.learning_rate", 0.01),
        ("--optimizer_type=Prodigy", "optimizer.name", "prodigy"),
        ("--noise_offset 0.1 --noise_offset_random_strength", "diffusion.offset_noise_random", True),
        ("--scale_v_pred_loss_like_noise_pred --v_parameterization", "loss.snr_gamma", 1000.0),
        ("--network_alpha 0 --network_dim 8", "lora.alpha", 8.0),
        ("--fp8_base", "model.denoiser_quantization", "float8"),
        ("--save_every_n_steps 100 --save_last_n_steps 300", "output.keep", 4),
        ("", "seed", 42),
        ("--save_model_as ckpt", "output.format", "single_file"),
    ],
)
def test_an_argument_that_means_something_else_is_taken_with_a_line(arguments, path, value, tmp_path):
    result = imported(arguments, tmp_path)
    assert result.values[path] == value
    assert changed(result, path)


@pytest.mark.parametrize(
    "arguments",
    [
        "--base_weights a.safetensors",
        "--resume state",
        "--pretrained_model_name_or_path model.ckpt",
        "--lr_scheduler_type my.Scheduler",
        "--caption_dropout_every_n_epochs 2",
        "--v_pred_like_loss 0.5",
        "--zero_terminal_snr",
        "--network_module my.network",
        "--block_lr 1,2",
        "--an_option_of_the_future 3",
        "--optimizer_type some.Optimizer",
        "--wandb_api_key 0123456789abcdef",
        "--learning_rate fast",
    ],
)
def test_what_is_not_taken_has_a_line(arguments, tmp_path):
    result = imported(arguments, tmp_path)
    assert left(result, arguments.split()[0].removeprefix("--"))
    assert "0123456789abcdef" not in result.text()


@pytest.mark.parametrize("script", SCRIPTS)
def test_each_script_tells_method_and_family(script, tmp_path):
    config = imported("", tmp_path, script).config()
    assert [config.method, config.family] == SCRIPTS[script]
    assert config.family in load_families()


def test_a_flow_model_is_shifted_as_its_script_shifts(tmp_path):
    result = imported("--timestep_sampling shift --sigmoid_scale 0.8", tmp_path, "flux_train_network.py")
    values = result.values
    assert (values["diffusion.timesteps"], values["diffusion.logit_normal_std"]) == ("logit_normal", 0.8)
    assert (values["diffusion.shift_by"], values["diffusion.shift"], values["diffusion.guidance"]) == (
        "factor",
        3.0,
        3.5,
    )
    assert left(result, "model_prediction_type")


SHELL = """#!/bin/bash
DIM=16   # the rank
NAME="my lora"
python -m accelerate.commands.launch "./train_network.py" \\
  --network_dim=$DIM --output_name "${NAME}" \\
  # --network_alpha=8 \\
  --output_dir=/a/b\\ c
"""
BATCH = """@echo off\r
REM my run\r
set DIM=16\r
accelerate launch train_network.py ^\r
  --network_dim=%DIM% --output_name "my lora" ^\r
  --output_dir=D:\\a\\b\r
"""
POWERSHELL = """# my run
$Dim = 16
$Name = "my lora"
accelerate launch .\\train_network.py `
  --network_dim=$Dim --output_name $Name `
  --output_dir='D:\\a b'
"""


@pytest.mark.parametrize(
    ("text", "is_windows", "folder"),
    [(SHELL, False, "/a/b c"), (BATCH, True, "D:\\a\\b"), (POWERSHELL, True, "D:\\a b")],
)
def test_commands_of_each_kind_of_script_are_read(text, is_windows, folder):
    (command,) = read_commands(text, SCRIPTS, is_windows)
    assert command.script == "train_network.py"
    assert command.arguments["network_dim"] == "16"
    assert command.arguments["output_dir"] == folder
    assert "network_alpha" not in command.arguments


def test_lines_of_arguments_belong_to_the_command_above_also_without_the_shells_sign():
    text = "accelerate launch train_network.py\n  # a comment\n  --network_dim=16 --sdpa\n  --seed 42\ncd ..\n"
    (command,) = read_commands(text, SCRIPTS, False)
    assert command.arguments == {"network_dim": "16", "sdpa": True, "seed": "42"}
    assert command.rest == []


def test_what_a_dataset_or_a_subset_has_of_its_own_is_taken_or_has_a_line(tmp_path):
    path = tmp_path / "data.toml"
    held = "[[datasets.subsets]]\nimage_dir = '/held'\nvalidation_split = 1.0\n"
    some = "[[datasets.subsets]]\nimage_dir = '/some'\nvalidation_split = 0.1\ntoken_warmup_min = 3\n"
    path.write_text(f"[[datasets]]\nnetwork_multiplier = 0.5\nresize_interpolation = 'area'\n{held}{some}", "utf-8")
    result = import_files([path])
    assert [concept.validation for concept in result.config().concepts] == [True, False]
    lost = ("network_multiplier", "resize_interpolation", "subset 2: validation_split", "token_warmup_min")
    assert all(left(result, name) for name in lost)


def test_a_dataset_file_gives_concepts(tmp_path):
    path = tmp_path / "data.toml"
    path.write_text("\ufeff" + DATA, encoding="utf-8")
    config = import_files([path]).config()
    cats, others = config.concepts
    assert (cats.path, cats.repeats, cats.keep_tags, cats.shuffle_tags) == ("C:\\Bilder\\Kätzchen", 10, 1, True)
    assert (cats.caption_extension, others.caption_extension, others.caption_fallback) == (".txt", ".caption", "cat")
    assert (others.regularisation, others.include_subfolders) == (True, False)
    assert (config.data.resolution, config.data.bucketing, config.batch_size) == (888, True, 2)


def test_the_dataset_file_wins_over_the_arguments_and_fills_up_from_them(tmp_path):
    (tmp_path / "data.toml").write_text(DATA, encoding="utf-8")
    (tmp_path / "p.txt").write_text("a cat --n bad --w 768 --d 7 --l 6.5 --s 20\n# no\na dog\n", encoding="utf-8")
    arguments = (
        "--dataset_config data.toml --sample_prompts p.txt --train_batch_size 8 --flip_aug --prior_loss_weight 0.5"
    )
    config = imported(arguments, tmp_path).config()
    assert config.batch_size == 2
    assert [concept.augmentation.flip for concept in config.concepts] == [True, True]
    assert [concept.loss_weight for concept in config.concepts] == [1.0, 0.5]
    sample, plain = config.sampling.samples
    assert (sample.prompt, sample.negative_prompt, sample.width, sample.seed) == ("a cat", "bad", 768, 7)
    assert (sample.guidance, sample.steps, plain.steps, plain.guidance) == (6.5, 20, 30, 7.5)


def test_folders_with_repeats_in_their_names_are_concepts(tmp_path):
    for name in ("10_a cat", "notes", "0_no"):
        (tmp_path / "images" / name).mkdir(parents=True)
    result = import_files([tmp_path / "images"])
    (concept,) = result.config().concepts
    assert (concept.name, concept.repeats, concept.caption_fallback) == ("a cat", 10, "a cat")
    assert all(left(result, name) for name in ("notes", "0_no"))
    by_argument = imported(f"--train_data_dir '{tmp_path / 'images'}'", tmp_path)
    assert len(by_argument.data_alone().config().concepts) == 1


def test_a_file_of_arguments_is_taken_with_or_without_sections(tmp_path):
    path = tmp_path / "config.toml"
    text = 'pretrained_model_name_or_path = "sdxl.safetensors"\nnetwork_module = "networks.lora"\n'
    path.write_text(f"[model]\n{text}[training]\nnetwork_dim = 8\n", encoding="utf-8")
    result = import_files([path])
    assert (result.values["family"], result.values["lora.rank"]) == ("sdxl", 8)
    assert changed(result, "family")
    assert imported("--config_file config.toml --network_dim 9", tmp_path).values["lora.rank"] == 9


@pytest.mark.parametrize(
    ("script", "arguments", "path", "value"),
    [
        ("flux_train_network.py", "--min_timestep 100", "diffusion.min_timestep", 0),
        ("flux_train.py", "--max_timestep 900", "diffusion.max_timestep", 1000),
        ("anima_train_network.py", "--noise_offset 0.1", "diffusion.offset_noise", 0.0),
        ("sd3_train_network.py", "--multires_noise_iterations 6", "diffusion.multires_noise_iterations", 0),
        ("sd3_train.py", "--ip_noise_gamma 0.1", "diffusion.input_perturbation", 0.0),
        ("lumina_train_network.py", "--min_snr_gamma 5", "loss.weighting", "constant"),
        ("sdxl_train_network.py", "--clip_skip 2", "model.clip_skip", 1),
        ("flux_train_network.py", "--vae a.safetensors", "model.vae", None),
        ("anima_train_network.py", "--fp8_base", "model.denoiser_quantization", None),
        ("hunyuan_image_train_network.py", "--fp8_base", "model.denoiser_quantization", None),
        ("fine_tune.py", "--masked_loss", "loss.masked_training", False),
        ("train_network.py", "--timestep_sampling shift", "diffusion.timesteps", "uniform"),
    ],
)
def test_what_a_script_ignores_has_no_effect_here_either(script, arguments, path, value, tmp_path):
    result = imported(arguments, tmp_path, script)
    assert result.values.get(path) == value
    (line,) = [line for line in result.left if arguments.split()[0].removeprefix("--") in line.theirs]
    assert script in line.why
    result.config()


@pytest.mark.parametrize("arguments", ["--max_timestep 1000", "--max_token_length 75", "--noise_offset 0"])
def test_an_ignored_argument_that_changes_nothing_has_no_line(arguments, tmp_path):
    assert not left(imported(arguments, tmp_path, "flux_train_network.py"), arguments.split()[0].removeprefix("--"))


@pytest.mark.parametrize(
    ("script", "mean"),
    [
        ("sd3_train_network.py", 0.5),
        ("flux_train_network.py", -0.5),
        ("lumina_train_network.py --timestep_sampling sigma", -0.5),
    ],
)
def test_a_logit_mean_above_0_means_noise_for_sd3_and_detail_for_the_others(script, mean, tmp_path):
    result = imported("--weighting_scheme logit_normal --logit_mean 0.5", tmp_path, script)
    assert result.values["diffusion.logit_normal_mean"] == mean
    assert changed(result, "diffusion.logit_normal_mean") == (mean < 0)


@pytest.mark.parametrize(
    ("script", "arguments", "weighting"),
    [
        ("flux_train_network.py", "--weighting_scheme sigma_sqrt --model_prediction_type raw", "constant"),
        ("anima_train.py", "--weighting_scheme cosmap", "cosmap"),
        ("sd3_train.py", "", "sigma"),
        ("sd3_train.py", "--weighting_scheme sigma_sqrt", "constant"),
    ],
)
def test_a_flow_models_loss_is_weighted_as_its_script_weights_it(script, arguments, weighting, tmp_path):
    result = imported(arguments, tmp_path, script)
    assert result.values["loss.weighting"] == weighting
    assert changed(result, "loss.weighting") == (weighting != "cosmap")


@pytest.mark.parametrize(
    ("script", "arguments", "trains", "only"),
    [
        ("flux_train_network.py", "", True, None),
        ("flux_train_network.py", "--network_train_unet_only", False, None),
        ("flux_train_network.py", "--text_encoder_lr 0 1e-5", False, None),
        ("sd3_train_network.py", "", True, None),
        ("sd3_train_network.py", "--text_encoder_lr 1e-5 0 0", True, [1]),
        ("sd3_train.py", "--train_text_encoder", True, [1, 2]),
        ("sd3_train.py", "--train_text_encoder --train_t5xxl", True, None),
        ("sd3_train.py", "--train_t5xxl", False, None),
        ("lumina_train_network.py", "", False, None),
        ("hunyuan_image_train_network.py", "", False, None),
        ("flux_train_network.py --model_type chroma", "", False, None),
    ],
)
def test_the_text_encoders_train_that_a_script_trains(script, arguments, trains, only, tmp_path):
    result = imported(arguments, tmp_path, script)
    assert result.values["text_encoder.train"] is trains
    assert result.values.get("text_encoder.only") == only


@pytest.mark.parametrize(
    ("script", "path", "value"),
    [
        ("sdxl_train_network.py", "text_encoder.learning_rates", [1e-5, 2e-5]),
        ("flux_train_network.py", "text_encoder.learning_rate", 1e-5),
    ],
)
def test_the_rates_of_the_text_encoders_that_train_are_taken(script, path, value, tmp_path):
    assert imported("--text_encoder_lr 1e-5 2e-5", tmp_path, script).values[path] == value


def test_an_encoder_for_which_chorus_has_no_adapter_has_a_line(tmp_path):
    assert left(imported("", tmp_path, "lumina_train_network.py"), "network_train_unet_only")
    assert not left(
        imported("--network_train_unet_only", tmp_path, "lumina_train_network.py"), "network_train_unet_only"
    )


def test_chroma_is_trained_by_the_script_of_flux(tmp_path):
    arguments = "--model_type chroma --t5xxl t5.safetensors --clip_l clip.safetensors"
    result = imported(arguments, tmp_path, "flux_train_network.py")
    assert (result.values["family"], result.values["model.text_encoders"]) == ("chroma", ["t5.safetensors"])
    result.config()


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        ("--loss_type huber --huber_scale 2 --huber_schedule constant", {"loss.huber": 1.0, "loss.huber_delta": 0.2}),
        ("--loss_type huber --huber_scale 2", {"loss.huber": 1.0, "loss.huber_delta": 0.1}),
        ("--loss_type smooth_l1 --huber_scale 2 --huber_schedule exponential", {"loss.smooth_l1": 1.0}),
    ],
)
def test_huber_scale_scales_the_threshold_of_some_schedules(arguments, values, tmp_path):
    result = imported(arguments, tmp_path)
    assert {path: result.values[path] for path in values} == values
    assert left(result, "huber_scale") == ("constant" not in arguments)


@pytest.mark.parametrize(
    ("arguments", "is_on"),
    [
        ("", False),
        ("--logging_dir logs", True),
        ("--logging_dir logs --log_with wandb", False),
        ("--logging_dir logs --log_with all", True),
    ],
)
def test_tensorboard_is_on_where_sd_scripts_logs_with_it(arguments, is_on, tmp_path):
    assert imported(arguments, tmp_path).values["tensorboard"] is is_on


def test_adafactors_own_rate_leaves_the_schedule_and_the_rates_of_the_parts_without_effect(tmp_path):
    arguments = (
        "--optimizer_type AdaFactor --optimizer_args relative_step=False warmup_init=True --lr_scheduler cosine "
        "--lr_warmup_steps 100 --unet_lr 1e-4 --text_encoder_lr 1e-5"
    )
    result = imported(arguments, tmp_path)
    assert result.values["schedule.name"] == "constant"
    assert result.values["schedule.warmup"] == 10_000
    assert not {"denoiser.learning_rate", "text_encoder.learning_rate"} & result.values.keys()
    assert all(left(result, name) for name in ("lr_scheduler", "lr_warmup_steps", "unet_lr", "text_encoder_lr"))


def test_an_odd_parameter_of_an_optimizer_prints_no_warning_of_python(tmp_path, recwarn):
    result = imported("--optimizer_type DAdaptAdam --optimizer_args decouple=1abc", tmp_path)
    assert "1abc" in result.text()
    assert not recwarn.list


@pytest.mark.parametrize(
    ("script", "prompt", "sample"),
    [
        ("sdxl_train_network.py", "a cat", (512, 30, 7.5)),
        ("sdxl_train_network.py", "a cat --l 5 --g 2", (512, 30, 5.0)),
        ("flux_train_network.py", "a cat", (512, 20, 3.5)),
        ("flux_train_network.py", "a cat --g 2.5 --l 4", (512, 20, 2.5)),
        ("lumina_train.py", "a cat --s 10", (1024, 10, 3.5)),
    ],
)
def test_a_prompt_without_options_has_those_of_its_script(script, prompt, sample, tmp_path):
    (tmp_path / "p.txt").write_text(f"{prompt}\n", encoding="utf-8")
    result = imported("--sample_prompts p.txt", tmp_path, script)
    (found,) = result.config().sampling.samples
    assert (found.width, found.steps, found.guidance) == sample
    assert left(result, "prompt 1") == ("--l" in prompt)
