"""What computes attention in place of PyTorch is refused where it can't train or is not installed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from modules.config import attentions
from modules.config.attentions import ATTENTIONS, package_problem, without_gradients
from modules.config.errors import ConfigError
from modules.config.files import config_from_values
from modules.config.ModelConfig import ModelConfig
from modules.config.rules.memory import attention_mask_problems
from modules.trainer.packages import check_attention_package
from modules.trainer.TrainingError import TrainingError

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("name", "what", "remedy"),
    [
        ("sage", "SageAttention", "the default is auto"),
        ("sage_hub", "SageAttention", "the default is auto"),
        ("_flash_3", "a FlashAttention 3 that was built locally", "flash3 was probably meant"),
    ],
)
def test_kernels_without_a_backward_pass_are_refused_in_a_sentence_that_says_so(name, what, remedy):
    with pytest.raises(ConfigError) as refused:
        config_from_values({"model": {"attention": name}})
    assert str(refused.value) == (
        f"model.attention is {name!r}: it must be one with a backward pass, which {what} does not have; {remedy}."
    )


def test_kernels_with_a_backward_pass_are_none_of_these():
    assert not any(map(without_gradients, (*ATTENTIONS, "flash_hub", "_flash_3_hub", "_native_cudnn")))


@pytest.fixture
def install(monkeypatch):
    """Pretends that packages are installed in these versions, and no others."""

    def pretend(**versions: str) -> None:
        monkeypatch.setattr(attentions, "find_spec", lambda module: versions.get(module))
        monkeypatch.setattr(attentions, "installed_version", lambda package: versions.get(package.replace("-", "_")))

    return pretend


def test_a_missing_package_is_refused_with_the_command_that_installs_it(install):
    install()
    with pytest.raises(TrainingError) as refused:
        check_attention_package(ModelConfig(attention="flash"))
    assert str(refused.value) == (
        "model.attention 'flash' needs the package flash-attn, which is not installed here: run "
        "`pip install 'flash-attn>=2.6.3'`, or choose auto."
    )
    assert refused.value.problems[0].path == "model.attention"
    for name in ("auto", "sdpa", "cudnn", "flex"):
        check_attention_package(ModelConfig(attention=name))


@pytest.mark.parametrize(
    ("name", "version", "is_old"),
    [
        ("flash", "2.5.9", True),
        ("flash", "2.6.3+cu123torch2.4cxx11abiFALSE", False),
        ("flash3", "0.9.0", True),
        ("flash3", "0.12", False),
        ("xformers", "0.0.28.post3", True),
        ("xformers", "0.0.29", False),
    ],
)
def test_a_package_is_as_new_as_diffusers_requires(name, version, is_old, install):
    install(flash_attn=version, kernels=version, xformers=version)
    problem = package_problem(ATTENTIONS[name])
    assert bool(problem) == is_old
    assert not problem or f"or newer, and {version} is installed here" in problem


def test_the_versions_are_those_of_the_optional_dependencies():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for facts in ATTENTIONS.values():
        if facts.package:
            assert re.search(rf'^{facts.name} = \["{facts.package}>={facts.least_version}"\]', text, re.MULTILINE)


@pytest.mark.parametrize(
    ("family", "attention", "words"),
    [
        (
            "sana",
            "flash",
            "FlashAttention 2 can't compute any attention of a pass, because of masks, so PyTorch does; use flex, "
            "xformers or auto.",
        ),
        (
            "mochi",
            "flex",
            "FlexAttention can't compute 1 of the 97 attentions of a pass, because of heads of width 512, so PyTorch "
            "does; use xformers or auto.",
        ),
    ],
)
def test_what_kernels_do_not_take_of_a_model_is_said_before_it_is_loaded(family, attention, words):
    config = config_from_values({"family": family, "model": {"attention": attention, "mixed_precision": "bf16"}})
    [problem] = attention_mask_problems(config)
    assert problem.message == f"model.attention {attention} with family {family}: {words}"
    assert not problem.blocking


@pytest.mark.parametrize(("family", "attention"), [("sana", "xformers"), ("flux1", "flash3"), ("sdxl", "flash")])
def test_nothing_is_said_where_kernels_take_all_of_a_model(family, attention):
    config = config_from_values({"family": family, "model": {"attention": attention, "mixed_precision": "bf16"}})
    assert list(attention_mask_problems(config)) == []
