"""Reading and writing settings files, and what is refused."""

import json
import os
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from modules.config.ConceptConfig import ConceptConfig
from modules.config.describe import settings_by_path
from modules.config.errors import ConfigError, UserError
from modules.config.files import apply_overrides, config_from_values, load_config, load_values, save_config, to_values
from modules.config.methods import METHODS
from modules.config.other_programs import foreign_names, window_labels
from modules.config.SampleConfig import SampleConfig
from modules.config.TrainConfig import TrainConfig


def write(folder: Path, text: str | bytes, name: str = "run.yaml") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def refusal(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert isinstance(caught.value, UserError)
    assert str(caught.value) == "\n".join(problem.message for problem in caught.value.problems)
    return str(caught.value)


def rich_config() -> TrainConfig:
    config = TrainConfig(method="full", max_steps=7, initial_port="12400", device_indexes=[1, 0])
    prompt = "“x” # no\ncomment\tö\U0001f600"
    config.concepts = [ConceptConfig(path="a: b", captions="prompt", prompt=prompt, repeats=2.5)]
    config.sampling.samples = [SampleConfig(prompt="yes"), SampleConfig(prompt="1e-4", negative_prompt="null")]
    config.optimizer.learning_rate = 3e-7
    config.model.mixed_precision = "no"
    return config


@pytest.mark.parametrize("name", ["run.yaml", "run.yml", "run.json", "RUN.JSON"])
def test_a_saved_config_is_the_one_loaded(tmp_path, name):
    config = rich_config()
    save_config(config, tmp_path / name)
    assert load_config(tmp_path / name) == config
    assert load_config(tmp_path / name) != TrainConfig()


@given(text=st.text(), rate=st.floats(min_value=1e-300, max_value=1000), seed=st.integers(0, 2**31 - 1))
@settings(max_examples=60, deadline=None)
def test_any_text_and_number_survives_a_file(tmp_path_factory, text, rate, seed):
    config = TrainConfig(seed=seed)
    config.output.name, config.optimizer.learning_rate = text, rate
    for ending in ("yaml", "json"):
        path = tmp_path_factory.getbasetemp() / f"survives.{ending}"
        save_config(config, path)
        assert load_config(path) == config


def test_a_saved_file_lists_all_settings_in_the_order_of_their_declaration(tmp_path):
    save_config(TrainConfig(), tmp_path / "run.yaml")
    values = yaml.safe_load((tmp_path / "run.yaml").read_text())
    assert list(values) == list(TrainConfig.__pydantic_fields__)
    assert values == to_values(TrainConfig())


def test_what_a_file_leaves_out_is_the_default(tmp_path):
    path = write(tmp_path, "text_encoder: {learning_rate: 1e-5}\ndenoiser: {learning_rate: 2e-5}\n")
    expected = TrainConfig()
    expected.text_encoder.learning_rate, expected.denoiser.learning_rate = 1e-5, 2e-5
    assert load_config(path) == expected
    assert not expected.text_encoder.train
    assert expected.denoiser.train


def test_spellings_that_yaml_reads_as_another_type_are_understood(tmp_path):
    text = "optimizer: {learning_rate: 1e-4}\ninitial_port: 12399\nmodel: {mixed_precision: no}\ntensorboard: yes\n"
    config = load_config(write(tmp_path, text))
    assert config.optimizer.learning_rate == 1e-4
    assert config.initial_port == "12399"
    assert config.model.mixed_precision == "no"
    assert config.tensorboard is True


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("90", 90),
        ("+90", 90),
        ("1_000", 1000),
        ("0x5A", 90),
        ("017", 17),  # YAML 1.1: 15
        ("0", 0),
        ("90.0", 90),
        ("1:30", None),  # YAML 1.1: 90
        ("1:30.0", None),
        ("0o17", None),
        ("0b11", None),
        ("9.5", None),
        ("yes", None),
    ],
)
def test_only_what_looks_like_a_number_today_is_one(tmp_path, text, value):
    path = write(tmp_path, f"seed: {text}\n")
    if value is None:
        assert "it must be a whole number" in refusal(path)
        with pytest.raises(ConfigError, match="it must be a whole number"):
            apply_overrides({}, [f"seed={text}"])
    else:
        assert load_config(path).seed == value
        assert config_from_values(apply_overrides({}, [f"seed={text}"])).seed == value


