"""What kohya_ss' window says becomes the arguments that it gives to sd-scripts, or a line says what differs."""

import json
from contextlib import suppress
from pathlib import Path

import pytest

from modules.config.errors import UserError
from modules.config.other_programs import load_program
from modules.importers.import_files import import_files
from modules.importers.ImportResult import ImportResult

READ = Path(__file__).parent / "settings_read" / "kohya_ss.txt"
LORA = {"LoRA_type": "Standard", "max_resolution": "512,512", "lr_warmup": 0, "xformers": "xformers"}


def imported(folder: Path, **settings: object) -> ImportResult:
    path = folder / "run.json"
    path.write_text("\ufeff" + json.dumps(LORA | settings), encoding="utf-8")
    return import_files([path])


def of_weights(folder: Path, **settings: object) -> ImportResult:
    path = folder / "run.json"
    common = {name: value for name, value in LORA.items() if name != "LoRA_type"}
    path.write_text(json.dumps(common | {"noise_offset_type": "Original"} | settings), encoding="utf-8")
    return import_files([path])


def left(result: ImportResult, name: str) -> bool:
    return any(name in line.theirs and line.why for line in result.left)


def test_every_setting_of_the_window_has_a_line_in_a_table():
    known = load_program("kohya_ss").settings.keys() | load_program("sd_scripts").settings.keys()
    assert set(READ.read_text(encoding="utf-8").split()) - known == set()


@pytest.mark.parametrize(
    ("settings", "path", "value"),
    [
        ({}, "lora.rank", 8),
        ({}, "optimizer.learning_rate", 1e-4),
        ({"optimizer": "AdamW8bit"}, "optimizer.name", "adamw_8bit"),
        ({"optimizer_args": "weight_decay=0.1 betas=0.9,0.95"}, "optimizer.beta2", 0.95),
        ({"learning_rate": "5e-05"}, "optimizer.learning_rate", 5e-5),
        ({"epoch": "4", "max_train_epochs": "", "max_train_steps": 0}, "epochs", 4),
        ({"epoch": 4, "max_train_steps": "300"}, "max_steps", 300),
        ({"epoch": 4, "max_train_epochs": 6}, "epochs", 6),
        ({"lr_warmup": "10"}, "schedule.warmup", 0.1),
        ({"lr_warmup": 10, "lr_warmup_steps": 50}, "schedule.warmup", 50.0),
        ({"lr_scheduler_power": ""}, "schedule.power", 1.0),
        ({"max_resolution": "1024,768"}, "data.resolution", 888),
        ({}, "data.bucketing", True),
        ({}, "data.no_upscale", True),
        ({"text_encoder_lr": 0, "unet_lr": 1e-4}, "text_encoder.train", False),
        ({"text_encoder_lr": 1e-5, "unet_lr": 0}, "denoiser.train", False),
        ({"text_encoder_lr": 0, "unet_lr": 0}, "text_encoder.train", True),
        ({"text_encoder_lr": "5e-05"}, "text_encoder.learning_rate", 5e-5),
        ({"LoRA_type": "Kohya LoCon", "conv_dim": 4, "conv_alpha": 2}, "lora.conv_rank", 4),
        ({"conv_dim": 4}, "denoiser.include_layers", "*attentions*"),
        ({"LoRA_type": "LyCORIS/LoKr", "factor": 8}, "lora.adapter", "lokr"),
        ({"LoRA_type": "LoCon", "dora_wd": True}, "lora.dora", True),
        ({"LoRA_type": "LyCORIS/LoHa", "LyCORIS_preset": "attn-only"}, "lora.targets", "attention"),
        ({"noise_offset": 0.05, "multires_noise_iterations": 6}, "diffusion.offset_noise", 0.05),
        ({"noise_offset": 0.05, "multires_noise_iterations": 6}, "diffusion.multires_noise_iterations", 0),
        ({"noise_offset_type": "Multires", "noise_offset": 0.1, "multires_noise_iterations": 6},
         "diffusion.offset_noise", 0.0),
        ({"min_snr_gamma": 0}, "loss.weighting", "constant"),
        ({"min_snr_gamma": 5}, "loss.snr_gamma", 5.0),
        ({"scale_weight_norms": 0}, "lora.max_norm", None),
        ({"additional_parameters": "--min_snr_gamma 7 --flip_aug"}, "loss.snr_gamma", 7.0),
        ({"sdxl": True}, "family", "sdxl"),
        ({"flux1_checkbox": True, "LoRA_type": "Flux1", "guidance_scale": 1}, "diffusion.guidance", 1.0),
        ({"anima_checkbox": True, "LoRA_type": "Anima", "timestep_sampling": "shift", "anima_discrete_flow_shift": 3,
          "anima_timestep_sampling": "shift"}, "diffusion.shift", 3.0),
        ({"use_wandb": "True"}, "wandb.enabled", True),
        ({"lora_network_weights": "C:\\a b.safetensors"}, "lora.start_from", "C:\\a b.safetensors"),
        ({"sample_prompts": "a cat --w 768 --n bad"}, "sampling.samples.0.width", 768),
        ({"dynamo_backend": "inductor"}, "model.compile", "blocks"),
    ],
)  # fmt: skip
def test_a_setting_is_taken(settings, path, value, tmp_path):
    result = imported(tmp_path, **settings)
    assert result.values[path] == value
    assert result.program == "kohya_ss"
    result.config()


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"an_option_of_the_future": 3}, "an_option_of_the_future"),
        ({"huggingface_token": "0123456789abcdef"}, "huggingface_token"),
        ({"wandb_api_key": "0123456789abcdef"}, "wandb_api_key"),
        ({"LoRA_type": "LyCORIS/GLoRA"}, "network_args"),
        ({"LoRA_type": "Of the future"}, "LoRA_type"),
        ({"multi_gpu": True, "num_processes": 2}, "num_processes"),
        ({"train_blocks": "single"}, "train_blocks"),
        ({"clip_g": "clip_g.safetensors"}, "clip_g"),
        ({"stop_text_encoder_training": 50}, "stop_text_encoder_training"),
        ({"dataset_config": "nowhere.toml", "epoch": 3}, "epoch"),
    ],
)
def test_what_is_not_taken_has_a_line(settings, name, tmp_path):
    result = imported(tmp_path, **settings)
    assert left(result, name)
    assert "0123456789abcdef" not in result.text()


