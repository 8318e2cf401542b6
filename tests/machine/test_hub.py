"""Models of the Hugging Face Hub, from a small server on this machine."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from modules.config.errors import UserError
from modules.config.installation import ROOT
from modules.config.ModelConfig import ModelConfig
from modules.families.registry import FAMILIES
from modules.machine.hub import download_model, find_models, folder_on_disk, models_on_disk, needed_files, read_model
from modules.weights.BaseModel import BaseModel
from modules.weights.errors import WeightsError
from modules.weights.hub_models import check_on_hub, download_folder
from modules.weights.load_pipeline import load_pipeline
from scripts import hub as script
from tests.support.hub_server import COMMIT, HubServer
from tests.support.variants import rename_weights
from tests.support.waiting import PATIENCE_SECONDS

TINY = "somebody/tiny"
UNET = "unet/diffusion_pytorch_model.safetensors"


@pytest.fixture(scope="module")
def repository(tiny_sd15, tmp_path_factory) -> Path:
    """A model with two copies of its denoiser's weights, as many have."""
    folder = tmp_path_factory.mktemp("hub") / "tiny"
    shutil.copytree(tiny_sd15, folder)
    shutil.copy(folder / UNET, folder / "unet" / "diffusion_pytorch_model.fp16.safetensors")
    (folder / "README.md").write_text("A tiny model.")
    return folder


@pytest.fixture
def hub(repository, tmp_path, monkeypatch) -> Iterator[HubServer]:
    """The server, which huggingface_hub uses from now on, with an empty cache."""
    from huggingface_hub import constants

    server = HubServer({TINY: repository, "somebody/gated": repository})
    server.gated.add("somebody/gated")
    use_endpoint(monkeypatch, server.endpoint)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with server.running():
        yield server


def use_endpoint(monkeypatch, endpoint: str) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", endpoint + "/{repo_id}/resolve/{revision}/{filename}")


