"""What is exported for sd-scripts comes back as it was, and what doesn't is listed."""

import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

from modules.config.describe import is_visible, settings_by_path, value_at
from modules.config.errors import UserError
from modules.config.files import apply_overrides, config_from_values
from modules.config.other_programs import load_program
from modules.config.TrainConfig import TrainConfig
from modules.importers.ExportResult import ExportResult
from modules.importers.import_files import import_files
from modules.importers.ImportResult import ImportResult
from modules.importers.read_file import read_content
from modules.importers.sd_scripts_export import export_settings
from modules.importers.toml_text import toml_text

PROGRAM = load_program("sd_scripts")
READ = Path(__file__).parent / "settings_read" / "sd_scripts.txt"
ROOT = Path.cwd().anchor
NOT_OF_THE_TRAINING = {"config_version", "cache_dir", "keep_awake", "data.max_side"}
COMMON = [
    *(f"model.base={ROOT}base.safetensors", f"workspace_dir={ROOT}run", f"concepts.0.path={ROOT}cats"),
    *("concepts.0.include_subfolders=false", "data.bucketing=false", "epochs=3", "output.format=single_file"),
]
DDPM = ["diffusion.timesteps=uniform", "model.prediction_type=epsilon"]
SD15 = ["family=sd15", *DDPM]
SDXL = ["family=sdxl", *DDPM]
LIKE_KOHYA = ["lora.targets=linear_conv", "denoiser.include_layers=*attentions*"]
FLUX = ["family=flux1", "model.base=", f"model.denoiser={ROOT}flux.safetensors", f"model.vae={ROOT}ae.safetensors"]
FLUX += ["model.text_encoders=[/clip_l.safetensors, /t5.safetensors]", "lora.targets=linear"]
FULL = ["method=full"]
WITHOUT_EFFECT = {"cache_latents", "cache_text_encoder_outputs", "sdpa"}  # here, where both are always so
SECOND = [f"concepts.1.path={ROOT}dogs", "concepts.1.include_subfolders=false"]
# The settings that differ from Chorus' defaults -> those that are lost.
CASES: dict[str, tuple[list[str], set[str]]] = {
    "a LoRA of the layers that kohya's trains": (
        [*SD15, *LIKE_KOHYA, "lora.rank=8", "lora.alpha=4", "text_encoder.train=true",
         "text_encoder.learning_rate=1e-5",
         "denoiser.learning_rate=2e-4", "lora.dropout=0.1", "lora.max_norm=1", "model.clip_skip=2",
         "model.text_chunks=3",
         "model.word_weights=true", "loss.weighting=min_snr_gamma", "schedule.name=cosine", "schedule.warmup=100"],
        set(),
    ),
    "a LoRA of the attention": (
        [*SD15, "optimizer.name=adamw_8bit", "optimizer.beta2=0.95", "schedule.name=cosine", "schedule.final_share=0.1",
         "diffusion.offset_noise=0.05", "diffusion.offset_noise_adaptive=0.01", "output.unit=steps", "output.every=100",
         "output.keep=3", "backup.unit=steps", "backup.every=100", "backup.keep=2", "loss.mse=0", "loss.huber=0.5",
         "loss.huber_schedule=snr", "diffusion.input_perturbation=0.1", "diffusion.max_timestep=900", "csv=true"],
        {"csv", "loss.huber"},
    ),
    "a LoRA of SDXL with convolutions and Prodigy": (
        [*SDXL, "lora.targets=linear_conv", "lora.conv_rank=4", "lora.conv_alpha=2", "lora.plus_ratio=4",
         "optimizer.name=prodigy", "optimizer.learning_rate=1", "optimizer.prodigy_d_coef=2", "text_encoder.train=true",
         "text_encoder.learning_rates=[1e-5, 2e-5]", "max_steps=500", "epochs=7", "model.mixed_precision=bf16",
         "model.weight_dtype=bfloat16", "model.gradient_checkpointing=true", "output.dtype=bfloat16",
         "wandb.enabled=true"],
        {"epochs"},
    ),
    "a LoKr with everything of LyCORIS": (
        [*SDXL, "lora.adapter=lokr", "lora.lokr_factor=8", "lora.lokr_decompose_both=true", "lora.rank_dropout=0.1",
         "lora.module_dropout=0.1", "lora.dora=true", "lora.layer_ranks=*attn1*: 4",
         "model.denoiser_quantization=float8"],
        {"lora.layer_ranks"},
    ),
    "a full fine-tune of SDXL": (
        [*SDXL, *FULL, "optimizer.name=adafactor", "optimizer.weight_decay=0", "optimizer.max_grad_norm=0",
         "optimizer.fused_backward=true", "text_encoder.train=true", "text_encoder.learning_rate=1e-6",
         "model.prediction_type=v_prediction", "model.zero_terminal_snr=true", "loss.weighting=debiased",
         "loss.debiased_v=kohya", "model.mixed_precision=bf16", "model.weight_dtype=bfloat16", "ema.enabled=true"],
        {"ema.enabled"},
    ),
    "a full fine-tune of the U-Net alone": (
        [*SD15, *FULL, "output.format=diffusers", "optimizer.name=lion", "optimizer.beta2=0.98",
         "schedule.name=linear"],
        set(),
    ),
    "a full fine-tune that stops the text encoder": (
        [*SD15, *FULL, "text_encoder.train=true", "text_encoder.stop_unit=steps", "text_encoder.stop_after=300",
         "optimizer.name=other", "optimizer.other_name=ADOPT",
         "optimizer.other_arguments=betas=(0.9, 0.95), cautious=True",
         "schedule.name=polynomial", "backup.every=10"],
        {"backup.every"},
    ),
    "a LoRA of FLUX": (
        [*FLUX, "diffusion.timesteps=logit_normal", "diffusion.logit_normal_std=1.2", "diffusion.shift_by=factor",
         "diffusion.guidance=3.5", "model.mixed_precision=bf16", "model.weight_dtype=bfloat16",
         "model.blocks_to_swap=10",
         "model.gradient_checkpointing=true", "model.denoiser_quantization=float8", "model.activation_offloading=true"],
        set(),
    ),
    "a LoRA of FLUX's attention as its makers train": (
        [*FLUX, "lora.targets=attention", "schedule.name=wsd", "schedule.decay=0.3", "loss.log_cosh=0.5"],
        {"diffusion.timesteps", "loss.log_cosh"},
    ),
    "a full fine-tune of FLUX": (
        [*FLUX, *FULL, "diffusion.timesteps=uniform", "diffusion.shift_by=factor", "diffusion.shift=2",
         "optimizer.name=schedule_free", "optimizer.weight_decay=0", "diffusion.min_timestep=100"],
        {"diffusion.min_timestep"},
    ),
    "a LoRA of SD3": (
        ["family=sd3", "model.base=some/name", "lora.targets=linear", "diffusion.timesteps=logit_normal",
         "diffusion.logit_normal_mean=0.3", "diffusion.shift_by=factor", "schedule.name=piecewise"],
        {"schedule.name", "loss.weighting"},
    ),
    "an embedding": (
        [*SDXL, "method=embedding", "embeddings.0.placeholder=mycat", "embeddings.0.vectors=4",
         "embeddings.0.initial_text=cat", "embeddings.0.preserve_norm=false", "embeddings.1.placeholder=mydog",
         "data.caption_dropout=0.1"],
        {"embeddings.1", "data.caption_dropout"},
    ),
    "concepts": (
        [*SD15, *LIKE_KOHYA, *SECOND, "concepts.0.repeats=10", "concepts.0.augmentation.flip=true",
         "concepts.0.shuffle_tags=true", "concepts.0.keep_tags=1", "concepts.0.caption_prefix=a \"cat\", \\ ",
         "concepts.0.tag_dropout=0.1", "concepts.0.name=my cats", "concepts.1.regularisation=true",
         "concepts.1.loss_weight=0.5", "concepts.1.resolution=256", "concepts.1.caption_fallback=ein Kätzchen",
         "concepts.1.caption_extension=.tags", "concepts.1.repeats=1.5", "data.caption_dropout=0.1",
         "data.validation_share=0.1", "validation.unit=epochs", "validation.every=1",
         f"concepts.2.path={ROOT}cats", "concepts.2.include_subfolders=false", "concepts.2.resolution=256"],
        {"concepts.0.name", "concepts.1.repeats"},
    ),
    "buckets": (
        [*SD15, *LIKE_KOHYA, "data.bucketing=true", "data.resolution=640", "data.max_aspect=4", "data.no_upscale=true",
         *SECOND, "concepts.1.include_subfolders=true", "concepts.1.captions=prompt", "concepts.1.prompt=a dog"],
        {"concepts.1.include_subfolders", "concepts.1.captions", "concepts.1.prompt"},
    ),
    "masks": (
        [*SD15, *LIKE_KOHYA, *SECOND, "loss.masked_training=true", "loss.unmasked_weight=0",
         "loss.unmasked_probability=0",
         f"concepts.0.mask_folder={ROOT}masks", "concepts.0.caption_fallback=cat", "concepts.1.alpha_mask=true"],
        {"concepts.0.caption_fallback"},
    ),
    "samples": (
        [*SD15, *LIKE_KOHYA, "sampling.unit=epochs", "sampling.every=1", "sampling.at_start=true",
         "sampling.samples.0.prompt=a cat, \"sitting\"", "sampling.samples.0.negative_prompt=bad, ugly",
         "sampling.samples.0.width=640", "sampling.samples.0.height=512", "sampling.samples.0.guidance=5",
         "sampling.samples.1.prompt=two", "sampling.samples.1.width=512", "sampling.samples.1.height=512",
         "sampling.samples.1.count=2"],
        {"sampling.samples.1.count"},
    ),
}  # fmt: skip


