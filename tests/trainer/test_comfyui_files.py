"""Whoever has ComfyUI's files of a model trains and samples with them: nothing else with weights is downloaded.

The files are of tiny models, in the names that ComfyUI's have, outside and inside.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from modules.families.registry import FAMILIES
from modules.weights.hub_models import download_folder
from modules.weights.load_pipeline import load_pipeline
from modules.weights.lora_files import load_lora
from modules.weights.mmdit_names import mmdit_tensors
from modules.weights.safe import load_tensors, save_tensors
from modules.weights.single_file import vae_to_single_file
from tests.machine.test_hub import go_offline
from tests.support.makers_names import COSMOS, of_flux, renamed
from tests.support.short_training import our_picture, plain_picture
from tests.trainer.test_matrix import REQUEST, load
from tests.weights.test_hub_models import NAME, hub  # noqa: F401 # the fixture
from tests.weights.test_part_files import original
from tests.weights.test_part_names import COMFY, ldm_names, of_tencent, wan_names

Tensors = Mapping[str, torch.Tensor]
Named = Callable[[Tensors], Tensors]
PREFIX = "model.diffusion_model."


@dataclass(frozen=True)
class Files:
    """The files of a family in ComfyUI's folder of models. denoisers: (file, its tensors' names, their prefix).

    vae: (file, its tensors' names, from diffusers' and the config). inside: what else is in the denoiser's file, by the
    starts of its names.
    """

    denoisers: tuple[str, ...]
    names: Named
    vae: str
    vae_names: Callable[[Tensors, Mapping], Tensors]
    text_encoders: tuple[str, ...]
    prefix: str = ""
    inside: Mapping[str, str] = field(default_factory=dict)


def of_kl(tensors: Tensors, config: Mapping) -> Tensors:
    """The VAE of latent diffusion, without prefix."""
    named = vae_to_single_file(tensors, config)
    return {name.removeprefix("first_stage_model."): tensor for name, tensor in named.items()}


def of_wan(tensors: Tensors) -> Tensors:
    return original("wan21", tensors)


def of_hunyuan(tensors: Tensors) -> Tensors:
    return renamed(of_tencent(tensors), *COMFY)


def of_anima(tensors: Tensors) -> Tensors:
    return renamed(tensors, *COSMOS)


WAN_VAE, QWEN_VAE, AE = "wan_2.1_vae", "qwen_image_vae", "ae"
FILES = {
    "flux1": Files(("flux1-dev",), of_flux, AE, of_kl, ("clip_l", "t5xxl_fp16")),
    "chroma": Files(("Chroma1-HD",), of_flux, AE, of_kl, ("t5xxl_fp16",)),
    "flux2_klein": Files(("flux-2-klein-base-9b",), of_flux, "flux2-vae", ldm_names, ("qwen_3_8b",)),
    "qwen_image": Files(("qwen_image_bf16",), dict, QWEN_VAE, wan_names, ("qwen_2.5_vl_7b",), PREFIX),
    "zimage": Files(("z_image_bf16",), lambda tensors: original("zimage", tensors), AE, of_kl, ("qwen_3_4b",)),
    "wan21": Files(("wan2.1_t2v_14B_fp16",), of_wan, WAN_VAE, wan_names, ("umt5_xxl_fp16",)),
    "wan22_5b": Files(("wan2.2_ti2v_5B_fp16",), of_wan, "wan2.2_vae", wan_names, ("umt5_xxl_fp16",)),
    "wan22_a14b": Files(
        ("wan2.2_t2v_high_noise_14B_fp16", "wan2.2_t2v_low_noise_14B_fp16"),
        of_wan,
        WAN_VAE,
        wan_names,
        ("umt5_xxl_fp16",),
    ),
    "sd3": Files(("sd3.5_medium",), mmdit_tensors, "sd3_vae", of_kl, ("clip_l", "clip_g", "t5xxl_fp16"), PREFIX),
    "hunyuan_video": Files(
        ("hunyuan_video_t2v_720p_bf16",),
        of_hunyuan,
        "hunyuan_video_vae_bf16",
        ldm_names,
        ("llava_llama3_fp16", "clip_l"),
        "model.model.",
    ),
    "hidream": Files(
        ("hidream_i1_full_fp16",),
        dict,
        AE,
        of_kl,
        ("clip_l_hidream", "clip_g_hidream", "t5xxl_fp16", "llama_3.1_8b_instruct"),
        PREFIX,
    ),
    "anima": Files(
        ("anima_baseV10",),
        of_anima,
        QWEN_VAE,
        wan_names,
        ("qwen_3_06b_base",),
        "net.",
        {"text_conditioner": "llm_adapter."},
    ),
}
# the makers of FLUX.1, two experts of a video model, a language model that sees images
ALWAYS = ("flux1", "wan22_a14b", "qwen_image")


def of_text_encoder(tensors: Tensors) -> Tensors:
    """A text encoder in the names of ComfyUI's files: those that transformers has had for long."""
    if any(name.startswith("model.language_model.") for name in tensors):
        return renamed(tensors, ("model.language_model.", "model."), ("model.visual.", "visual."))
    if "embeddings.token_embedding.weight" in tensors:
        return {name if name.startswith("text_projection") else f"text_model.{name}": t for name, t in tensors.items()}
    if "embed_tokens.weight" in tensors:
        return {f"model.{name}": tensor for name, tensor in tensors.items()}
    return tensors