def test_words_that_only_yaml_1_1_takes_for_true_or_false_are_choices_and_switch(tmp_path):
    concept = "{path: a, capitalization: off, enabled: no, augmentation: {flip: on}}"
    config = load_config(write(tmp_path, f"model: {{compile: off, tf32: off}}\nconcepts: [{concept}]\n"))
    assert (config.model.compile, config.concepts[0].capitalization) == ("off", "off")
    assert (config.model.tf32, config.concepts[0].enabled, config.concepts[0].augmentation.flip) == (False, False, True)


@pytest.mark.parametrize("text", ["1:30", "017", "0o17", "1e-4", "1:30.5", "190:20:30", "no", "Off", "on", "YES"])
def test_text_that_is_no_number_or_truth_value_today_needs_no_quotes_and_survives_a_file(tmp_path, text):
    config = load_config(write(tmp_path, f"output: {{name: {text}}}\n"))
    assert config.output.name == text
    save_config(config, tmp_path / "saved.yaml")
    assert load_config(tmp_path / "saved.yaml") == config


def test_a_byte_order_mark_is_skipped(tmp_path):
    assert load_config(write(tmp_path, b"\xef\xbb\xbfbatch_size: 8\n")).batch_size == 8
    assert load_config(write(tmp_path, b'\xef\xbb\xbf{"batch_size": 8}', "run.json")).batch_size == 8


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "optimizer: {learing_rate: 1}",
            "unknown setting optimizer.learing_rate in {}: did you mean optimizer.learning_rate?",
        ),
        ("optimzer: {}", "unknown setting optimzer in {}: did you mean optimizer?"),
        ("learning_rate: 1", "unknown setting learning_rate in {}: did you mean optimizer.learning_rate?"),
        ("concepts: [{}, {pth: x}]", "unknown setting concepts.1.pth in {}: did you mean concepts.1.path?"),
        ("qqqq: 1", "unknown setting qqqq in {}: remove it, or look its name up in docs/settings.md."),
        ("7: 1", "unknown setting 7 in {}: remove it, or look its name up in docs/settings.md."),
        ("batch_size: 0", "batch_size is 0 in {}: it must be a whole number, at least 1; the default is 4."),
        ("batch_size: true", "batch_size is true in {}: it must be a whole number, at least 1; the default is 4."),
        ("batch_size: 2.5", "batch_size is 2.5 in {}: it must be a whole number, at least 1; the default is 4."),
        (
            "seed: 2147483648",
            "seed is 2147483648 in {}: it must be a whole number, 0 to 2147483647; the default is 42.",
        ),
        (
            "method: loar",
            f"method is 'loar' in {{}}: it must be one of {', '.join(METHODS)}; lora was probably meant.",
        ),
        (
            "lora: {dropout: 1}",
            "lora.dropout is 1 in {}: it must be a finite number, at least 0 and below 1; the default is 0.0.",
        ),
        (
            "lora: {alpha: .nan}",
            "lora.alpha is nan in {}: it must be a finite number, above 0 and at most 1000000; the default is 16.0.",
        ),
        (
            "lora: {alpha: .inf}",
            "lora.alpha is inf in {}: it must be a finite number, above 0 and at most 1000000; the default is 16.0.",
        ),
        (
            "lora: {alpha: 1e999}",
            "lora.alpha is '1e999' in {}: it must be a finite number, above 0 and at most 1000000; the default is "
            "16.0.",
        ),
        (
            "lora: {alpha: false}",
            "lora.alpha is false in {}: it must be a finite number, above 0 and at most 1000000; the default is 16.0.",
        ),
        (
            "max_steps: x",
            "max_steps is 'x' in {}: it must be a whole number, at least 1, or empty; leave it empty if in doubt.",
        ),
        ("output: {name: 7}", "output.name is 7 in {}: it must be text; put it in quotes."),
        ("output: {name: 2024-01-02}", "output.name is a date in {}: it must be text; put it in quotes."),
        ("ema: {enabled: 3}", "ema.enabled is 3 in {}: it must be true or false; the default is false."),
        ("model:", "model is empty in {}: it must be a section with settings of its own, such as model.base."),
        ("concepts: 5", "concepts is 5 in {}: it must be a list of sections; the default is an empty list."),
        (
            "concepts: [x]",
            "concepts.0 is 'x' in {}: it must be a section with settings of its own, such as concepts.0.name.",
        ),
        (
            "data: {resolution: 1024x768}",
            "data.resolution is '1024x768' in {}: it must be a whole number, 8 to 16384; give 887, the side of a "
            "square of as many pixels.",
        ),
        ("device_indexes: [0, -1]", "device_indexes.1 is -1 in {}: it must be a whole number, at least 0."),
        (
            "initial_port: 70000",
            "initial_port is 70000 in {}: it must be a port number from 1 to 65535; the default is '12355'.",
        ),
        (
            "epochs: 0x" + "f" * 9000,
            "epochs is a huge number in {}: it must be a whole number of at most 18 digits; the default is 10.",
        ),
    ],
)
def test_a_wrong_setting_is_refused_with_path_value_rule_and_remedy(tmp_path, text, expected):
    path = write(tmp_path, text)
    assert refusal(path) == expected.format(path)


