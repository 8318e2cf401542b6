"""A damaged file of another program gives settings or one clear message, never a traceback."""

import copy
import json
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from modules.config.errors import UserError
from modules.importers.import_files import IMPORTERS, import_files
from modules.importers.ImportResult import ImportResult
from modules.importers.read_file import read_content

ONETRAINER = json.dumps(
    {
        "__version": 9,
        "training_method": "LORA",
        "model_type": "STABLE_DIFFUSION_15",
        "base_model_name": "runwayml/sd",
        "weight_dtype": "FLOAT_16",
        "learning_rate": "1e-4",
        "gradient_accumulation_steps": 2,
        "unet": {"train": True, "weight_dtype": "NONE", "learning_rate": None},
        "text_encoder": {"train": True, "stop_training_after": 3},
        "optimizer": {"optimizer": "PRODIGY", "d_coef": 1.0, "beta3": None},
        "concepts": [{"name": "cats", "path": "C:\\cats", "image": {"enable_random_flip": True}, "text": {}}],
        "samples": [{"prompt": "a cat", "diffusion_steps": 20}],
        "additional_embeddings": [{"placeholder": "<cat>", "token_count": 2}],
        "resolution": "512,768",
    }
)
COMMAND = """DIM=16
accelerate launch --num_processes 2 sdxl_train_network.py --pretrained_model_name_or_path="a b.safetensors" \\
  --network_module networks.lora --network_dim=$DIM --network_args conv_dim=4 "algo=loha" --unet_lr 1e-4 \\
  --optimizer_type AdaFactor --optimizer_args "betas=0.9,0.99" relative_step=False --text_encoder_lr 1e-5 2e-5 \\
  --resolution=768,512 --enable_bucket --min_bucket_reso 256 --train_data_dir nowhere --min_snr_gamma 5 \\
  --save_every_n_steps 100 --save_last_n_steps 300 --max_token_length 225
"""
DATASET = """[general]
enable_bucket = true
[[datasets]]
resolution = [768, 512]
batch_size = 2
[[datasets.subsets]]
image_dir = 'C:\\a'
num_repeats = 2
caption_extension = "txt"
color_aug = true
"""
ARGUMENTS = """pretrained_model_name_or_path = "sdxl.safetensors"
network_module = "networks.lora"
[more]
network_args = ["conv_dim=4"]
learning_rate = 1e-4
"""
KOHYA_SS = json.dumps(
    {
        "LoRA_type": "LyCORIS/LoKr", "sdxl": True, "max_resolution": "1024,768", "lr_warmup": "10", "epoch": 4,
        "learning_rate": "1e-4", "unet_lr": 1e-4, "text_encoder_lr": "5e-05", "t5xxl_lr": 0, "optimizer": "Prodigy",
        "optimizer_args": "d_coef=2 betas=0.9,0.99", "factor": 8, "conv_dim": 4, "noise_offset_type": "Original",
        "noise_offset": "0.05", "max_train_epochs": "", "max_train_steps": 0, "stop_text_encoder_training_pct": 10,
        "additional_parameters": "--flip_aug --min_snr_gamma 5", "sample_prompts": "a cat --w 512", "xformers": True,
        "train_data_dir": "nowhere", "image_folder": "D:\\a", "num_processes": 2, "template": "caption",
    }
)  # fmt: skip
MUSUBI = """accelerate launch --mixed_precision bf16 wan_train_network.py --task t2v-A14B --dit low.safetensors \\
  --dit_high_noise high.safetensors --t5 t5.pth --network_module networks.lora_wan --network_args "a=[1]" b=2 \\
  --timestep_sampling logsnr --logit_mean 1 --lr_scheduler rex --optimizer_args "betas=0.9,0.99" --save_state \\
  --save_every_n_steps 10 --save_last_n_steps 30 --blocks_to_swap 10 --lr_warmup_steps 0.1 --dataset_config no.toml
"""
MUSUBI_DATA = """[general]
resolution = [960, 544]
enable_bucket = true
[[datasets]]
video_directory = 'C:\\v'
target_frames = [1, 25]
frame_extraction = "uniform"
num_repeats = 2
[[datasets]]
image_jsonl_file = "/a/b.jsonl"
control_resolution = 512
"""
DIFFUSION_PIPE = """output_dir = '/runs'
dataset = 'nowhere.toml'
eval_datasets = [{name = 'a', config = 'no.toml'}, 'b.toml']
epochs = 100
micro_batch_size_per_gpu = [[512, 4], [1024, 1]]
save_every_n_examples = 100
checkpoint_every_n_minutes = 120
activation_checkpointing = 'unsloth'
blocks_to_swap = 20
lr_scheduler = 'cosine'
[model]
type = 'wan'
ckpt_path = '/Wan2.2-T2V-A14B'
transformer_path = '/low_noise.safetensors'
text_encoders = [{path = 'a.safetensors', type = 'wan'}]
dtype = 'bfloat16'
transformer_dtype = 'float8'
min_t = 0.875
shift = 3
[adapter]
type = 'lokr'
rank = 1e6
fuse_adapters = [{path = 'a', weight = 1.0}]
[optimizer]
type = 'AdamW8bitKahan'
lr = 2e-5
betas = [0.9, 0.99]
beta2_half_life = 1000
stabilize = false
"""
DIFFUSION_PIPE_DATA = """resolutions = [512, [1280, 720]]
enable_ar_bucket = true
min_ar = 0.5
max_ar = 2.0
frame_buckets = [1, 33]
cache_shuffle_num = 3
subsample_ratio = 0.5
[[directory]]
path = '/a'
num_repeats = 2
ar_buckets = [[448, 576]]
mask_path = '/masks'
[[directory]]
path = 'C:\\b'
size_buckets = [[960, 704, 1], [704, 960, 33]]
control_path = '/c'
"""
PROMPTS = "a cat --n bad --w 768 --h 512 --d 7 --l 6.5 --s 20\na dog\n"
AI_TOOLKIT = json.dumps(
    {
        "job": "extension",
        "config": {
            "name": "cats",
            "process": [
                {
                    "type": "diffusion_trainer",
                    "training_folder": "output/[name]",
                    "trigger_word": "sks",
                    "network": {
                        "type": "lokr",
                        "linear": 16,
                        "conv": 8,
                        "network_kwargs": {"ignore_if_contains": ["a"]},
                    },
                    "save": {"dtype": "bf16", "save_every": 250, "save_format": "diffusers"},
                    "datasets": [
                        {"folder_path": "C:\\cats", "resolution": [512, 768], "control_path": ["/a"], "num_frames": 5},
                        {"folder_path": "/b", "is_reg": True, "mask_path": "/masks", "mask_min_value": 0.1},
                    ],
                    "train": {
                        "steps": 3000,
                        "gradient_accumulation_steps": 2,
                        "optimizer": "prodigy",
                        "optimizer_params": {"weight_decay": 1e-4, "betas": [0.9, 0.99]},
                        "lr_scheduler": "cosine_with_restarts",
                        "lr_scheduler_params": {"eta_min": 1e-6, "T_0": 500},
                        "timestep_type": "shift",
                        "lr": "1e-4",
                        "ema_config": {"use_ema": True},
                    },
                    "model": {"name_or_path": "a/b", "quantize": True, "qtype": "uint4|a", "model_kwargs": {"a": 1}},
                    "sample": {"walk_seed": True, "samples": [{"prompt": "a [trigger] --w 64", "seed": 3, "neg": ""}]},
                }
            ],
        },
    }
)
SIMPLETUNER_DATA = [
    {
        "id": "cats", "type": "local", "instance_data_dir": "C:\\cats", "resolution": 1.0, "resolution_type": "area",
        "repeats": 2, "crop": True, "crop_aspect": "square", "caption_strategy": "textfile", "conditioning_data": ["m"],
        "caption_shuffle": {"enable": True, "count": 2, "position_start": 1}, "video": {"num_frames": 9},
    },
    {"id": "m", "dataset_type": "conditioning", "conditioning_type": "mask", "instance_data_dir": "/masks"},
]  # fmt: skip
SIMPLETUNER = json.dumps(
    {
        "--model_family": "sdxl", "model_type": "lora", "lora_type": "lycoris", "optimizer_config": "eps=1e-6,d=1",
        "lycoris_config": json.dumps({"algo": "lokr", "factor": 8, "apply_preset": {"target_module": ["Attention"]}}),
        "lr_scheduler": "cosine", "lr_warmup_steps": 10, "max_train_steps": "300", "optimizer_beta1": 0.9,
        "optimizer_beta2": 0.99, "validation_prompt": "a cat", "validation_resolution": "1024x768,512",
        "data_backend_config": json.dumps(SIMPLETUNER_DATA), "peft_lora_target_modules": ["to_k"], "use_ema": True,
        "ema_update_interval": 5, "offset_noise": True, "noise_offset": 0.1, "report_to": "wandb", "num_processes": 2,
    }
)  # fmt: skip
SIMPLETUNER_COMMAND = """simpletuner train --model_family=flux --model_type lora --lora_rank 8 \\
  --flow_schedule_shift=3 --validation_prompt="a cat" --optimizer=prodigy --snr_gamma 5 --use_dora
"""
SIMPLETUNER_ENV = """export MODEL_FAMILY='sdxl'
MODEL_TYPE="lora"
MAX_NUM_STEPS=300
export TRAINER_EXTRA_ARGS="--use_dora --lora_rank=8"
TRAINER_EXTRA_ARGS+=" --lora_alpha=4"
"""
LECO = json.dumps(
    {
        "prompts_file": "nowhere.yaml", "pretrained_model": {"name_or_path": "a/xl", "v2": False, "clip_skip": 1},
        "network": {"type": "c3lier", "rank": 4, "training_method": "noxattn"},
        "train": {"precision": "bf16", "iterations": 5, "lr": "1e-4", "optimizer": "prodigy", "lr_scheduler": "step",
            "optimizer_args": "weight_decay=0.1 betas=(0.9,0.99)", "max_denoising_steps": 50},
        "save": {"name": "a", "per_steps": 2, "precision": "float32"}, "logging": {"use_wandb": True},
    }
)  # fmt: skip
LECO_PROMPTS = json.dumps(
    [
        {"target": "male person", "positive": "male person, old", "neutral": "male person", "guidance_scale": 4},
        {"target": "female person", "positive": "female person, old", "action": "enhance", "resolution": 512},
    ]
)
EXAMPLES = {
    "settings.json": ONETRAINER,
    "train.sh": COMMAND,
    "train.bat": COMMAND.replace("\\\n", "^\n").replace("$DIM", "%DIM%"),
    "data.toml": DATASET,
    "config.toml": ARGUMENTS,
    "prompts.txt": PROMPTS,
    "window.json": KOHYA_SS,
    "job.json": AI_TOOLKIT,
    "job.yaml": AI_TOOLKIT,
    "musubi.sh": MUSUBI,
    "videos.toml": MUSUBI_DATA,
    "simpletuner.json": SIMPLETUNER,
    "simpletuner_data.json": json.dumps(SIMPLETUNER_DATA),
    "simpletuner.sh": SIMPLETUNER_COMMAND,
    "simpletuner.env": SIMPLETUNER_ENV,
    "leco.yaml": LECO,
    "leco_prompts.yaml": LECO_PROMPTS,
    "pipe.toml": DIFFUSION_PIPE,
    "pipe_data.toml": DIFFUSION_PIPE_DATA,
}
ODD = [
    None, True, -1, 0, 1e400, "", "nan", "-inf", "\udc80", [], {}, [{}], [[1]], "x" * 200, 10**30, 0.5, "0x10", [None],
    {"a": {"b": 1}},
]  # fmt: skip