def settings(*overrides: str) -> TrainConfig:
    return config_from_values(apply_overrides({}, [*COMMON, *overrides]))


def imported(result: ExportResult, folder: Path) -> ImportResult:
    for name, text in result.files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return import_files([folder / "train.sh"])


def active(config: TrainConfig) -> dict[str, object]:
    found = {}
    for path, info in settings_by_path().items():
        name, in_list, rest = path.partition("[].")
        if in_list:
            items = enumerate(value_at(config, name))
            found |= {f"{name}.{n}.{rest}": value_at(one, rest) for n, one in items if is_visible(info, config, one)}
        elif info.type != "list" and is_visible(info, config):
            found[path] = value_at(config, path)
    return found


def differs(config: TrainConfig, path: str, value: object) -> bool:
    try:
        return value_at(config, path) != (pytest.approx(value) if isinstance(value, float) else value)
    except IndexError:
        return True


def lists(kind: str) -> dict[str, set[str]]:
    """The names in the sources' lists, by the heads of the lists."""
    parts = re.split(r"^\[(.+)\]$", READ.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    found = {head: set(names.split()) for head, names in zip(parts[::2], parts[1::2], strict=True)}
    return {head: names for head, names in found.items() if head.startswith(("dataset", "subset")) == (kind == "data")}


@pytest.mark.parametrize(("overrides", "lost"), CASES.values(), ids=CASES)
def test_what_is_imported_again_differs_only_where_a_line_says_so(overrides, lost, tmp_path):
    config = settings(*overrides)
    result = export_settings(config)
    assert {line.path for line in result.lost} == lost
    assert all(line.why for line in result.lost + result.changed)
    again = imported(result, tmp_path)
    assert {word for line in again.left for word in re.findall("[a-z_]+(?= true)", line.theirs)} <= WITHOUT_EFFECT
    back = again.config()
    differing = {path for path, value in active(config).items() if differs(back, path, value)}
    of_entries = {path for path in differing if any(path.startswith(f"{one}.") for one in lost)}
    assert differing - of_entries - NOT_OF_THE_TRAINING == lost - {path.rpartition(".")[0] for path in of_entries}


@pytest.mark.parametrize("overrides", [overrides for overrides, _ in CASES.values()], ids=CASES)
def test_every_argument_and_every_key_of_a_dataset_is_one_that_the_script_has(overrides, tmp_path):
    result = export_settings(settings(*overrides))
    imported(result, tmp_path)
    script = result.command.partition("/")[2].partition(".py")[0]
    known = set().union(
        *(names for heads, names in lists("arguments").items() if heads == "all" or script in heads.split())
    )
    assert set(read_content(tmp_path / "arguments.toml")) - known == set()
    content, keys = read_content(tmp_path / "dataset.toml"), lists("data")
    assert content.keys() == {"general", "datasets"}
    assert content["general"].keys() <= keys["dataset"] | keys["subset"]
    for dataset in content["datasets"]:
        assert dataset.keys() <= keys["dataset"] | {"subsets"}
        for subset in dataset["subsets"]:
            kind = "with" if "conditioning_data_dir" in dataset["subsets"][0] else "without"
            assert subset.keys() <= keys["subset"] | keys[f"subset {kind} conditioning_data_dir"]


def test_the_table_gives_an_argument_only_to_scripts_that_have_it():
    arguments = lists("arguments")
    for row in PROGRAM.facts["only"]:
        for script in PROGRAM.facts["scripts"]:
            if any(fnmatch(script, pattern) for pattern in row["scripts"]):
                heads = [head for head in arguments if head == "all" or script.removesuffix(".py") in head.split()]
                assert set(row["arguments"]) - set().union(*(arguments[head] for head in heads)) == set(), script


def test_the_table_gives_reasons_for_settings_that_there_are():
    names = {path.partition(" ")[0].removesuffix("[]") for path in PROGRAM.facts["lost"]}
    assert names - settings_by_path().keys() == {""}


@pytest.mark.parametrize(
    ("overrides", "arguments"),
    [
        ([*SD15, *LIKE_KOHYA], {"network_module": "networks.lora", "network_dim": 16, "network_train_unet_only": True}),
        ([*SD15], {"network_module": "lycoris.kohya", "network_args": ["algo=lora", "preset=attn-only"]}),
        ([*SD15, *LIKE_KOHYA, "lora.nested_unit=4"], {"network_module": "networks.dylora", "network_args": ["unit=4"]}),
        ([*SD15, *FULL], {"stop_text_encoder_training": -1}),
        ([*SD15, "schedule.warmup=0.1"], {"lr_scheduler": "constant_with_warmup", "lr_warmup_steps": 0.1}),
        ([*SD15, "schedule.warmup=100"], {"lr_warmup_steps": 100}),
        ([*SD15, "max_steps=20"], {"max_train_steps": 20}),
        ([*SD15, "optimizer.name=adafactor"],
         {"optimizer_args": ["weight_decay=0.01", "relative_step=False", "scale_parameter=False",
         "warmup_init=False"]}),
        ([*SD15, "optimizer.name=adamw_8bit", "optimizer.state_in_ram=true"], {"optimizer_type": "pagedadamw8bit"}),
        ([*SD15, "optimizer.name=other", "optimizer.other_name=CAME"], {"optimizer_type": "pytorch_optimizer.CAME"}),
        ([*SD15, "output.unit=steps", "output.every=10", "output.keep=3"], {"save_last_n_steps": 20}),
        ([*SD15, "model.mixed_precision=bf16"], {"mixed_precision": "bf16", "save_precision": "float"}),
        ([*SDXL, *FULL, "model.mixed_precision=bf16", "model.weight_dtype=bfloat16"], {"full_bf16": True}),
        ([*SDXL, "concepts.0.augmentation.crop_jitter=true"], {"cache_text_encoder_outputs": True}),
        ([*FLUX], {"timestep_sampling": "flux_shift", "model_prediction_type": "raw", "guidance_scale": 1.0}),
        ([*FLUX], {"ae": f"{ROOT}ae.safetensors", "clip_l": "/clip_l.safetensors"}),
        (["family=sd3"], {"weighting_scheme": "logit_normal", "training_shift": 3.0}),
        (["family=sd3", "diffusion.timesteps=uniform"], {"weighting_scheme": "sigma_sqrt"}),
        ([*FLUX, "diffusion.timesteps=logit_normal", "diffusion.logit_normal_mean=0.3"], {"logit_mean": -0.3}),
        ([*SD15, "loss.mse=0", "loss.huber=0.5"], {"loss_type": "huber", "huber_scale": None}),
        ([*SD15, "tensorboard=false"], {"seed": 42}),
        ([*SD15, "batch_size=8", "batch_size_mode=global", "gradient_accumulation_steps=2"], {"train_batch_size": 4}),
    ],
)  # fmt: skip
def test_a_setting_is_the_argument_that_means_it(overrides, arguments, tmp_path):
    imported(export_settings(settings(*overrides)), tmp_path)
    written = read_content(tmp_path / "arguments.toml")
    assert {name: written.get(name) for name in arguments} == arguments


def test_sd_scripts_can_cache_latents_only_without_random_crops(tmp_path):
    imported(export_settings(settings(*SDXL, "concepts.0.augmentation.crop_jitter=true")), tmp_path)
    assert "cache_latents" not in read_content(tmp_path / "arguments.toml")


def test_the_sides_of_buckets_are_multiples_of_their_step(tmp_path):
    imported(export_settings(settings(*SD15, "data.bucketing=true", "data.resolution=512")), tmp_path)
    dataset = read_content(tmp_path / "dataset.toml")["datasets"][0]
    assert (dataset["min_bucket_reso"], dataset["max_bucket_reso"]) == (320, 768)


def test_what_is_off_is_listed_and_not_written(tmp_path):
    overrides = [*SD15, *SECOND, "concepts.0.enabled=false", "sampling.samples.0.prompt=cat"]
    result = export_settings(settings(*overrides, "sampling.samples.0.enabled=false", "sampling.samples.1.prompt="))
    left_out = {"concepts.0.enabled", "sampling.samples.0.enabled", "sampling.samples.1.prompt"}
    assert left_out <= {line.path for line in result.lost}
    assert imported(result, tmp_path).config().concepts[0].path == f"{ROOT}dogs"
    assert "prompts.txt" not in result.files


def test_files_that_sd_scripts_needs_beside_the_model_are_to_be_named():
    text = export_settings(settings("family=flux1", "model.base=some/flux")).text()
    assert all(name in text for name in ("pretrained_model_name_or_path", "ae:", "clip_l:", "t5xxl:"))


def test_what_means_something_else_there_is_said():
    result = export_settings(settings(*SD15, "optimizer.name=prodigy"))
    assert [line.path for line in result.changed] == ["optimizer.name"]


@pytest.mark.parametrize("overrides", [["family=auraflow"], ["family=sdxl", "method=vae"]])
def test_a_model_that_no_script_trains_is_refused_with_what_it_trains(overrides):
    with pytest.raises(UserError, match="sd-scripts"):
        export_settings(settings(*overrides))


@pytest.mark.parametrize(
    ("value", "why"), [("diffusion.timesteps=beta", "uniform is written"), ("diffusion.timesteps=trained", "published")]
)
def test_a_line_gives_the_reason_of_its_value(value, why):
    lines = export_settings(settings(*FLUX, value)).lost
    assert [why in line.why for line in lines] == [True]


def test_a_setting_of_what_is_off_is_not_lost():
    unused = ["loss.huber_delta=0.5", "diffusion.multires_noise_discount=0.8", "diffusion.offset_noise_random=true"]
    assert export_settings(settings(*SD15, *unused)).lost == []


def test_texts_of_any_kind_are_the_same_in_toml(tmp_path):
    values = {
        "text": 'a "b" \\ \n \x7f \x01 Kätzchen',
        "numbers": [1, 1e-05, -2.5],
        "section": {"on": True, "none": []},
    }
    (tmp_path / "values.toml").write_text(toml_text(values), encoding="utf-8")
    assert read_content(tmp_path / "values.toml") == values
