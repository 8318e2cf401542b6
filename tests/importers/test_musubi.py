"""musubi-tuner's arguments and datasets mean here what they mean there, or a line says what differs."""

from pathlib import Path

import pytest

from modules.config.errors import UserError
from modules.config.families import load_families
from modules.importers.import_files import import_files
from modules.importers.ImportResult import ImportResult
from modules.importers.MusubiTranslation import argument_names, musubi_tuner

READ = Path(__file__).parent / "settings_read" / "musubi_tuner.txt"
DATA = """
[general]
resolution = [960, 544]
enable_bucket = true
caption_extension = "txt"
[[datasets]]
video_directory = 'C:\\Filme\\Kätzchen'
target_frames = [1, 25, 45]
frame_extraction = "slide"
source_fps = 30.0
num_repeats = 2
[[datasets]]
image_directory = "/images"
resolution = 512
batch_size = 4
control_directory = "/before"
fp_1f_target_index = 1
"""


def imported(arguments: str, folder: Path, script: str = "wan_train_network.py", before: str = "") -> ImportResult:
    path = folder / "train.sh"
    path.write_text(f"accelerate launch {before} src/musubi_tuner/{script} {arguments}\n", encoding="utf-8")
    return import_files([path])


def left(result: ImportResult, name: str) -> bool:
    return any(name in line.theirs and line.why for line in result.left)


def changed(result: ImportResult, path: str) -> bool:
    return any(line.path == path and line.why for line in result.changed)


def test_what_a_second_dataset_of_videos_has_of_its_own_has_a_line(tmp_path):
    path = tmp_path / "data.toml"
    more = "[[datasets]]\nvideo_directory = '/more'\nframe_extraction = 'full'\nmax_frames = 45\nsource_fps = 30.0\n"
    path.write_text(DATA.replace("num_repeats = 2", "frame_stride = 10") + more, encoding="utf-8")
    result = import_files([path])
    assert left(result, "dataset 3: frame_extraction full, max_frames 45")
    assert any("frame_stride 10" in line.theirs for line in result.changed)


def test_every_argument_of_the_scripts_has_a_line_in_the_table():
    assert set(READ.read_text(encoding="utf-8").split()) - argument_names() == set()
    assert argument_names() <= musubi_tuner().settings.keys()


@pytest.mark.parametrize(
    ("arguments", "path", "value"),
    [
        ("", "lora.rank", 4),
        ("--network_dim 32", "lora.alpha", 1.0),
        ("", "text_encoder.train", False),
        ("", "optimizer.learning_rate", 2e-6),
        ("", "max_steps", 1600),
        ("--max_train_epochs 16", "max_steps", None),
        ("", "output.dtype", "float32"),
        ("--save_precision bf16", "output.dtype", "bfloat16"),
        ("--full_bf16", "output.dtype", "bfloat16"),
        ("--lr_scheduler rex", "schedule.rex_d", 0.9),
        ("--lr_scheduler rex", "schedule.final_share", 0.01),
        ("--lr_scheduler rex --lr_scheduler_min_lr_ratio 0.1", "schedule.final_share", 0.1),
        ("--lr_scheduler polynomial", "schedule.power", 1.0),
        ("--optimizer_type adamw8bit", "optimizer.name", "adamw_8bit"),
        ("--optimizer_type prodigyopt.Prodigy", "optimizer.name", "prodigy"),
        ("--timestep_sampling shift --discrete_flow_shift 3", "diffusion.shift", 3.0),
        ("--timestep_sampling shift", "diffusion.timesteps", "logit_normal"),
        ("--discrete_flow_shift 7", "diffusion.timesteps", "uniform"),
        ("--discrete_flow_shift 7", "diffusion.shift", 7.0),
        ("", "diffusion.shift_by", "none"),
        ("--timestep_sampling sigmoid --discrete_flow_shift 7", "diffusion.shift_by", "none"),
        ("--timestep_sampling flux2_shift --sigmoid_scale 0.8", "diffusion.shift_by", "resolution"),
        ("--timestep_sampling flux2_shift --sigmoid_scale 0.8", "diffusion.logit_normal_std", 0.8),
        ("--weighting_scheme sigma_sqrt", "loss.weighting", "sigma_sqrt"),
        ("--fp8_t5", "model.text_encoder_quantization", "float8"),
        ("--gradient_checkpointing_cpu_offload", "model.activation_offloading", True),
        ("--compile", "model.compile", "blocks"),
        ("--blocks_to_swap 20", "model.blocks_to_swap", 20),
        ("--network_module networks.loha", "lora.adapter", "loha"),
        ("--network_args loraplus_lr_ratio=4", "lora.plus_ratio", 4.0),
        ("--scale_weight_norms 1", "lora.max_norm", 1.0),
    ],
)
def test_an_argument_is_taken(arguments, path, value, tmp_path):
    result = imported(arguments, tmp_path)
    assert result.values[path] == value
    result.config()