@pytest.mark.parametrize("port", ["0", "65536", "12355x", "", "-1", "٣", "123456"])
def test_a_port_outside_its_range_is_refused(tmp_path, port):
    assert "a port number from 1 to 65535" in refusal(write(tmp_path, json.dumps({"initial_port": port})))


@pytest.mark.parametrize(
    ("data", "name", "words"),
    [
        (b"batch_size: 1\nseed: 2\nbatch_size: 3\n", "a.yaml", "line 3, column 1: 'batch_size' is given twice"),
        (b"model: {base: x, base: y}\n", "a.yaml", "'base' is given twice"),
        (b'{"seed": 1, "seed": 2}', "a.json", "'seed' is given twice"),
        (b"- 1\n", "a.yaml", "holds no settings"),
        (b"", "a.yaml", "holds no settings"),
        (b"null", "a.json", "holds no settings"),
        (b"output: {name: \xff}", "a.yaml", "is not UTF-8 (byte 15)"),
        (b"a: " + b"[" * 5000, "a.yaml", "nested too deeply"),
        (b'{"a": ' * 400 + b"1" + b"}" * 400, "a.json", "nested too deeply"),
        (b"a: " + b"[" * 90 + b"]" * 90, "a.yaml", "nested too deeply"),
        (b'{"a": ' * 100_000, "a.json", "nested too deeply"),
        (b"a: [1, 2", "a.yaml", "is not valid YAML: line "),
        (b"a: 1\nb: @", "a.yaml", "is not valid YAML: line 2, column 4"),
        (b'output: {name: "\\ud800"}', "a.yaml", "Unicode character"),
        (b'{"output": {"name": "\\ud800"}}', "a.json", "output.name is '\\ud800'"),
        (b'{"\\ud800": 1}', "a.json", "unknown setting '\\ud800'"),
        (b'{"loss": {"mse\\ud800": 1}}', "a.json", "unknown setting 'loss.mse\\ud800'"),
        (b'{"a": ', "a.json", "Expecting value"),
        (b'{"seed": NaN}', "a.json", "NaN is not a number"),
        (b'{"seed": -Infinity}', "a.json", "-Infinity is not a number"),
        (b"a: &x 1\nb: *x\n", "a.yaml", "aliases (*name) are not allowed"),
        (b"ema: {enabled: !!bool maybe}", "a.yaml", "tags (!name) are not allowed"),
        (b"a: !!python/object/apply:os.getcwd []", "a.yaml", "tags (!name) are not allowed"),
        (b"<<: {seed: 1}", "a.yaml", "is not valid YAML"),
        (b"[1]: 2", "a.yaml", "is not valid YAML"),
        (b"? {a: 1}\n: 2", "a.yaml", "is not valid YAML"),
        (b"seed: \x07", "a.yaml", "is not valid YAML"),
        (b"seed: 2020-99-99", "a.yaml", "can't be read"),
        (b"seed: " + b"1" * 5000, "a.yaml", "can't be read"),
        (b"seed: 1" + b":1" * 300 + b".5", "a.yaml", "it must be a whole number"),
        (b"a: 1\n---\nb: 2\n", "a.yaml", "is not valid YAML"),
        (b"seed: 1", "a.txt", "settings files end in .yaml, .yml or .json"),
    ],
)
def test_a_file_that_is_no_plain_mapping_is_refused_in_one_sentence(tmp_path, data, name, words):
    message = refusal(write(tmp_path, data, name))
    assert words in message
    assert name in message
    assert "\n" not in message