WORDS = [
    "", "nan", "-inf", "1e400", "0x10", "[]", "{}", "a=b=c", "=", "--", "true", "None", "-1", "9" * 40, "5,", "(1,2)",
    "\\", "'", '"', "{a:1}", "é",
]  # fmt: skip


def mutated(text: str, draw: random.Random) -> str:
    """The text with values replaced, keys dropped, or pieces of it cut, doubled or exchanged."""
    try:
        content = json.loads(text)
    except ValueError:
        content = None
    if content is not None and draw.random() < 0.7:
        for _ in range(draw.randint(1, 4)):
            replace_value(content, draw)
        return json.dumps(content)
    if content is None and draw.random() < 0.5:
        return with_other_words(text, draw)
    start, end = sorted(draw.randrange(len(text)) for _ in range(2))
    middle = draw.choice(["", text[start:end] * 2, draw.choice('{}[]",:\\\n=-%\0é')])
    return text[:start] + middle + text[end if draw.random() < 0.3 else start :]


def replace_value(content: object, draw: random.Random) -> None:
    place = content
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return
        key = draw.choice(keys)
        if isinstance(place[key], (dict, list)) and draw.random() < 0.7:
            place = place[key]
            continue
        if draw.random() < 0.2:
            del place[key]
        else:
            place[key] = copy.deepcopy(draw.choice(ODD))  # a later replacement may change it
        return