@pytest.mark.parametrize(
    ("arguments", "path", "value"),
    [
        ("", "model.mixed_precision", "bf16"),
        ("--timestep_sampling logsnr --logit_mean 4 --logit_std 2", "diffusion.logit_normal_mean", -2.0),
        ("--fp8_base --fp8_scaled", "model.denoiser_quantization", "float8"),
        ("--dit model.safetensors", "model.denoiser", "model.safetensors"),
        ("--optimizer_type Adafactor --learning_rate 1e-4", "optimizer.learning_rate", 0.01),
        (
            "--task t2v-A14B --dit high.safetensors --min_timestep 875 --timestep_sampling shift",
            "denoiser.expert",
            "high",
        ),
    ],
)
def test_an_argument_that_means_something_else_is_taken_with_a_line(arguments, path, value, tmp_path):
    result = imported(arguments, tmp_path)
    assert result.values[path] == value
    assert changed(result, path)


@pytest.mark.parametrize(
    "arguments",
    [
        "--an_option_of_the_future 3",
        "--min_snr_gamma 5",  # sd-scripts has it, musubi-tuner has not
        "--preserve_distribution_shape",
        "--num_timestep_buckets 10",
        "--timestep_sampling qinglong_flux",
        "--one_frame",
        "--wandb_api_key 0123456789abcdef",
        "--learning_rate fast",
        "--resume state",
    ],
)
def test_what_is_not_taken_has_a_line(arguments, tmp_path):
    result = imported(arguments, tmp_path)
    assert left(result, arguments.split()[0].removeprefix("--"))
    assert "0123456789abcdef" not in result.text()
    result.config()


def choices() -> list[tuple[str, str, str | None]]:
    facts = musubi_tuner().facts
    found = [(script, "", family) for script, (_, family) in facts["scripts"].items()]
    for script, options in facts["choices"].items():
        found += [(script, f"--{name} {key}", family) for name, keys in options.items() for key, family in keys.items()]
    return found


@pytest.mark.parametrize(("script", "arguments", "family"), choices())
def test_each_script_tells_the_family_or_that_chorus_lacks_it(script, arguments, family, tmp_path):
    if family is None:
        with pytest.raises(UserError, match=script):
            imported(arguments, tmp_path, script)
        return
    config = imported(arguments, tmp_path, script).config()
    assert config.family == family
    assert family in load_families()


def test_two_experts_come_in_the_order_of_chorus(tmp_path):
    values = imported("--task t2v-A14B --dit low.safetensors --dit_high_noise high.safetensors", tmp_path).values
    assert (values["model.denoiser"], values["model.denoiser_2"]) == ("high.safetensors", "low.safetensors")


def test_switches_and_the_launcher_s_precision_are_heeded(tmp_path):
    result = imported("--edit_plus", tmp_path, "qwen_image_train_network.py", "--mixed_precision fp16")
    assert result.values["family"] == "qwen_image_edit_plus"
    assert result.values["model.mixed_precision"] == "fp16"
    clips = imported("--task k5-pro-i2v-5s-sd", tmp_path, "kandinsky5_train_network.py")
    assert clips.values["family"] == "kandinsky5_i2v"