def go_offline(monkeypatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        use_endpoint(monkeypatch, f"http://127.0.0.1:{free.getsockname()[1]}")


def test_models_are_found_by_a_part_of_their_name(hub):
    (found,) = find_models("TINY")
    assert (found.name, found.license, found.is_gated) == (TINY, "apache-2.0", False)
    assert [model.is_gated for model in find_models("gated")] == [True]
    assert find_models("nothing of the kind") == []


def test_a_search_without_a_connection_is_refused_at_once_and_speaks_of_no_model(hub, monkeypatch, caplog):
    go_offline(monkeypatch)
    with pytest.raises(UserError, match=r"^The Hub can't be searched: it can't be reached; check the connection\.$"):
        find_models("anything")
    assert "Retrying" not in caplog.text


def test_a_model_has_the_size_of_one_copy_of_its_weights(hub, repository):
    model = read_model(TINY)
    unwanted = (repository / "README.md", repository / "unet" / "diffusion_pytorch_model.fp16.safetensors")
    files = [path for path in repository.rglob("*") if path.is_file() and path not in unwanted]
    assert sorted(model.sizes) == sorted(path.relative_to(repository).as_posix() for path in files)
    assert model.num_bytes == sum(path.stat().st_size for path in files)
    assert (model.commit, model.license) == (COMMIT, "apache-2.0")
    assert model.missing_bytes == model.num_bytes - (repository / "model_index.json").stat().st_size


def test_shards_are_needed_and_pickles_only_without_safetensors():
    index = {"_class_name": "Any", "unet": ["diffusers", "UNet"], "vae": ["diffusers", "VAE"], "gone": [None, None]}
    shards = [f"unet/diffusion_pytorch_model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    needed = [*shards, "unet/diffusion_pytorch_model.safetensors.index.json", "vae/diffusion_pytorch_model.bin"]
    others = [
        "unet/diffusion_pytorch_model.bin",
        "unet/diffusion_pytorch_model.fp16-00001-of-00002.safetensors",
        "unet/diffusion_pytorch_model.safetensors.index.fp16.json",
        "unet/diffusion_pytorch_model.onnx",
        "vae/flax_model.msgpack",
        "gone/config.json",
        "whole_model.safetensors",
    ]
    assert needed_files([*others, *needed, "vae/config.json"], index) == sorted([*needed, "vae/config.json"])


def test_of_a_component_without_plain_weights_one_variant_is_needed():
    index = {"_class_name": "Any", "unet": ["diffusers", "UNet"], "text_encoder": ["transformers", "T5"]}
    needed = [
        "text_encoder/model.fp16-00001-of-00002.safetensors",
        "text_encoder/model.fp16-00002-of-00002.safetensors",
        "text_encoder/model.safetensors.index.fp16.json",
        "unet/config.json",
        "unet/diffusion_pytorch_model.fp16.safetensors",
    ]
    others = [
        "text_encoder/model.bf16.safetensors",
        "text_encoder/pytorch_model.fp16.bin",
        "text_encoder/pytorch_model.bin.index.fp16.json",
        "unet/diffusion_pytorch_model.bf16.safetensors",
        "unet/diffusion_pytorch_model.fp16.bin",
        "unet/diffusion_pytorch_model.non_ema.safetensors",
    ]
    assert needed_files([*others, *needed], index) == needed


def test_a_download_is_what_a_run_loads_even_offline(hub, monkeypatch):
    reports: list[tuple[int, int]] = []
    hub.broken[UNET] = 1
    model = read_model(f"{TINY}@v1")
    folder = download_model(model, lambda *report: reports.append(report))
    assert reports[-1] == (model.missing_bytes, model.missing_bytes)
    assert hub.asked.count(UNET) == 2  # the second half was asked for after the first had broken off
    assert [(one.name, one.num_bytes > model.num_bytes - 1) for one in models_on_disk()] == [(TINY, True)]
    go_offline(monkeypatch)
    assert folder_on_disk(f"{TINY}@v1") == folder
    assert folder_on_disk(TINY) is None  # what "main" is today, only the Hub knows
    assert download_folder(f"{TINY}@v1") == folder
    check_on_hub(f"{TINY}@v1", FAMILIES["sd15"])
    known = read_model(f"{TINY}@v1")
    assert (known.num_bytes, known.missing, known.index) == (model.num_bytes, (), model.index)


def test_a_model_whose_weights_are_all_of_a_variant_is_downloaded_and_used(hub, tiny_sd15, tmp_path):
    hub.models["somebody/half"] = rename_weights(shutil.copytree(tiny_sd15, tmp_path / "half"), "fp16")
    base = BaseModel(FAMILIES["sd15"], ModelConfig(base="somebody/half"), torch.device("cpu"))
    base.require("unet", "vae", "text_encoder")
    assert folder_on_disk("somebody/half") == base.path


def test_the_weights_of_a_part_that_is_replaced_are_not_downloaded(hub, monkeypatch, tmp_path, tiny_sd15):
    files = {"denoiser": tmp_path / "unet.safetensors", "vae": tmp_path / "vae.safetensors"}
    shutil.copy(tiny_sd15 / UNET, files["denoiser"])
    shutil.copy(tiny_sd15 / "vae" / "diffusion_pytorch_model.safetensors", files["vae"])
    parts = {name: str(file) for name, file in files.items()}
    check_on_hub(TINY, FAMILIES["sd15"], {"unet", "vae"})
    pipe = load_pipeline(TINY, {}, torch.device("cpu"), **parts)
    base = BaseModel(FAMILIES["sd15"], ModelConfig(base=TINY, **parts), torch.device("cpu"))
    base.require("unet", "vae", "text_encoder")
    assert pipe.unet.config.cross_attention_dim == base.module("unet").config.cross_attention_dim
    weights = [name for name in hub.asked if name.endswith(".safetensors")]
    assert not any(name.startswith(("unet/", "vae/")) for name in weights)
    assert {"unet/config.json", "vae/config.json", "text_encoder/model.safetensors"} <= {*hub.asked}
    assert folder_on_disk(TINY) is None
    go_offline(monkeypatch)
    load_pipeline(TINY, {}, torch.device("cpu"), **parts)
    with pytest.raises(WeightsError, match=r"^base .*the Hub can't be reached"):
        load_pipeline(TINY, {}, torch.device("cpu"))


def test_an_interrupted_download_is_continued(hub):
    hub.failing.add(UNET)
    with pytest.raises(UserError, match=f"'{TINY}' can't be fetched from the Hub: "):
        download_model(read_model(TINY), lambda done, total: None)
    assert folder_on_disk(TINY) is None
    hub.failing.clear()
    hub.asked.clear()
    download_model(read_model(TINY), lambda done, total: None)
    assert UNET in hub.asked
    assert "vae/config.json" not in hub.asked
    assert folder_on_disk(TINY) is not None


def test_a_cached_model_that_lacks_a_shard_is_not_complete(hub):
    folder = download_model(read_model(TINY), lambda done, total: None)
    index = folder / "unet" / "diffusion_pytorch_model.safetensors.index.json"
    weights = {"conv_in.weight": "diffusion_pytorch_model-00001-of-00002.safetensors"}
    index.write_text(json.dumps({"weight_map": weights}))
    assert folder_on_disk(TINY) is None


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("somebody/gated", "accept it on the model's page"),
        ("somebody/nothing", "there is no such model"),
        (f"{TINY}@v2", "the model has no such revision"),
    ],
)
def test_a_model_that_is_not_to_be_had_is_refused_before_the_start(hub, name, words):
    with pytest.raises(WeightsError, match=f"model.base '{name}' can't be fetched from the Hub: .*{words}"):
        check_on_hub(name, FAMILIES["sd15"])


