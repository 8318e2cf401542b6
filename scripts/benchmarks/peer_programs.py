"""The training scripts of other programs that Chorus is compared with, by the checkout that the user names.

A script gets the work of Chorus: the same model, images, captions, batch, rank, learning rate, precision and steps.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from modules.config.errors import UserError
from modules.session.atomic import new_folder
from scripts.benchmarks.material import model_folder, picture_size, pictures_folder
from scripts.benchmarks.worker import BATCH_SIZE, LEARNING_RATE, LORA_RANK, MAX_GRAD_NORM
from scripts.gpu.cases import is_cuda

AS_IT_COMES, KEPT = "as it comes", "encoded once"


@dataclass(frozen=True)
class Work:
    """folder: with model and images. run_folder: for what the script writes. how: AS_IT_COMES or KEPT."""

    folder: Path
    run_folder: Path
    device: str
    total_steps: int
    how: str

    @property
    def is_bf16(self) -> bool:
        return is_cuda(self.device)


@dataclass(frozen=True)
class Peer:
    """path: of the script in the checkout. family: that it trains. arguments: of the script.

    settings: of Chorus, where the script does otherwise than the loop by hand. hows: the ways in which it is compared:
    with one, it keeps what it encodes by default. needs_cuda: it only knows models of published size.
    """

    path: str
    family: str
    arguments: Callable[[Work], Sequence[object]]
    settings: tuple[str, ...] = ()
    hows: tuple[str, ...] = (AS_IT_COMES, KEPT)
    needs_cuda: bool = False


@dataclass(frozen=True)
class Program:
    """packages: import -> requirement, of what its scripts need besides. requirements: its own list of requirements,
    in its checkout, in place of that. marks: files by which its checkout is known.
    """

    title: str
    peers: Mapping[str, Peer]
    marks: tuple[str, ...]
    packages: Mapping[str, str] = field(default_factory=dict)
    requirements: str = ""


def program_of(checkout: Path) -> Program:
    """The program that a folder is a checkout of. Raises UserError if it is none of PROGRAMS."""
    for program in PROGRAMS:
        if all((checkout / mark).is_file() for mark in program.marks):
            return program
    known = ", ".join(program.title for program in PROGRAMS)
    raise UserError(f"--scripts {checkout}: it is no checkout of {known}; name the root of one.")


def _diffusers(data: str, *options: str) -> Callable[[Work], Sequence[object]]:
    """data: what the script calls its images."""

    def arguments(work: Work) -> Sequence[object]:
        named = {
            "--pretrained_model_name_or_path": model_folder(work.folder),
            data: listed_images(work.folder),
            "--output_dir": work.run_folder / "output",
            "--cache_dir": work.run_folder / "datasets",
            "--resolution": picture_size(work.folder),
            "--train_batch_size": BATCH_SIZE,
            "--rank": LORA_RANK,
            "--learning_rate": LEARNING_RATE,
            "--max_grad_norm": MAX_GRAD_NORM,
            "--lr_scheduler": "constant",
            "--lr_warmup_steps": 0,
            "--max_train_steps": work.total_steps,
            "--checkpointing_steps": work.total_steps + 1,
            "--mixed_precision": "bf16" if work.is_bf16 else "no",
            "--seed": 0,
        }
        return [*(part for option in named.items() for part in option), *options]

    return arguments


def listed_images(folder: Path) -> Path:
    """The images in a folder of their own, with the file of captions that the scripts' datasets read."""
    listed = folder / "listed images"
    if not listed.exists():
        with new_folder(listed) as temporary:
            lines = []
            for path in sorted(pictures_folder(folder).glob("*.png")):
                shutil.copy(path, temporary)
                text = path.with_suffix(".txt").read_text(encoding="utf-8")
                lines.append(json.dumps({"file_name": path.name, "text": text}))
            (temporary / "metadata.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return listed


# sd-scripts looks for tokenizers by their names on the Hub
HUB_TOKENIZERS = {
    "tokenizer": "openai_clip-vit-large-patch14",
    "tokenizer_2": "laion_CLIP-ViT-bigG-14-laion2B-39B-b160k",
}


def _sd_scripts(work: Work) -> Sequence[object]:
    """Of sdxl_train_network.py. Its captions are encoded in every step unless it may keep what it encodes."""
    for own, name in HUB_TOKENIZERS.items():
        source = model_folder(work.folder) / own
        if source.is_dir():
            shutil.copytree(source, work.run_folder / "tokenizers" / name)
    named = {
        "--pretrained_model_name_or_path": model_folder(work.folder),
        "--tokenizer_cache_dir": work.run_folder / "tokenizers",
        "--train_data_dir": _repeated_images(work.folder),
        "--caption_extension": ".txt",
        "--output_dir": work.run_folder / "output",
        "--output_name": "lora",
        "--resolution": picture_size(work.folder),
        "--train_batch_size": BATCH_SIZE,
        "--network_module": "networks.lora",
        "--network_dim": LORA_RANK,
        "--network_alpha": LORA_RANK,
        "--learning_rate": LEARNING_RATE,
        "--max_grad_norm": MAX_GRAD_NORM,
        "--optimizer_type": "AdamW",
        "--lr_scheduler": "constant",
        "--max_train_steps": work.total_steps,
        "--mixed_precision": "bf16" if work.is_bf16 else "no",
        "--seed": 0,
    }
    kept = ["--cache_latents", "--cache_text_encoder_outputs"] if work.how == KEPT else []
    options = ["--network_train_unet_only", "--sdpa", "--no_half_vae", *kept]
    return [*(part for option in named.items() for part in option), *options]


def _repeated_images(folder: Path) -> Path:
    """The folder whose only folder has the images and their captions, and in its name that they are not repeated."""
    images = folder / "repeated images"
    if not images.exists():
        with new_folder(images) as temporary:
            shutil.copytree(pictures_folder(folder), temporary / "1_shape")
    return images


def _onetrainer(model_type: str, *text_encoders: str) -> Callable[[Work], Sequence[object]]:
    def arguments(work: Work) -> Sequence[object]:
        settings = work.run_folder / "onetrainer.json"
        settings.write_text(json.dumps(_onetrainer_settings(work, model_type, text_encoders)), encoding="utf-8")
        return ["--config-path", settings]

    return arguments


def _onetrainer_settings(work: Work, model_type: str, text_encoders: Sequence[str]) -> dict[str, Any]:
    """Settings that it does not know, it leaves out; those that are missing have its defaults."""
    dtype = "BFLOAT_16" if work.is_bf16 else "FLOAT_32"
    images = len(list(pictures_folder(work.folder).glob("*.png")))
    concept = {
        "name": "shapes",
        "path": str(pictures_folder(work.folder)),
        "image": {"enable_crop_jitter": False},
        "text": {"prompt_source": "sample"},
    }
    never = {f"{what}_unit": "NEVER" for what in ("sample_after", "backup_after", "save_every")}
    frozen = {"train": False, "weight_dtype": dtype}
    return {
        "training_method": "LORA",
        "model_type": model_type,
        "base_model_name": str(model_folder(work.folder)),
        "workspace_dir": str(work.run_folder / "workspace"),
        "cache_dir": str(work.run_folder / "cache"),
        "output_model_destination": str(work.run_folder / "lora.safetensors"),
        "offline_mode": True,
        "tensorboard": False,
        "concepts": [concept],
        "samples": [],
        "aspect_ratio_bucketing": False,
        "resolution": str(picture_size(work.folder)),
        "batch_size": BATCH_SIZE,
        "epochs": math.ceil(work.total_steps / max(1, images // BATCH_SIZE)),
        "learning_rate": LEARNING_RATE,
        "learning_rate_warmup_steps": 0,
        "clip_grad_norm": MAX_GRAD_NORM,
        "optimizer": {"optimizer": "ADAMW", "fused": True},
        "lora_rank": LORA_RANK,
        "lora_alpha": LORA_RANK,
        "layer_filter": "attn1,attn2",
        "layer_filter_preset": "custom",
        "gradient_checkpointing": "OFF",
        "train_device": work.device,
        "train_dtype": dtype,
        "unet": {"train": True, "weight_dtype": dtype, "gradient_checkpointing": False},
        "vae": {"weight_dtype": "FLOAT_32"},
        **dict.fromkeys(text_encoders, frozen),
        **never,
    }


DREAMBOOTH = ("--caption_column", "text", "--image_column", "image", "--instance_prompt", "a shape")
ALIGNED = ("data.bucket_step=64",)  # the side of the smallest images
PROGRAMS = (
    Program(
        "diffusers",
        {
            "text_to_image_lora": Peer(
                "examples/text_to_image/train_text_to_image_lora.py", "sd15", _diffusers("--train_data_dir")
            ),
            "dreambooth_lora_sdxl": Peer(
                "examples/dreambooth/train_dreambooth_lora_sdxl.py",
                "sdxl",
                _diffusers("--dataset_name", *DREAMBOOTH),
                ALIGNED,
            ),
            "dreambooth_lora_flux": Peer(
                "examples/dreambooth/train_dreambooth_lora_flux.py",
                "flux1",
                _diffusers("--dataset_name", *DREAMBOOTH),
                ALIGNED,
            ),
        },
        marks=("examples/dreambooth/train_dreambooth_lora_sdxl.py",),
        packages={"accelerate": "accelerate==1.15.0", "datasets": "datasets==5.2.0", "ftfy": "ftfy==6.3.1"},
    ),
    Program(
        "sd-scripts",
        {"sd_scripts_sdxl": Peer("sdxl_train_network.py", "sdxl", _sd_scripts, ALIGNED, needs_cuda=True)},
        marks=("sdxl_train_network.py", "networks/lora.py"),
        requirements="requirements.txt",
    ),
    Program(
        "OneTrainer",
        {
            "onetrainer_sd15": Peer(
                "scripts/train.py", "sd15", _onetrainer("STABLE_DIFFUSION_15", "text_encoder"), hows=(AS_IT_COMES,)
            ),
            "onetrainer_sdxl": Peer(
                "scripts/train.py",
                "sdxl",
                _onetrainer("STABLE_DIFFUSION_XL_10_BASE", "text_encoder", "text_encoder_2"),
                ALIGNED,
                hows=(AS_IT_COMES,),
            ),
        },
        marks=("scripts/train.py", "requirements-global.txt"),
        requirements="requirements-global.txt",
    ),
)
PEERS = {name: (program, peer) for program in PROGRAMS for name, peer in program.peers.items()}