def test_the_page_tells_the_method(tmp_path):
    assert imported(tmp_path).values["method"] == "lora"
    assert of_weights(tmp_path).values["method"] == "full"
    assert of_weights(tmp_path, token_string="cat", num_vectors_per_token=2).values["method"] == "embedding"


def test_percentages_of_the_run_become_its_epochs(tmp_path):
    values = of_weights(tmp_path, epoch=10, stop_text_encoder_training=30).values
    assert (values["text_encoder.stop_unit"], values["text_encoder.stop_after"]) == ("epochs", 3.0)


def test_the_folder_of_the_page_that_fine_tunes_is_a_concept(tmp_path):
    (concept,) = of_weights(tmp_path, image_folder="D:\\Bilder", dataset_repeats="2").config().concepts
    assert (concept.path, concept.repeats, concept.caption_extension) == ("D:\\Bilder", 2, ".caption")


def test_lines_show_the_names_of_the_window(tmp_path):
    text = imported(tmp_path, optimizer="Lion", lr_warmup=10).text()
    assert "optimizer Lion -> optimizer.name" in text
    assert "lr_warmup 10 -> schedule.warmup 0.1" in text


def test_infinite_numbers_give_settings_or_a_message(tmp_path):
    path = tmp_path / "run.json"
    for value in ("1e999", "-1e999", "NaN", '"inf"'):
        text = ", ".join(
            f'"{name}": {value}' for name in ("epoch", "lr_warmup", "unet_lr", "stop_text_encoder_training")
        )
        path.write_text(json.dumps(LORA)[:-1] + f", {text}}}", encoding="utf-8")
        with suppress(UserError):
            import_files([path]).config()
