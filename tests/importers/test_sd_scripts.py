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
        ("--text_encoder_lr 1e-5 2e-5", "text_encoder.learning_rates", [1e-5, 2e-5]),
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