def test_a_model_of_no_name_is_refused(tmp_path):
    with pytest.raises(UserError, match="t2v-99B"):
        imported("--task t2v-99B", tmp_path)


def test_a_dataset_file_gives_concepts_and_clips(tmp_path):
    path = tmp_path / "data.toml"
    path.write_text("\ufeff" + DATA, encoding="utf-8")
    result = import_files([path])
    config = result.config()
    videos, images = config.concepts
    assert (videos.path, videos.repeats, videos.caption_extension) == ("C:\\Filme\\Kätzchen", 2, ".txt")
    assert (images.resolution, images.reference_folder, images.include_subfolders) == (512, "/before", False)
    assert (config.data.resolution, config.data.frames, config.data.clips) == (720, 45, "chunks")
    assert (config.data.bucketing, config.data.bucket_step, config.batch_size) == (True, 16, 1)
    assert all(changed(result, path) for path in ("data.frames", "data.clips", "batch_size"))
    assert all(left(result, name) for name in ("source_fps", "fp_1f_target_index"))


def test_defaults_of_a_dataset_are_written_out(tmp_path):
    path = tmp_path / "data.toml"
    path.write_text('[[datasets]]\nimage_directory = "/i"\n', encoding="utf-8")
    result = import_files([path])
    data, (concept,) = result.config().data, result.config().concepts
    assert (data.width, data.height, data.bucketing) == (960, 544, False)
    assert (concept.captions, concept.prompt, concept.repeats) == ("prompt", "", 1)
    assert changed(result, "concepts.0.captions")


def test_a_file_of_arguments_and_a_file_of_prompts_are_read(tmp_path):
    (tmp_path / "data.toml").write_text(DATA, encoding="utf-8")
    (tmp_path / "p.txt").write_text("a cat --w 832 --f 45\n", encoding="utf-8")
    text = 'dit = "dit.safetensors"\nnetwork_module = "networks.lora_zimage"\ndataset_config = "data.toml"\n'
    path = tmp_path / "config.toml"
    path.write_text(f"[x]\n{text}[y]\nsample_prompts = 'p.txt'\nnetwork_dim = 8\n", encoding="utf-8")
    config = import_files([path]).config()
    assert (config.family, config.lora.rank, len(config.concepts)) == ("zimage", 8, 2)
    (sample,) = config.sampling.samples
    assert (sample.width, sample.height, sample.frames, sample.steps) == (832, 256, 45, 20)
    assert imported("--config_file config.toml --network_dim 9", tmp_path).values["lora.rank"] == 9


@pytest.mark.parametrize(("sampling", "low", "high"), [("sigma", 100, 600), ("shift", 400, 900)])
def test_timesteps_of_sigma_are_counted_from_noise_to_image(sampling, low, high, tmp_path):
    arguments = f"--timestep_sampling {sampling} --min_timestep 400 --max_timestep 900"
    result = imported(arguments, tmp_path, "qwen_image_train_network.py")
    assert (result.values["diffusion.min_timestep"], result.values["diffusion.max_timestep"]) == (low, high)
    assert changed(result, "diffusion.min_timestep") == (sampling == "sigma")


def test_the_logit_mean_of_sigma_counts_from_noise_to_image(tmp_path):
    arguments = "--weighting_scheme logit_normal --logit_mean 0.5"
    assert imported(arguments, tmp_path, "qwen_image_train_network.py").values["diffusion.logit_normal_mean"] == -0.5


@pytest.mark.parametrize(
    ("script", "prompt", "guidance"),
    [
        ("wan_train_network.py", "a cat", 1.0),
        ("wan_train_network.py", "a cat --n bad", 5.0),
        ("wan_train_network.py", "a cat --n bad --l 3", 3.0),
        ("hv_train_network.py", "a cat", 6.0),
        ("zimage_train_network.py", "a cat", 4.0),
    ],
)
def test_samples_have_the_guidance_of_their_model(script, prompt, guidance, tmp_path):
    (tmp_path / "p.txt").write_text(f"{prompt}\n", encoding="utf-8")
    (sample,) = imported("--sample_prompts p.txt", tmp_path, script).config().sampling.samples
    assert sample.guidance == guidance