def test_a_file_larger_than_10_mb_is_refused(tmp_path):
    path = write(tmp_path, b"seed: 1\n#" + b"x" * 10 * 1024 * 1024)
    assert "larger than 10 MB" in refusal(path)


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    assert "No such file" in refusal(tmp_path / "none.yaml")
    (tmp_path / "folder.yaml").mkdir()
    assert "is not a file" in refusal(tmp_path / "folder.yaml")


def test_all_mistakes_of_a_file_are_listed_but_not_thousands(tmp_path):
    path = write(tmp_path, "batch_size: 0\nepochs: x\nmodel: {bse: y}\n")
    assert len(refusal(path).splitlines()) == 3
    path = write(tmp_path, json.dumps({f"unknown{i}": 1 for i in range(3000)}), "many.json")
    lines = refusal(path).splitlines()
    assert len(lines) == 21
    assert "2980 more" in lines[-1]


def test_values_that_are_no_mapping_are_refused():
    with pytest.raises(ConfigError, match="must be a mapping"):
        config_from_values([1], "the window")  # type: ignore[arg-type]


def test_an_interrupted_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "run.yaml"
    save_config(TrainConfig(seed=1), path)

    def no_space(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(ConfigError, match="No space left on device"):
        save_config(TrainConfig(seed=2), path)
    assert load_config(path).seed == 1
    assert os.listdir(tmp_path) == ["run.yaml"]


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match="can't be written: No such file"):
        save_config(TrainConfig(), tmp_path / "none" / "run.yaml")


def test_writing_through_a_link_keeps_the_link(tmp_path):
    (tmp_path / "link.yaml").symlink_to(tmp_path / "real.yaml")
    save_config(TrainConfig(seed=5), tmp_path / "link.yaml")
    assert (tmp_path / "link.yaml").is_symlink()
    assert load_config(tmp_path / "real.yaml").seed == 5


def test_a_config_that_could_not_be_loaded_is_not_written(tmp_path):
    config = TrainConfig()
    config.device_indexes.append(-1)  # appending to a list is not validated
    with pytest.raises(ConfigError, match=r"device_indexes\.0 is -1"):
        save_config(config, tmp_path / "run.yaml")
    assert os.listdir(tmp_path) == []


def test_reading_values_changes_nothing_but_adds_the_version(tmp_path):
    assert load_values(write(tmp_path, "batch_size: zero\n")) == {"batch_size": "zero", "config_version": 2}


def test_overrides_set_values_and_leave_the_given_ones_alone():
    values = {"optimizer": {"name": "adamw"}}
    changed = apply_overrides(values, ["optimizer.learning_rate=1e-3", "batch_size = 8".replace(" ", ""), "max_steps="])
    assert values == {"optimizer": {"name": "adamw"}}
    config = config_from_values(changed)
    assert config.optimizer.learning_rate == 1e-3
    assert config.batch_size == 8
    assert config.max_steps is None


def test_overrides_change_and_add_entries_of_lists():
    values = {"concepts": [{"path": "a", "repeats": 2}]}
    overrides = ["concepts.0.path=b", "concepts.1.path=c", "device_indexes=[2, 0]", "device_indexes.1=3"]
    config = config_from_values(apply_overrides(values, [*overrides, "sampling.samples.0.prompt=cat"]))
    assert [(concept.path, concept.repeats) for concept in config.concepts] == [("b", 2), ("c", 1)]
    assert config.device_indexes == [2, 3]
    assert config.sampling.samples == [SampleConfig(prompt="cat")]


@pytest.mark.parametrize("text", ["a: b", "no", "12", "", "# x", "a=b", "'q'", "[", "*x", "null", " spaced "])
def test_text_given_on_the_command_line_is_taken_as_it_stands(text):
    config = config_from_values(apply_overrides({}, [f"output.name={text}"]))
    assert config.output.name == text


