"""Models of a folder or the Hub: only what is safe is loaded, and only what is loaded is downloaded."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from modules.annotators.captioner_kinds import kind_in
from modules.annotators.model_folder import model_folder, needed_files
from modules.config.errors import UserError
from tests.annotators.conftest import texts_in
from tests.machine.test_hub import go_offline, use_endpoint
from tests.support.hub_server import HubServer

NAME = "somebody/captioner"


@pytest.fixture
def hub(tmp_path, monkeypatch) -> Iterator[HubServer]:
    """The Hub, without models, and an empty cache."""
    from huggingface_hub import constants

    server = HubServer({})
    use_endpoint(monkeypatch, server.endpoint)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with server.running():
        yield server


@pytest.fixture
def copied(tiny_captioner, tmp_path) -> Path:
    """A captioner whose files a test may damage."""
    return Path(shutil.copytree(tiny_captioner("blip2"), tmp_path / "copied"))


def change_config(folder: Path, **values: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **values}), encoding="utf-8")


def test_a_model_of_the_hub_is_downloaded_without_what_is_not_loaded_and_then_found_offline(
    hub, tiny_captioner, tmp_path, uncaptioned, run_captioner, monkeypatch
):
    published = Path(shutil.copytree(tiny_captioner("blip2"), tmp_path / "published"))
    for name in ("pytorch_model.bin", "modeling.py", "model.fp16.safetensors", "onnx/model.onnx", "README.md"):
        (published / name).parent.mkdir(exist_ok=True)
        (published / name).write_bytes(b"never asked for")
    hub.models[NAME] = published
    command = ("--model", NAME, "--cpu", "--max-tokens", 2)
    images = uncaptioned(1)

    assert run_captioner(images, *command)[0] == 0

    assert {*hub.asked} == {path.name for path in tiny_captioner("blip2").iterdir()}
    go_offline(monkeypatch)
    (images / "000.txt").unlink()
    assert run_captioner(images, *command)[0] == 0
    assert len(texts_in(images)) == 1


@pytest.mark.parametrize(
    ("values", "told"),
    [
        (
            {"auto_map": {"AutoModel": "modeling.Model"}, "model_type": "florence2"},
            "use florence-community/Florence-2-large",
        ),
        ({"auto_map": {"AutoModel": "modeling.Model"}, "model_type": "their_own"}, "use a model such as Qwen/Qwen3-VL"),
    ],
)
def test_a_model_with_code_of_its_own_is_refused_before_its_weights_are_downloaded(values, told, hub, copied):
    change_config(copied, **values)
    hub.models[NAME] = copied

    with pytest.raises(UserError, match=f"^--model '{NAME}': asks to run code of its own, which is never done: {told}"):
        model_folder(NAME, lambda folder: kind_in(folder, NAME), lambda done, total: None)

    assert "model.safetensors" not in hub.asked


def test_pickled_weights_are_refused_in_a_folder_and_on_the_hub(hub, copied, uncaptioned, run_captioner, capsys):
    (copied / "model.safetensors").rename(copied / "pytorch_model.bin")
    hub.models[NAME] = copied
    images = uncaptioned(1)
    for model in (copied, NAME):
        assert run_captioner(images, "--model", model, "--cpu")[0] == 2
        assert "pickled weights are never loaded, because they could run code" in capsys.readouterr().err
    assert "pytorch_model.bin" not in hub.asked


def test_a_tokenizer_that_brings_code_runs_none_of_it(copied, uncaptioned, run_captioner, tmp_path, capsys):
    ran = tmp_path / "ran"
    (copied / "own.py").write_text(f"open({str(ran)!r}, 'w')\nclass Own: pass\n", encoding="utf-8")
    path = copied / "tokenizer_config.json"
    own = {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", None]}}
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **own}), encoding="utf-8")

    run_captioner(uncaptioned(1), "--model", copied, "--cpu", "--max-tokens", 1)

    assert not ran.exists()


def test_a_truncated_file_is_refused_in_one_sentence(copied, uncaptioned, run_captioner, capsys):
    weights = copied / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-9])
    assert run_captioner(uncaptioned(1), "--model", copied, "--cpu")[0] == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"'{weights}': is a damaged safetensors file")


def test_weights_without_a_tensor_are_refused(copied, uncaptioned, run_captioner, capsys):
    change_config(copied, num_query_tokens=5)
    assert run_captioner(uncaptioned(1), "--model", copied, "--cpu")[0] == 2
    assert "the shapes of its tensors differ from its config.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ('{"model_type": "llama"}', "is a 'llama', which can't write captions here: use a model such as"),
        ('{"architectures": []}', "is of a kind that can't write captions here"),
        ("no JSON", "its config.json can't be read: download the model again"),
        (None, "has no config.json and no selected_tags.csv"),
    ],
)
def test_another_folder_is_refused_with_examples_of_what_can_be_used(content, told, tmp_path):
    if content is not None:
        (tmp_path / "config.json").write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=told):
        kind_in(tmp_path, "mine")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("not there", "there is no such folder, nor can it be a Hub name"),
        ("somebody/else", "can't be fetched from the Hub"),
    ],
)
def test_a_model_that_is_nowhere_is_named(name, told, hub):
    with pytest.raises(UserError, match=f"^--model '{name}'.*{told}"):
        model_folder(name, lambda folder: None, lambda done, total: None)


def test_of_shards_the_index_is_needed_too_and_of_taggers_only_their_two_files():
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"]
    assert needed_files(
        [*shards, "config.json", "merges.txt", "pytorch_model.bin.index.json", "tf_model.h5"]
    ) == sorted([*shards, "config.json", "merges.txt"])
    tagger = ["config.json", "model.onnx", "selected_tags.csv"]
    assert needed_files([*tagger, "model.safetensors", "sw_jax_cv_config.json", "README.md"]) == tagger
