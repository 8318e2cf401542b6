"""OneTrainer's settings mean here what they mean there, or a line says what differs."""

import json
from pathlib import Path

import pytest

from modules.config.errors import UserError
from modules.config.families import load_families
from modules.config.files import config_from_values
from modules.config.other_programs import load_program
from modules.importers.import_files import import_files
from modules.importers.ImportResult import ImportResult
from modules.importers.onetrainer import recognizes, translate

LORA = {"__version": 11, "training_method": "LORA", "model_type": "STABLE_DIFFUSION_XL_10_BASE"}
FULL = {**LORA, "training_method": "FINE_TUNE"}
FLOW = {**LORA, "model_type": "FLUX_DEV_1"}


def imported(values: object, name: str = "settings.json") -> ImportResult:
    path = Path("/nowhere") / name
    assert recognizes(path, values)
    return translate(path, values)


def changed(result: ImportResult, path: str) -> bool:
    """Whether a line says that the setting means something else here."""
    return any(line.path == path and line.why for line in result.changed)


def left(result: ImportResult, name: str) -> bool:
    return any(name in line.theirs and line.why for line in result.left)


@pytest.mark.parametrize(
    ("given", "path", "value"),
    [
        ({}, "lora.alpha", 1.0),
        ({"lora_rank": 32, "lora_alpha": 8}, "lora.alpha", 8.0),
        ({}, "optimizer.learning_rate", 3e-6),
        ({}, "epochs", 100),
        ({}, "schedule.warmup", 200.0),
        ({"learning_rate_warmup_steps": 0.05}, "schedule.warmup", 0.05),
        ({}, "text_encoder.train", True),
        ({}, "text_encoder.stop_after", 30.0),
        ({"text_encoder": {"train": False}}, "text_encoder.only", [2]),
        ({"text_encoder": {"train": False}, "text_encoder_2": {"train": False}}, "text_encoder.train", False),
        ({"text_encoder": {"learning_rate": 1e-5}}, "text_encoder.learning_rates", [1e-5, 3e-6]),
        ({}, "model.mixed_precision", "fp16"),
        ({}, "model.gradient_checkpointing", True),
        ({}, "lr_scaling", "none"),
        ({"learning_rate_scaler": "GLOBAL_BATCH"}, "lr_scaling", "sqrt"),
        ({"learning_rate_scheduler": "REX"}, "schedule.rex_d", 0.9),
        ({"learning_rate_scheduler": "COSINE_WITH_RESTARTS"}, "schedule.name", "cosine_waves"),
        ({"learning_rate_scheduler": "COSINE_WITH_HARD_RESTARTS"}, "schedule.name", "cosine_restarts"),
        ({"learning_rate_scheduler": "COSINE_WITH_HARD_RESTARTS"}, "schedule.restarts", 1),
        ({"optimizer": {"optimizer": "LION"}}, "optimizer.beta2", 0.99),
        ({"optimizer": {"optimizer": "LION"}}, "optimizer.weight_decay", 0.0),
        ({"optimizer": {"optimizer": "SGD"}}, "optimizer.sgd_momentum", 0.0),
        ({"optimizer": {"optimizer": "ADAFACTOR"}}, "optimizer.weight_decay", 0.0),
        ({"optimizer": {"optimizer": "ADOPT"}}, "optimizer.other_arguments", "betas=(0.9, 0.9999), eps=1e-06"),
        ({"optimizer": {"optimizer": "AdEMAMix", "alpha": 8}}, "optimizer.ademamix_alpha", 8.0),
        ({"layer_filter_preset": "full"}, "lora.targets", "linear_conv"),
        ({"layer_filter_preset": "attn-mlp"}, "denoiser.include_layers", "*attentions*"),
        ({"layer_filter": "attn1,attn2"}, "denoiser.include_layers", "*attn1*, *attn2*"),
        ({"loss_weight_fn": "P2", "loss_weight_strength": 1}, "loss.p2_gamma", 1.0),
        ({"loss_weight_fn": "DEBIASED_ESTIMATION"}, "loss.debiased_v", "onetrainer"),
        ({"loss_weight_fn": "MIN_SNR_GAMMA", "loss_weight_strength": 7}, "loss.snr_gamma", 7.0),
        ({"log_cosh_strength": 0.5}, "loss.log_cosh", 0.5),
        ({"generalized_offset_noise": True, "offset_noise_weight": 0.02}, "diffusion.offset_noise_by_timestep", True),
        ({"timestep_distribution": "HEAVY_TAIL", "noising_weight": 1.2}, "diffusion.mode_scale", 1.2),
        ({"timestep_distribution": "LOGIT_NORMAL", "noising_weight": 0.5}, "diffusion.logit_normal_std", 1.5),
        (
            {"timestep_distribution": "SIGMOID", "noising_weight": 5, "noising_bias": 0.1},
            "diffusion.sigmoid_centre",
            0.6,
        ),
        ({"rescale_noise_scheduler_to_zero_terminal_snr": True}, "model.prediction_type", "v_prediction"),
        ({"min_noising_strength": 0.2}, "diffusion.min_timestep", 200),
        ({"resolution": "512, 768"}, "data.resolutions", [512, 768]),
        ({"resolution": "1024x768"}, "data.height", 768),
        ({}, "data.max_aspect", 4.0),
        ({"unet": {"weight_dtype": "NFLOAT_4"}}, "model.denoiser_quantization", "nf4"),
        ({"unet": {"offload_fraction": 0.5}}, "model.blocks_to_swap", None),
        ({"sample_after": 90, "sample_after_unit": "SECOND"}, "sampling.every", 1.5),
        ({"rolling_backup": True, "rolling_backup_count": 5}, "backup.keep", 5),
        ({"clip_grad_norm": None}, "optimizer.max_grad_norm", 0.0),
        ({"peft_type": "LOKR", "lokr_dim": 4}, "lora.rank", 4),
        ({"peft_type": "OFT_2", "oft_block_size": 16}, "lora.rank", 16),
        ({"device_indexes": "0, 2"}, "device_indexes", [0, 2]),
        ({"vae": {"model_name": "C:\\models\\vae.safetensors"}}, "model.vae", "C:\\models\\vae.safetensors"),
        ({"workspace_dir": "D:\\Läufe\\mein Lauf"}, "workspace_dir", "D:\\Läufe\\mein Lauf"),
    ],
)
def test_a_setting_is_taken(given, path, value):
    assert imported({**LORA, **given}).values[path] == value