def test_a_hub_out_of_reach_is_told_before_the_start(hub, monkeypatch):
    go_offline(monkeypatch)
    with pytest.raises(WeightsError, match="the Hub can't be reached, and the model isn't on this machine"):
        check_on_hub(TINY, FAMILIES["sd15"])


def test_a_model_of_another_family_is_refused_before_it_is_downloaded(hub):
    with pytest.raises(WeightsError, match="choose family sd15 or another base"):
        check_on_hub(TINY, FAMILIES["sdxl"])
    assert hub.asked == ["model_index.json"]


def test_a_cache_that_is_a_file_is_refused_in_one_sentence(tmp_path):
    (tmp_path / "cache").touch()
    command = [sys.executable, str(ROOT / "scripts" / "hub.py"), "list"]
    environment = {**os.environ, "HF_HUB_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(command, env=environment, capture_output=True, encoding="utf-8", timeout=PATIENCE_SECONDS)
    told = f"The Hub's cache {str(tmp_path / 'cache')!r} is not a folder: set HF_HOME or HF_HUB_CACHE to one.\n"
    assert (done.returncode, done.stderr) == (2, told)


def test_a_name_of_another_form_is_refused():
    with pytest.raises(UserError, match=r"names have the form NAMESPACE/MODEL\[@REVISION\]"):
        read_model("just_a_name")


def test_the_script_searches_and_downloads_with_the_token_of_the_environment(repository, tmp_path):
    server = HubServer({TINY: repository})
    facts = {"HF_ENDPOINT": server.endpoint, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0", "HF_TOKEN": "hf_secret"}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(ROOT / "scripts" / "hub.py"), *arguments]
        return subprocess.run(
            command, env={**os.environ, **facts}, capture_output=True, encoding="utf-8", timeout=PATIENCE_SECONDS
        )

    with server.running():
        assert run("search", "tiny").stdout.splitlines() == [f"{TINY}  apache-2.0"]
        facts_line = json.loads(run("info", TINY, "--json").stdout)
        assert (facts_line["family"], facts_line["missing_bytes"] > 0) == ("sd15", True)
        lines = [json.loads(line) for line in run("download", TINY, "--json").stdout.splitlines()]
        assert lines[-2] == {"done": facts_line["missing_bytes"], "total": facts_line["missing_bytes"]}
        assert (Path(lines[-1]["path"]) / UNET).is_file()
        assert server.token == "Bearer hf_secret"
        refused = run("download", "somebody/else")
    assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 1)
    assert "hf_secret" not in "".join(path.read_text(errors="ignore") for path in tmp_path.rglob("*") if path.is_file())


def test_the_script_counts_and_downloads_what_files_leave(hub, repository, tmp_path, capsys):
    shutil.copy(repository / UNET, tmp_path / "unet.safetensors")

    def run(*arguments: str) -> dict:
        assert script.main([*arguments, "--json"]) == 0
        return json.loads(capsys.readouterr().out.splitlines()[-1])

    weights = (repository / UNET).stat().st_size
    parts = ("--denoiser", str(tmp_path / "unet.safetensors"))
    whole = run("info", TINY)["num_bytes"]
    assert run("info", TINY, *parts)["num_bytes"] == whole - weights
    assert run("info", TINY, *parts, "--family", "sdxl")["num_bytes"] == whole  # a model that the file is not for
    run("download", TINY, *parts)
    assert UNET not in hub.asked
    assert run("info", TINY, *parts)["missing_bytes"] == 0
    assert run("info", TINY)["missing_bytes"] == weights


def test_a_model_that_is_no_diffusers_model_is_refused(hub, tmp_path):
    hub.models["somebody/file"] = tmp_path / "file"
    (tmp_path / "file").mkdir()
    (tmp_path / "file" / "model.safetensors").write_bytes(b"\0" * 8)
    model = read_model("somebody/file")
    assert replace(model, commit="") == replace(model, commit="", index={})
    with pytest.raises(WeightsError, match="is not in diffusers' format"):
        check_on_hub("somebody/file", FAMILIES["sd15"])
