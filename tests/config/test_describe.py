"""The settings as data: complete, in order, and sufficient for a form and a command line."""

import dataclasses
import json
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pydantic
import pytest
from pydantic.dataclasses import dataclass as pydantic_dataclass

import modules.config
from modules.config.ConceptConfig import ConceptConfig
from modules.config.describe import alternatives, is_visible, range_text, settings_by_path, value_at, walk_settings
from modules.config.families import load_families
from modules.config.files import apply_overrides, config_from_values
from modules.config.LossConfig import LossConfig
from modules.config.methods import METHODS, trainable_encoders
from modules.config.migrations import CURRENT_VERSION
from modules.config.setting import STRICT, Int, section, setting
from modules.config.TrainConfig import TrainConfig

ROOT = Path(modules.config.__file__).resolve().parents[2]
LISTS = {"concepts": "concepts.0", "embeddings": "embeddings.0", "sampling.samples": "sampling.samples.0"}


def leaves(cls: type, prefix: str = "") -> set[str]:
    """The paths of all fields, found independently of walk_settings."""
    paths = set()
    for field in dataclasses.fields(cls):
        annotation = field.type
        entries = getattr(annotation, "__args__", ())
        if dataclasses.is_dataclass(annotation):
            paths |= leaves(annotation, f"{prefix}{field.name}.")
        else:
            paths.add(prefix + field.name)
            if entries and dataclasses.is_dataclass(entries[0]):
                paths |= leaves(entries[0], f"{prefix}{field.name}[].")
    return paths


def another_value(info) -> str:
    """An allowed value other than the default, as written on a command line."""
    if info.type == "bool":
        return str(not info.default).lower()
    if info.type == "choice":
        return next(choice for choice in info.choices if choice != info.default)
    if info.type == "str":
        return "12399"
    if info.type == "list[int]":
        return f"[{int(info.ge) + 3}, {int(info.ge) + 1}]"
    if info.type == "list[float]":
        return "[0.5, 1e-4]"
    if info.type == "list[str]":
        return "[a.safetensors, 'b, c.safetensors']"
    if info.type == "list":
        return "[{}]"
    if info.path == "config_version":
        return str(CURRENT_VERSION)  # one value only
    if info.lt is not None and info.ge is None and info.gt is None:
        return "-0.5"
    low = info.ge if info.ge is not None else info.gt
    high = info.le if info.le is not None else info.lt
    if info.type == "int":
        return str(low + 5 if high is None else min(low + 5, high))
    return str(low + ((high - low) / 8 if high is not None else 1.25))


def test_every_field_is_a_setting_once_and_in_order():
    paths = [info.path for info in walk_settings()]
    assert len(paths) == len(set(paths))
    assert set(paths) == leaves(TrainConfig)
    assert paths[:3] == ["config_version", "family", "method"]


def test_defaults_are_those_of_a_fresh_config():
    settings = settings_by_path()
    assert settings["denoiser.train"].default is True
    assert settings["text_encoder.train"].default is False
    assert settings["concepts[].repeats"].default == 1.0
    for path, info in settings.items():
        if "[]" not in path:
            assert info.default == value_at(TrainConfig(), path), path


def test_every_default_keeps_its_own_rule():
    values = dataclasses.asdict(TrainConfig(concepts=[ConceptConfig()]))
    assert config_from_values(values) == TrainConfig(concepts=[ConceptConfig()])
    for info in walk_settings():
        if info.type == "float" and info.default is not None:
            assert isinstance(info.default, float), info.path


@pytest.mark.parametrize("info", walk_settings(), ids=lambda info: info.path)
def test_every_setting_can_be_set_from_the_command_line(info):
    path = info.path
    for name, entry in LISTS.items():
        path = path.replace(f"{name}[]", entry)
    config = config_from_values(apply_overrides({}, [f"{path}={another_value(info)}"]))
    value = value_at(config, path)
    if path != "config_version":
        assert value != info.default
    assert json.dumps(value, default=dataclasses.asdict)


@pytest.mark.parametrize("info", walk_settings(), ids=lambda info: info.path)
def test_every_setting_says_what_it_is(info):
    assert info.help.endswith(".")
    assert len(info.help) > 15
    assert not info.label.endswith(".")
    assert info.importance in ("basic", "advanced")
    assert set(info.choice_labels) == set(info.choices)
    for path, allowed in info.visible_when.items():
        others = [settings_by_path()[one].choices or (True, False) for one in alternatives(path)]
        assert set(allowed) <= set(chain(*others)), f"{info.path} can never be visible"


@pytest.mark.parametrize("method", METHODS.values(), ids=lambda method: method.name)
def test_training_a_text_encoder_matters_where_the_method_can_train_one(method):
    info = settings_by_path()["text_encoder.train"]
    for family in load_families().values():
        config = TrainConfig(family=family.name, method=method.name)
        assert is_visible(info, config) == bool(trainable_encoders(method, family)), family.name


def test_what_a_method_that_compares_predictions_refuses_does_not_matter_to_it():
    for method in METHODS.values():
        config = TrainConfig(method=method.name, loss=LossConfig(masked_training=True))
        shown = {
            is_visible(settings_by_path()[f"loss.{name}"], config) for name in ("masked_training", "unmasked_weight")
        }
        assert shown == {method.uses_denoiser and not method.compares}, method.name