@pytest.mark.parametrize(
    ("given", "path", "value"),
    [
        ({"sample_after": 100, "sample_after_unit": "STEP", "gradient_accumulation_steps": 4}, "sampling.every", 25.0),
        ({"learning_rate_warmup_steps": 100, "gradient_accumulation_steps": 4}, "schedule.warmup", 25.0),
        ({"learning_rate_warmup_steps": 1}, "schedule.warmup", 0.9999),
        ({"learning_rate": 1e-4, "learning_rate_scaler": "BOTH", "batch_size": 4, "gradient_accumulation_steps": 4},
         "optimizer.learning_rate", 4e-4),
        ({"ema": "GPU", "ema_decay": 0.999}, "ema.decay", 0.999 ** 0.2),
        ({"huber_strength": 1.0, "mse_strength": 0}, "loss.huber", 0.5),
        ({"masked_training": True}, "loss.unmasked_probability", 0.0),
        ({"masked_training": True}, "loss.unmasked_weight", 0.1),
        ({"optimizer": {"optimizer": "PRODIGY"}}, "optimizer.name", "prodigy"),
        ({"optimizer": {"optimizer": "ADAFACTOR", "relative_step": True}}, "optimizer.learning_rate", 0.01),
        ({"layer_filter_preset": "full"}, "lora.targets", "linear_conv"),
        ({"text_encoder_layer_skip": 1, "text_encoder_2_layer_skip": 1}, "model.clip_skip", 2),
        ({"text_encoder": {"dropout_probability": 0.1}}, "data.caption_dropout", 0.1),
        ({"rolling_backup": False}, "backup.keep", 1000),
        ({"tensorboard": False}, "tensorboard", True),
        ({"model_type": "STABLE_DIFFUSION_15_INPAINTING", "masked_training": True}, "loss.masked_training", False),
        ({"output_model_destination": "E:\\out\\cat.v2.safetensors"}, "output.name", "cat.v2"),
    ],
)  # fmt: skip
def test_a_setting_that_means_something_else_is_taken_with_a_line(given, path, value):
    result = imported({**LORA, **given})
    assert result.values[path] == pytest.approx(value)
    assert changed(result, path)


@pytest.mark.parametrize(
    "given",
    [
        {"perturbation_noise_weight": 0.1},
        {"force_circular_padding": True},
        {"learning_rate_scheduler": "CUSTOM", "custom_learning_rate_scheduler": "x.Y"},
        {"layer_filter": "^down.*", "layer_filter_regex": True},
        {"loss_scaler": "BATCH"},
        {"timestep_distribution": "INVERTED_PARABOLA", "noising_weight": 3},
        {"lora_weight_dtype": "BFLOAT_16"},
        {"latent_caching": False},
        {"a_setting_of_the_future": 3},
        {"unet": {"a_setting_of_the_future": 3}},
    ],
)
def test_what_is_not_taken_has_a_line(given):
    assert left(imported({**LORA, **given}), "_".join(list(given)[-1:])) or left(imported({**LORA, **given}), "future")