def tensors_of(part: Path) -> Tensors:
    (file,) = part.glob("*.safetensors")
    return load_tensors(file)


def write_files(name: str, folder: Path, models: Path) -> dict[str, str | list[str]]:
    """Writes the weights of a diffusers folder as ComfyUI's files. Returns the settings of `model` that name them."""
    family, files = FAMILIES[name], FILES[name]
    encoders = [models / "text_encoders" / f"{file}.safetensors" for file in files.text_encoders]
    settings: dict[str, str | list[str]] = {"text_encoders": [*map(str, encoders)]}
    for part, file in zip(family.text.encoders, encoders, strict=True):
        save(file, of_text_encoder(tensors_of(folder / part)))
    vae = models / "vae" / f"{files.vae}.safetensors"
    config = json.loads((folder / family.vae / "config.json").read_text())
    save(vae, files.vae_names(tensors_of(folder / family.vae), config))
    settings["vae"] = str(vae)
    for setting, part, file_name in zip(("denoiser", "denoiser_2"), family.denoisers, files.denoisers, strict=False):
        tensors = dict(files.names(tensors_of(folder / part)))
        for inner, start in files.inside.items():
            tensors |= {start + name: tensor for name, tensor in tensors_of(folder / inner).items()}
        file = models / "diffusion_models" / f"{file_name}.safetensors"
        save(file, {files.prefix + name: tensor for name, tensor in tensors.items()})
        settings[setting] = str(file)
    return settings


def save(file: Path, tensors: Tensors) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    save_tensors(file, {name: tensor.contiguous() for name, tensor in tensors.items()})


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=[] if name in ALWAYS else [pytest.mark.proof]) for name in FILES]
)
def test_a_lora_is_trained_and_sampled_without_a_second_download_of_the_weights(
    family,
    hub,  # noqa: F811
    tiny_model,
    make_config,
    train,
    family_data,
    tmp_path,
    monkeypatch,
):
    from huggingface_hub import constants

    hub.models[NAME] = folder = tiny_model(family)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "without files"))
        download_folder(NAME)
    num_bytes = sum(hub.sent_bytes.values())
    hub.sent_bytes.clear()
    parts = write_files(family, folder, tmp_path / "ComfyUI" / "models")
    step = max(16, FAMILIES[family].align)
    settings = (f"family={family}", f"model.base={NAME}", f"data.bucket_step={step}", "lora.targets=linear")
    settings += tuple(f"model.{name}={value}" for name, value in parts.items())
    settings += tuple(f"{path}={value}" for path, value in family_data(family).items())
    trainer = train(make_config(*settings, "max_steps=2", "batch_size=2", "backup.at_end=false"))
    assert np.isfinite(trainer.callbacks.losses).all()
    assert [name for name in hub.sent_bytes if name.endswith(".safetensors")] == []
    assert sum(hub.sent_bytes.values()) == num_bytes - sum(
        path.stat().st_size for path in folder.rglob("*.safetensors")
    )

    go_offline(monkeypatch)
    request = replace(REQUEST, width=3 * step, height=2 * step)
    pipe = load_pipeline(
        NAME, dict.fromkeys(trainer.callbacks.saved, 1.0), torch.device("cpu"), dtype="float32", **parts
    )
    with trainer.prepared.base.using(*trainer.prepared.base.component_names) as trained:
        pictures = [our_picture(one, request) for one in (pipe, trained)]
    plain = load(folder)
    untrained = plain_picture(plain, request)
    for file in trainer.callbacks.saved:
        load_lora(plain, file)
    expected = plain_picture(plain, request)
    assert all(np.abs(picture - expected).max() <= 1e-5 for picture in pictures)
    assert np.abs(expected - untrained).max() > 1e-5


def test_a_folder_with_configs_and_tokenizers_alone_does_for_the_base(tiny_model, make_config, train, tmp_path):
    folder = tiny_model("zimage")
    parts = write_files("zimage", folder, tmp_path / "models")
    slim = shutil.copytree(folder, tmp_path / "configs", ignore=shutil.ignore_patterns("*.safetensors"))
    settings = (f"model.{name}={value}" for name, value in parts.items())
    trainer = train(make_config("family=zimage", f"model.base={slim}", "data.bucket_step=16", "max_steps=2", *settings))
    assert np.isfinite(trainer.callbacks.losses).all()
    pipes = [
        load_pipeline(base, {trainer.callbacks.saved[0]: 1.0}, torch.device("cpu"), dtype="float32", **own)
        for base, own in ((slim, parts), (folder, {}))
    ]
    with_files, whole = (our_picture(pipe, REQUEST) for pipe in pipes)
    assert np.array_equal(with_files, whole)
