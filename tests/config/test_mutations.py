"""Any settings file gives either a config that can be saved again, or error messages; never a traceback."""

import json
import string

import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from modules.config.errors import ConfigError
from modules.config.files import apply_overrides, config_from_values, load_config, save_config, to_values
from modules.config.TrainConfig import TrainConfig
from modules.config.validation import find_problems

# Neither check is relevant here, and a busy machine must not fail the test.
MUTATED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([10**400, -(10**4000), 2**63, -1, 0, 1]),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(["nan", "inf", "1e-4", "1e999", "no", "yes", "sd15", "lora", "steps", "\ud800", "1" * 5000]),
    st.dates(),
    st.binary(max_size=5),
)
keys = st.one_of(st.text(max_size=10), st.integers(), st.none(), st.sampled_from([*to_values(TrainConfig()), "train"]))
anything = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(keys, inner, max_size=3)),
    max_leaves=6,
)


def base_values() -> dict:
    values = to_values(TrainConfig())
    values["concepts"] = [{"path": "a", "repeats": 2.0}]
    values["sampling"]["samples"] = [{"prompt": "x"}]
    return values


@st.composite
def mutated_values(draw) -> dict:
    """A valid config with one to four values replaced, removed or added."""
    values = base_values()
    for _ in range(draw(st.integers(1, 4))):
        place = values
        while True:
            names = list(place) if isinstance(place, dict) else list(range(len(place)))
            inner = [name for name in names if isinstance(place[name], (dict, list)) and place[name]]
            if inner and draw(st.booleans()):
                place = place[draw(st.sampled_from(inner))]
                continue
            break
        action = draw(st.sampled_from(["replace", "remove", "add"]))
        if action == "add" and isinstance(place, dict):
            place[draw(keys)] = draw(anything)
        elif names and action == "remove":
            del place[draw(st.sampled_from(names))]
        elif names:
            place[draw(st.sampled_from(names))] = draw(anything)
    return values


def check_sentences(error: ConfigError) -> None:
    assert error.problems
    for sentence in str(error).splitlines():
        assert "\n" not in sentence
        assert len(sentence) < 600
        assert sentence.endswith((".", "?"))


@given(mutated_values())
@settings(MUTATED, max_examples=500)
def test_mutated_values_give_a_config_or_sentences(tmp_path_factory, values):
    try:
        config = config_from_values(values, "run.yaml")
    except ConfigError as error:
        check_sentences(error)
        return
    for problem in find_problems(config):
        assert problem.message.endswith(".")
    path = tmp_path_factory.getbasetemp() / "mutated.yaml"
    save_config(config, path)
    assert load_config(path) == config


@given(st.binary(max_size=60), st.integers(0, 3000), st.integers(0, 50), st.sampled_from(["yaml", "json"]))
@settings(MUTATED, max_examples=150)
def test_a_file_with_damaged_bytes_gives_a_config_or_sentences(tmp_path_factory, junk, start, length, ending):
    values = base_values()
    text = yaml.safe_dump(values, sort_keys=False) if ending == "yaml" else json.dumps(values)
    data = text.encode()
    path = tmp_path_factory.getbasetemp() / f"damaged.{ending}"
    path.write_bytes(data[:start] + junk + data[start + length :])
    try:
        load_config(path)
    except ConfigError as error:
        check_sentences(error)


@given(st.lists(st.text(alphabet=string.printable, max_size=30), max_size=3), st.sampled_from(sorted(base_values())))
@settings(MUTATED, max_examples=150)
def test_any_override_gives_values_or_sentences(texts, name):
    overrides = [*texts, *(f"{name}={text}" for text in texts), *(f"{name}.{text}" for text in texts)]
    try:
        apply_overrides(base_values(), overrides)
    except ConfigError as error:
        check_sentences(error)