@pytest.mark.parametrize(
    ("given", "path", "value"),
    [
        ({"learning_rate": "5e-05"}, "optimizer.learning_rate", 5e-5),
        ({"lora_rank": "64.0"}, "lora.rank", 64),
        ({"compile": "true"}, "model.compile", "blocks"),
        ({"batch_size": None}, "batch_size", 1),
    ],
)
def test_numbers_and_switches_as_text_are_read(given, path, value):
    assert imported({**LORA, **given}).values[path] == value


@pytest.mark.parametrize(
    "given", [{"lora_rank": "many"}, {"lora_rank": -3}, {"epochs": [1]}, {"clip_grad_norm": "inf"}]
)
def test_what_is_no_value_has_a_line(given):
    result = imported({**LORA, **given})
    assert left(result, next(iter(given)))
    result.config()


def test_a_file_by_its_address_is_that_of_the_hub_or_has_a_line():
    address = "https://huggingface.co/ostris/Z-Image-De-Turbo/blob/main/z_image_de_turbo_v1_bf16.safetensors"
    given = {"__version": 11, "model_type": "Z_IMAGE", "transformer": {"model_name": address}}
    result = imported(given)
    assert result.values["model.denoiser"] == "ostris/Z-Image-De-Turbo/z_image_de_turbo_v1_bf16.safetensors"
    assert changed(result, "model.denoiser")
    other = imported({**given, "transformer": {"model_name": "https://example.com/a.safetensors"}})
    assert "model.denoiser" not in other.values
    assert left(other, "example.com")


def test_no_secret_is_taken_or_shown():
    token = "hf_" + "A1b2" * 8
    secrets = {
        "secrets": {"huggingface_token": token},
        "cloud": {"host": "x", "api_key": "abcdefgh"},
        "my_token": token,
    }
    result = imported({**LORA, **secrets, "base_model_name": f"https://me:{token}@example.org/model"})
    assert token not in result.text() + str(result.values)
    assert "abcdefgh" not in result.text()
    assert all(left(result, name) for name in ("secrets", "my_token", "base_model_name"))


@pytest.mark.parametrize(
    ("version", "given", "path", "value"),
    [
        (0, {"optimizer": "LION", "optimizer_weight_decay": 0.1}, "optimizer.weight_decay", 0.1),
        (None, {"train_text_encoder": False, "train_text_encoder_2": False}, "text_encoder.train", False),
        (1, {"train_unet_epochs": 7, "unet_learning_rate": 1e-5}, "denoiser.learning_rate", 1e-5),
        (2, {"min_snr_gamma": 5}, "loss.weighting", "min_snr_gamma"),
        (3, {"noising_weight": 5, "noising_bias": 0.6}, "diffusion.sigmoid_centre", 0.6),
        (4, {"gradient_checkpointing": False, "unet": {}}, "model.gradient_checkpointing", False),
        (5, {"save_after": 2, "save_after_unit": "EPOCH"}, "output.every", 2.0),
        (7, {"lora_layers": "attn"}, "denoiser.include_layers", "*attn*"),
        (9, {"weight_dtype": "BFLOAT_16", "unet": {"weight_dtype": "NONE"}}, "model.weight_dtype", "bfloat16"),
        (10, {"gradient_checkpointing": "CPU_OFFLOADED", "layer_offload_fraction": 0.4, "unet": {}},
         "model.activation_offloading", True),
    ],
)  # fmt: skip
def test_a_file_of_an_earlier_version_is_migrated(version, given, path, value):
    values = {name: entry for name, entry in LORA.items() if name != "__version"} | given
    assert imported(values if version is None else {**values, "__version": version}).values[path] == pytest.approx(
        value
    )


def test_a_built_in_preset_is_not_migrated():
    preset = {"model_type": "STABLE_DIFFUSION_15", "training_method": "LORA", "noising_bias": 0.0, "noising_weight": 2}
    values = imported({**preset, "timestep_distribution": "LOGIT_NORMAL"}, "#sd 1.5 LoRA.json").values
    assert values["diffusion.timesteps"] == "logit_normal"


def test_every_model_is_taken_or_refused_by_name():
    families = load_program("onetrainer").facts["families"]
    assert set(families.values()) <= set(load_families())
    with pytest.raises(UserError, match="WUERSTCHEN_2"):
        imported({**LORA, "model_type": "WUERSTCHEN_2"})


def test_a_newer_version_is_refused():
    with pytest.raises(UserError, match="update Chorus"):
        imported({**LORA, "__version": 99})


