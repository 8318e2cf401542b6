"""A model's folder never brings code: which classes its index may name, in every family and at every door."""

import json
import os
import shutil

import pytest
import torch

from modules.config.errors import UserError
from modules.config.ModelConfig import ModelConfig
from modules.families.registry import FAMILIES
from modules.weights.BaseModel import BaseModel
from modules.weights.component_classes import refused_class
from modules.weights.errors import WeightsError
from modules.weights.inspect import check_base, check_config_folder
from modules.weights.libraries import import_diffusers
from modules.weights.load_pipeline import load_pipeline
from modules.weights.safe import load_tensors
from tests.support.planted_folders import AUTO_MAP, Canary, doors, edit_json, plant_code

SD15 = FAMILIES["sd15"]
AUTO = [("transformers", f"Auto{kind}") for kind in ("Model", "Config", "Tokenizer", "Processor", "ModelForCausalLM")]
AUTO += [("diffusers", "AutoModel")]


@pytest.fixture
def copy_of_sd15(tiny_sd15, tmp_path):
    return shutil.copytree(tiny_sd15, tmp_path / "copy")


@pytest.fixture
def canary(copy_of_sd15, tmp_path, monkeypatch):
    """Made by any code of the folder that runs. Whoever asks on the terminal is answered yes."""
    monkeypatch.setattr("builtins.input", lambda *args: "y")
    plant_code(copy_of_sd15, tmp_path / "canary")
    return tmp_path / "canary"


def name_class(folder, part, *pair):
    edit_json(folder / "model_index.json", **{part: list(pair)})


def refusals(folder, family=SD15):
    """What the check before a start and each door say."""
    for load in (lambda: check_base(str(folder), family), *(load for _, load in doors(folder, family))):
        with pytest.raises(UserError) as caught:
            load()
        message = str(caught.value)
        assert "\n" not in message
        assert message.endswith(".")
        yield message


@pytest.mark.parametrize("pair", AUTO, ids=".".join)
@pytest.mark.parametrize("part", ["unet", "text_encoder", "tokenizer", "scheduler"])
def test_a_class_that_chooses_its_own_code_is_refused_before_the_start(part, pair):
    index = {part: list(pair)}
    assert refused_class(index, SD15) == (
        part,
        f"model_index.json gives it {'.'.join(pair)}, which could run code from the folder",
    )


PLANTED = {
    "a model": ("text_encoder", "transformers", "AutoModel"),
    "a denoiser": ("unet", "diffusers", "AutoModel"),
    "a tokenizer": ("tokenizer", "transformers", "AutoTokenizer"),
    "a processor": ("feature_extractor", "transformers", "AutoProcessor"),
    "a config": ("vae", "transformers", "AutoConfig"),
    "a module of the folder": ("unet", "evil", "Evil"),
    "a module named as a part": ("unet", "UNet2DConditionModel", "Evil"),
    "a module of Python": ("unet", "os", "system"),
    "no class": ("text_encoder", "transformers", "pipeline"),
    "a pipeline": ("unet", "diffusers", "DiffusionPipeline"),
    "another model": ("text_encoder", "transformers", "BertModel"),
    "a model as tokenizer": ("tokenizer", "transformers", "CLIPTextModel"),
    "a tokenizer as model": ("text_encoder", "transformers", "CLIPTokenizer"),
}


@pytest.mark.parametrize("case", PLANTED)
def test_a_planted_folder_is_refused_at_every_door_and_runs_nothing(case, copy_of_sd15, canary):
    part, *pair = PLANTED[case]
    name_class(copy_of_sd15, part, *pair)
    for config in copy_of_sd15.glob("*/config.json"):
        edit_json(config, auto_map=AUTO_MAP)
    edit_json(copy_of_sd15 / "tokenizer/tokenizer_config.json", auto_map=AUTO_MAP)
    if part in SD15.unused:  # training does without it
        shutil.copytree(copy_of_sd15 / "tokenizer", copy_of_sd15 / part)
        with pytest.raises(WeightsError, match="could run code from the folder"):
            load_pipeline(str(copy_of_sd15), {}, torch.device("cpu"))
    else:
        for message in refusals(copy_of_sd15):
            assert f"its {part} can't be loaded (model_index.json gives it {'.'.join(pair)}, " in message
    assert not canary.exists()


def test_an_auto_map_beside_a_concrete_class_is_ignored(copy_of_sd15, canary):
    for config in copy_of_sd15.glob("*/*config.json"):
        edit_json(config, auto_map=AUTO_MAP)
    for _, load in doors(copy_of_sd15, SD15):
        load()
    assert not canary.exists()