def test_a_choice_that_yaml_reads_as_false_can_be_given():
    assert config_from_values(apply_overrides({}, ["model.mixed_precision=no"])).model.mixed_precision == "no"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optimizer.learing_rate=1", "unknown setting optimizer.learing_rate: did you mean optimizer.learning_rate?"),
        ("optimzer.learning_rate=1", "unknown setting optimzer.learning_rate: did you mean optimizer.learning_rate?"),
        ("concepts.2.pth=1", "unknown setting concepts.2.pth: did you mean concepts.2.path?"),
        ("batch_size.0=1", "unknown setting batch_size.0: did you mean batch_size?"),
        ("batch_size", "--set 'batch_size' has no value: write path=value."),
        ("model=x", "model is a section: set one of its settings, such as model.base."),
        ("concepts.0=x", "concepts.0 is a section: set one of its settings, such as concepts.0.name."),
        ("concepts[].path=x", "'concepts[].path' names no entry of a list: write its number, as in concepts.0.path."),
        ("concepts.1.path=x", "concepts.1.path can't be set: concepts has 0 entries; the next free number is 0."),
        (
            "concepts.99999999999.path=x",
            "concepts.99999999999.path can't be set: concepts has 0 entries; the next free number is 0.",
        ),
        (
            f"concepts.{'9' * 30}.path=x",
            f"unknown setting concepts.{'9' * 30}.path: remove it, or look its name up in docs/settings.md.",
        ),
        ("batch_size=0", "batch_size is 0: it must be a whole number, at least 1; the default is 4."),
        ("batch_size=[", "batch_size is '[': it must be a whole number, at least 1; the default is 4."),
        ("method=", f"method is '': it must be one of {', '.join(METHODS)}; the default is lora."),
        ("concepts=[{path: 3}]", "concepts.0.path is 3: it must be text; put it in quotes."),
        ("device_indexes=[-1]", "device_indexes.0 is -1: it must be a whole number, at least 0."),
        ("se\ned=1", "unknown setting 'se\\ned': did you mean seed?"),
        ("seed.x=1", "unknown setting seed.x: did you mean seed?"),
        ("network_dim=8", "unknown setting network_dim: did you mean lora.rank?"),
        ("unet_lr=1", "unknown setting unet_lr: did you mean denoiser.learning_rate?"),
        ("concepts.1.flip_aug=1", "unknown setting concepts.1.flip_aug: did you mean concepts.1.augmentation.flip?"),
        ("offline_mode=1", "unknown setting offline_mode: set the environment variable HF_HUB_OFFLINE to 1."),
        ("concepts.2.num_repeats=1", "unknown setting concepts.2.num_repeats: did you mean concepts.2.repeats?"),
    ],
)
def test_an_override_that_can_not_be_set_is_refused(override, message):
    with pytest.raises(ConfigError) as caught:
        apply_overrides({}, [override])
    assert str(caught.value) == message


def test_an_override_into_a_malformed_file_is_refused():
    with pytest.raises(ConfigError, match="concepts is no list in the file"):
        apply_overrides({"concepts": 5}, ["concepts.0.path=x"])
    with pytest.raises(ConfigError, match="model is no section in the file"):
        apply_overrides({"model": [1]}, ["model.base=x"])
    assert apply_overrides({"model": None, "concepts": None}, ["model.base=x", "concepts.0.path=y"]) == {
        "model": {"base": "x"},
        "concepts": [{"path": "y"}],
    }


def test_every_bad_override_is_listed():
    with pytest.raises(ConfigError) as caught:
        apply_overrides({}, ["batch_size=0", "seed=1", "epochs=0"])
    assert len(caught.value.problems) == 2


def test_names_of_other_trainers_lead_to_settings_that_exist():
    assert foreign_names().keys() <= settings_by_path().keys()
    assert window_labels().keys() <= settings_by_path().keys()


def test_a_list_of_files_takes_any_name_by_its_number_and_a_name_alone_asks_for_brackets():
    values = apply_overrides({}, ["model.text_encoders.0=1", "model.text_encoders.1=a: [b].safetensors"])
    assert config_from_values(values).model.text_encoders == ["1", "a: [b].safetensors"]
    with pytest.raises(ConfigError) as caught:
        config_from_values({"model": {"text_encoders": "t5xxl.safetensors"}})
    assert str(caught.value) == (
        "model.text_encoders is 't5xxl.safetensors': it must be a list of texts; put it in brackets, [like this]."
    )