def test_what_a_method_always_refuses_is_not_shown_for_it():
    for method in METHODS.values():
        config = TrainConfig(method=method.name)
        shown = [path for path in method.refused if is_visible(settings_by_path()[path], config)]
        assert not shown, method.name


def test_every_setting_that_may_be_empty_says_what_that_does():
    optional = [info for info in walk_settings() if info.optional and not info.unit]  # a field shows the unit instead
    assert [info.path for info in optional if not info.empty_means] == []


def test_a_path_may_differ_between_the_machines_of_a_run():
    paths = [info for info in walk_settings() if info.format not in ("", "long")]
    assert {info.path for info in paths if info.scope != "machine"} == set()
    assert "model.base" in {info.path for info in paths}


def test_lists_of_parts_and_no_other_settings_say_what_a_part_is_called():
    assert [info.path for info in walk_settings() if bool(info.part_name) != (info.type == "list")] == []


def test_what_a_preset_keeps_is_a_setting_or_a_list_as_a_whole():
    kept = [info for info in walk_settings() if info.kept_as]
    for number, info in enumerate(kept):
        assert "[]" not in info.path
        later = {other.path for other in kept[number:]}
        assert not later & set(info.kept_while), f"{info.path} is decided before what it depends on"
    assert all(info.kept_as for info in walk_settings() if info.kept_while)


def test_labels_name_only_choices_there_are():
    for info in walk_settings():
        part = TrainConfig
        for name in info.path.replace("[]", "").split(".")[:-1]:
            annotation = part.__annotations__[name]
            part = annotation if dataclasses.is_dataclass(annotation) else annotation.__args__[0]
        declared = part.__pydantic_fields__[info.path.rpartition(".")[2]].json_schema_extra
        assert set(declared["choice_labels"]) <= set(info.choices), info.path


def test_visibility_follows_the_other_settings():
    settings = settings_by_path()
    config = TrainConfig()
    assert is_visible(settings["lora.rank"], config)
    assert not is_visible(settings["vae.kl_weight"], config)
    assert not is_visible(settings["text_encoder.learning_rate"], config)
    config.text_encoder.train = True
    assert is_visible(settings["text_encoder.learning_rate"], config)
    config.method = "vae"
    assert not is_visible(settings["text_encoder.learning_rate"], config)
    assert not is_visible(settings["lora.rank"], config)


def test_visibility_in_a_list_follows_the_entry():
    prompt = settings_by_path()["concepts[].prompt"]
    assert is_visible(prompt, TrainConfig(), ConceptConfig(captions="prompt"))
    assert not is_visible(prompt, TrainConfig(), ConceptConfig(captions="txt"))


def test_ranges_in_words():
    texts = {info.path: range_text(info) for info in walk_settings()}
    assert texts["seed"] == "0 to 2147483647"
    assert texts["lora.dropout"] == "at least 0 and below 1"
    assert texts["ema.decay"] == "above 0 and below 1"
    assert texts["max_steps"] == "at least 1"
    assert texts["device_indexes"] == "at least 0"
    assert texts["model.base"] == ""


def test_a_field_without_presentation_is_refused():
    @pydantic_dataclass(config=STRICT)
    class Bare:
        number: Int = 3

    @pydantic_dataclass(config=STRICT)
    class Odd:
        words: dict[str, int] = setting(label="Words", help="Some.", group="general", default_factory=dict)

    @pydantic_dataclass(config=STRICT)
    class Holder:
        bare: Bare = section(Bare, label="Bare")

    with pytest.raises(TypeError, match="setting number has no label"):
        walk_settings(Bare)
    with pytest.raises(TypeError, match=r"setting bare\.number has no label"):
        walk_settings(Holder)
    with pytest.raises(TypeError, match="which no form can show"):
        walk_settings(Odd)


def test_a_setting_without_texts_or_of_an_unknown_group_can_not_be_declared():
    with pytest.raises(ValueError, match="label and a help"):
        setting(1, label="", help="x", group="general")
    with pytest.raises(ValueError, match="label and a help"):
        setting(1, label="x", help=" ", group="general")
    with pytest.raises(ValueError, match="unknown group"):
        setting(1, label="x", help="x", group="else")  # type: ignore[arg-type]


def test_assignment_is_validated():
    config = TrainConfig()
    for part, name, value in [
        (config, "batch_size", 0),
        (config, "batch_size", True),
        (config, "seed", "x"),
        (config, "batchsize", 2),
        (config.optimizer, "learning_rate", float("nan")),
        (config.lora, "dropout", 1.0),
        (config.model, "weight_dtype", "float8"),
    ]:
        with pytest.raises(pydantic.ValidationError):
            setattr(part, name, value)
    assert config == TrainConfig()


def test_settings_need_neither_torch_nor_a_window():
    names = sorted(path.stem for path in (ROOT / "modules" / "config").glob("*.py") if path.stem != "__init__")
    assert "TrainConfig" in names
    code = (
        f"import importlib, sys\nfor name in {names}: importlib.import_module('modules.config.' + name)\n"
        "heavy = {'torch', 'diffusers', 'transformers', 'peft', 'tkinter', 'customtkinter', 'numpy', 'PIL'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