def test_a_class_that_the_family_declares_is_loaded_without_the_code_of_its_folder(tiny_model, tmp_path, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *args: "y")
    folder, wan = shutil.copytree(tiny_model("wan21"), tmp_path / "wan"), FAMILIES["wan21"]
    name_class(folder, "tokenizer", "transformers", "AutoTokenizer")
    for _, load in doors(folder, wan):
        load()
    plant_code(folder, tmp_path / "canary")
    config = folder / "tokenizer" / "tokenizer_config.json"
    edit_json(config, tokenizer_class="Evil", auto_map={"AutoTokenizer": ["modeling_evil.Evil", None]})
    for _, load in doors(folder, wan):
        with pytest.raises(WeightsError, match="can't be loaded"):
            load()
    assert not (tmp_path / "canary").exists()


def test_transformers_refuses_code_where_it_would_ask(copy_of_sd15, canary):
    """Its own models and processors load parts of theirs by such classes, and say nothing of trust."""
    import_diffusers()
    from transformers import AutoModel

    edit_json(copy_of_sd15 / "text_encoder/config.json", model_type="evil", auto_map=AUTO_MAP)
    with pytest.raises(ValueError, match="trust_remote_code"):
        AutoModel.from_pretrained(copy_of_sd15 / "text_encoder")
    assert not canary.exists()


ODD_INDEXES = {
    "a pipeline of two names": {"_class_name": ["a", "b"]},
    "a pipeline of the folder": {"_class_name": ["evil", "Evil"]},
    "no pipeline": {"_class_name": None},
    "a number as pipeline": {"_class_name": 5},
    "an empty pipeline": {"_class_name": ""},
    "a function as pipeline": {"_class_name": "logging.os"},
    "null": {"unet": None},
    "a number": {"unet": 5},
    "three names": {"unet": ["a", "b", "c"]},
    "half a pair": {"unet": ["diffusers", None]},
    "a section": {"unet": {"diffusers": "UNet2DConditionModel"}},
    "a path as part": {"../evil": ["diffusers", "UNet2DConditionModel"]},
    "a path as library": {"unet": ["../evil", "Evil"]},
    "a dotted library": {"unet": ["diffusers.utils", "logging"]},
    "an escape sequence": {"unet": ["diffusers", "\x1b[2J"]},
    "a surrogate": {"unet": ["diffusers", "\ud800"]},
    "a name of a megabyte": {"unet": ["diffusers", "U" * 1000]},
    "no scheduler": {"scheduler": 3},
}


@pytest.mark.parametrize("case", ODD_INDEXES)
def test_an_odd_index_is_refused_in_one_sentence_with_its_name(case, copy_of_sd15):
    edit_json(copy_of_sd15 / "model_index.json", **ODD_INDEXES[case])
    messages = refusals(copy_of_sd15) if case != "no scheduler" else [*refusals_of_loading(copy_of_sd15)]
    for message in messages:
        assert "model_index.json" in message or "has no unet" in message
        assert "\x1b" not in message


def refusals_of_loading(folder):
    for _, load in doors(folder, SD15):
        with pytest.raises(UserError) as caught:
            load()
        yield str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["", "null", "[1]", '"x"', '{"a":' * 100_000, '{"a": "' + "x" * (1 << 20) + '"}', '{"a": ' + "9" * 5000 + "}", "{"],
    ids=["empty", "null", "list", "text", "deep", "huge", "long number", "cut"],
)
def test_an_index_that_is_no_object_is_refused_in_one_sentence_with_its_name(text, copy_of_sd15):
    (copy_of_sd15 / "model_index.json").write_text(text)
    for message in refusals(copy_of_sd15):
        assert "model_index.json': " in message


def wrong_type(vocabulary):
    vocabulary["model"]["vocab"] = 5


def no_unknown_token(vocabulary):
    """As the tokenizers library finds out only when it meets what it does not know."""
    vocabulary["model"].update(vocab={"a": 0, "a</w>": 1}, merges=[])
    vocabulary["added_tokens"] = []


def edited(change):
    def damage(path):
        vocabulary = json.loads(path.read_text(encoding="utf-8"))
        change(vocabulary)
        path.write_text(json.dumps(vocabulary), encoding="utf-8")

    return damage


BROKEN_TOKENIZERS = {
    "no unknown token": edited(no_unknown_token),
    "wrong type": edited(wrong_type),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:50]),
    "empty": lambda path: path.write_bytes(b""),
    "binary": lambda path: path.write_bytes(b"\xff\x00" * 50),
    "a list": lambda path: path.write_text("[1]"),
    "no model": edited(lambda vocabulary: vocabulary.pop("model")),
}


@pytest.mark.parametrize("case", BROKEN_TOKENIZERS)
def test_a_broken_tokenizer_is_refused_in_one_sentence_with_its_file(case, copy_of_sd15):
    BROKEN_TOKENIZERS[case](copy_of_sd15 / "tokenizer/tokenizer.json")
    base = BaseModel(SD15, ModelConfig(base=str(copy_of_sd15)), torch.device("cpu"))
    with pytest.raises(WeightsError) as caught:
        base.require("tokenizer")
    assert "tokenizer.json" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("legacy", [False, True])