def with_other_words(text: str, draw: random.Random) -> str:
    words = text.split(" ")
    for _ in range(draw.randint(1, 4)):
        place = draw.randrange(len(words))
        name, equals, _ = words[place].partition("=")
        words[place] = f"{name}{equals}" if equals and draw.random() < 0.5 else ""
        words[place] += draw.choice([*WORDS, draw.choice(words)])
    return " ".join(words)


def survives(name: str, number: int, folder: Path) -> None:
    draw = random.Random(f"{name} {number}")
    path = folder / name
    if path.suffix == ".toml" and draw.random() < 0.7:  # most pieces of TOML can't be read once they are cut
        path.write_text(EXAMPLES[name], encoding="utf-8")
        content = read_content(path)
        for _ in range(draw.randint(1, 4)):
            replace_value(content, draw)
        for importer in IMPORTERS:
            if importer.recognizes(path, content):
                comes_out(lambda importer=importer: importer.translate(path, content))
        return
    path.write_text(mutated(EXAMPLES[name], draw), encoding="utf-8", errors="surrogatepass")
    comes_out(lambda: import_files([path]))


def comes_out(read: Callable[[], ImportResult]) -> None:
    with suppress(UserError):
        result = read()
        result.text()
        result.config()


def test_every_importer_has_an_example(tmp_path):
    for name, text in EXAMPLES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        import_files([tmp_path / name]).config()
    assert len(IMPORTERS) <= len(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_few_damaged_files_give_settings_or_a_message(name, tmp_path):
    for number in range(5):
        survives(name, number, tmp_path)


@pytest.mark.proof
@pytest.mark.parametrize("name", EXAMPLES)
def test_a_thousand_damaged_files_give_settings_or_a_message(name, tmp_path):
    for number in range(1000):
        survives(name, number, tmp_path)


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", "\0", '{"a": ' * 100, '{"model_type": 3}'])
def test_what_is_no_settings_file_is_refused(text, tmp_path):
    path = tmp_path / "some.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match="some"):
        import_files([path])