def test_embeddings_beside_a_lora_train_with_it():
    word = {"placeholder": "<My Cat>", "initial_embedding_text": "a cat", "token_count": 2}
    result = imported({**LORA, "additional_embeddings": [word], "embedding_learning_rate": 1e-3})
    config = result.config()
    assert (config.method, config.embeddings[0].placeholder, config.embeddings[0].vectors) == ("pivotal", "my-cat", 2)
    assert config.lora.embedding_learning_rate == 1e-3
    assert changed(result, "embeddings.0.placeholder")


def test_an_embedding_trains_at_its_own_rate():
    config = imported({**LORA, "training_method": "EMBEDDING", "embedding_learning_rate": 5e-4}).config()
    assert (config.method, config.optimizer.learning_rate, config.embeddings[0].vectors) == ("embedding", 5e-4, 1)


CONCEPT = {"name": "cats", "path": "C:\\cats", "image": {}, "text": {}}


@pytest.mark.parametrize(
    ("given", "path", "value"),
    [
        ({}, "include_subfolders", False),
        ({}, "augmentation.crop_jitter", True),
        ({}, "keep_tags", 1),
        ({}, "caption_per_line", True),
        ({"balancing": 2.5}, "repeats", 2.5),
        ({"repeats": 3}, "repeats", 3.0),
        ({"validation_concept": True}, "validation", True),
        ({"type": "PRIOR_PREDICTION"}, "regularisation", True),
        ({"image": {"enable_random_hue": True, "random_hue_max_strength": 0.4}}, "augmentation.hue", 0.2),
        ({"image": {"enable_fixed_hue": True, "random_hue_max_strength": 0.3}}, "augmentation.fixed_hue", 0.15),
        ({"image": {"enable_resolution_override": True, "resolution_override": "768"}}, "resolution", 768),
        ({"text": {"prompt_source": "filename"}}, "captions", "file_name"),
        ({"text": {"tag_dropout_enable": True, "tag_dropout_mode": "RANDOM WEIGHTED"}}, "tag_dropout_mode", "later"),
        ({"text": {"caps_randomize_enable": True, "caps_randomize_mode": "capslock"}}, "capitalization", "upper"),
    ],
)  # fmt: skip
def test_a_concept_is_taken(given, path, value):
    result = imported([{**CONCEPT, **given}], "concepts.json")
    assert result.values[f"concepts.0.{path}"] == value
    assert result.values["concepts.0.path"] == "C:\\cats"
    result.config()


def test_settings_find_their_concepts_and_samples(tmp_path):
    for folder in ("training_presets", "training_concepts", "training_samples"):
        (tmp_path / folder).mkdir()
    names = {
        "concept_file_name": "training_concepts/concepts.json",
        "sample_definition_file_name": "training_samples/s.json",
    }
    settings = tmp_path / "training_presets" / "mine.json"
    settings.write_text("\ufeff" + json.dumps({**LORA, **names}), encoding="utf-8")
    assert left(import_files([settings]), "concept_file_name")
    concepts, samples = tmp_path / names["concept_file_name"], tmp_path / names["sample_definition_file_name"]
    concepts.write_text(json.dumps([CONCEPT, {**CONCEPT, "enabled": False}]), encoding="utf-8")
    samples.write_text(json.dumps([{"prompt": "a cat", "diffusion_steps": 9, "cfg_scale": 4}]), encoding="utf-8")
    config = import_files([settings]).config()
    assert [concept.enabled for concept in config.concepts] == [True, False]
    sample = config.sampling.samples[0]
    assert (sample.steps, sample.guidance, sample.width) == (9, 4.0, 1024)
    twice = import_files([settings, concepts])
    assert len(twice.config().concepts) == 4
    assert len(import_files([concepts]).data_alone().config().concepts) == 2


def test_every_setting_of_the_table_comes_in_without_an_unknown_one():
    table = load_program("onetrainer").settings
    values: dict = {}
    for name, setting in table.items():
        *sections, last = name.split(".")
        place = values
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = setting.default
    for model in load_program("onetrainer").facts["families"]:
        result = imported({**values, **LORA, "model_type": model})
        assert not [line for line in result.left if "no such setting" in line.why]
        config_from_values(config_values := json.loads(json.dumps(result.config(), default=vars)))
        assert config_values["family"] == load_program("onetrainer").facts["families"][model]


@pytest.mark.parametrize(
    ("model", "by"), [("STABLE_DIFFUSION_35", "none"), ("CHROMA_1", "none"), ("QWEN", "resolution")]
)
def test_timesteps_are_shifted_by_the_size_where_onetrainer_does_so(model, by):
    result = imported({**LORA, "model_type": model, "dynamic_timestep_shifting": True})
    assert result.values["diffusion.shift_by"] == by
    assert left(result, "dynamic_timestep_shifting") == (by == "none")