def test_a_malicious_pickle_is_refused_before_the_start_and_at_every_door(legacy, copy_of_sd15, tmp_path):
    canary = tmp_path / "canary"
    pickled = copy_of_sd15 / "text_encoder/pytorch_model.bin"
    torch.save({"a": torch.ones(2), "b": Canary(canary)}, pickled, _use_new_zipfile_serialization=not legacy)
    (copy_of_sd15 / "text_encoder/model.safetensors").unlink()
    for message in refusals(copy_of_sd15):
        assert f"'{pickled}': is damaged, or contains more than weights, which could run code; " in message
    assert not canary.exists()


def test_an_honest_pickle_of_the_old_format_is_loaded(copy_of_sd15):
    safe = copy_of_sd15 / "unet/diffusion_pytorch_model.safetensors"
    tensors = load_tensors(safe)
    torch.save(tensors, safe.with_suffix(".bin"), _use_new_zipfile_serialization=False)
    safe.unlink()
    check_base(str(copy_of_sd15), SD15)
    base = BaseModel(SD15, ModelConfig(base=str(copy_of_sd15)), torch.device("cpu"))
    base.require("unet")
    assert all(torch.equal(value, tensors[name]) for name, value in base.module("unet").state_dict().items())


DAMAGED_CONFIGS = {
    "cut": ("unet/config.json", "{"),
    "a list": ("unet/config.json", "[]"),
    "deep": ("vae/config.json", '{"a":' * 100_000),
    "a scheduler's": ("scheduler/scheduler_config.json", "null"),
    "a tokenizer's": ("tokenizer/tokenizer_config.json", "5"),
    "code of the Hub": ("text_encoder/config.json", '{"attn_implementation": "someone/kernel"}'),
    "code of the Hub inside": ("text_encoder/config.json", '{"text_config": [{"_attn_implementation": "a/b"}]}'),
    "an index of weights": ("unet/diffusion_pytorch_model.safetensors.index.json", '{"weight_map": null}'),
    "weights outside": ("unet/diffusion_pytorch_model.safetensors.index.json", '{"weight_map": {"a": "../../x.bin"}}'),
}


@pytest.mark.parametrize("case", DAMAGED_CONFIGS)
def test_a_damaged_config_is_refused_before_the_start_with_its_file(case, copy_of_sd15):
    path, text = DAMAGED_CONFIGS[case]
    (copy_of_sd15 / path).write_text(text)
    for message in refusals(copy_of_sd15):
        assert f"'{copy_of_sd15 / path}': " in message


def test_a_pipe_in_a_folder_is_refused_instead_of_waited_for(copy_of_sd15):
    if not hasattr(os, "mkfifo"):
        pytest.skip("this system has no named pipes")
    (copy_of_sd15 / "unet/config.json").unlink()
    os.mkfifo(copy_of_sd15 / "unet/config.json")
    for message in refusals(copy_of_sd15):
        assert "unet/config.json': is not a file" in message


def test_the_folder_that_describes_a_single_file_is_held_to_the_same(copy_of_sd15):
    settings = ModelConfig(config_folder=str(copy_of_sd15))
    check_config_folder(settings, SD15)
    name_class(copy_of_sd15, "text_encoder", "transformers", "AutoModel")
    with pytest.raises(WeightsError, match=r"^model\.config_folder .* its text_encoder can't be loaded .*AutoModel"):
        check_config_folder(settings, SD15)


# Folders in use name these, too.
EQUIVALENTS = [
    ("sd15", "text_encoder", "transformers", "CLIPTextModelWithProjection"),
    ("sd15", "vae", "diffusers", "AutoencoderTiny"),
    ("sd15", "tokenizer", "transformers", "CLIPTokenizerFast"),
    ("sd15", "scheduler", "diffusers", "PNDMScheduler"),
    ("sd15_inpaint", "vae", "diffusers", "AsymmetricAutoencoderKL"),
    ("hunyuan_dit", "text_encoder_2", "transformers", "MT5EncoderModel"),
    ("wan21", "text_encoder", "transformers", "T5EncoderModel"),
    ("wan21", "tokenizer", "transformers", "T5TokenizerFast"),
    ("sana", "text_encoder", "transformers", "Gemma2ForCausalLM"),
    ("flux2_dev", "tokenizer", "transformers", "PixtralProcessor"),
    ("kandinsky5_image", "tokenizer", "transformers", "Qwen2VLProcessor"),
    ("kolors", "tokenizer", "kolors", "ChatGLMTokenizer"),
    ("ltx2", "vocoder", "ltx2", "LTX2Vocoder"),
]


@pytest.mark.parametrize(("family", "part", "library", "name"), EQUIVALENTS)
def test_equivalent_classes_are_accepted(family, part, library, name):
    assert refused_class({part: [library, name]}, FAMILIES[family]) is None
