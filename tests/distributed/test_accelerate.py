from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from modules.config.errors import ConfigError
from modules.config.files import config_from_values, save_config
from modules.distributed.accelerate import check_accelerate

ROOT = Path(__file__).parents[2]
# what accelerate 1.15 sets whatever it is told
SILENT = {
    "ACCELERATE_MIXED_PRECISION": "no",
    "ACCELERATE_DYNAMO_BACKEND": "NO",
    "ACCELERATE_DYNAMO_MODE": "default",
    "ACCELERATE_DYNAMO_USE_FULLGRAPH": "False",
    "ACCELERATE_DYNAMO_USE_DYNAMIC": "False",
    "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION": "False",
}
SETTINGS = {"model": {"mixed_precision": "bf16", "compile": "blocks"}, "gradient_accumulation_steps": 4}


def refusal(values: dict, **variables: str) -> str:
    told = {f"ACCELERATE_{name}": value for name, value in variables.items()}
    with pytest.raises(ConfigError) as caught:
        check_accelerate(config_from_values(values), False, SILENT | told)
    return str(caught.value)


@pytest.mark.parametrize("values", [{}, SETTINGS])
def test_what_accelerate_was_not_told_is_for_the_settings_to_say(values):
    check_accelerate(config_from_values(values), True, SILENT)
    check_accelerate(config_from_values(values), True, {})


def test_what_both_say_alike_is_fine():
    told = {
        "ACCELERATE_MIXED_PRECISION": "bf16",
        "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4",
        "ACCELERATE_DYNAMO_BACKEND": "INDUCTOR",
    }
    check_accelerate(config_from_values(SETTINGS), True, SILENT | told)


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        (
            {"MIXED_PRECISION": "bf16"},
            "accelerate was told mixed_precision bf16 and model.mixed_precision is no, which Chorus goes by: set "
            "model.mixed_precision to bf16 as well, or set accelerate's to no.",
        ),
        (
            {"MIXED_PRECISION": "fp8"},
            "accelerate was told mixed_precision fp8 and model.mixed_precision is no, which Chorus goes by: set "
            "accelerate's to no.",
        ),
        (
            {"GRADIENT_ACCUMULATION_STEPS": "8"},
            "accelerate was told gradient_accumulation_steps 8 and gradient_accumulation_steps is 1, which Chorus goes "
            "by: set gradient_accumulation_steps to 8 as well, or leave accelerate's out.",
        ),
        (
            {"DYNAMO_BACKEND": "INDUCTOR"},
            "accelerate was told dynamo_backend inductor and model.compile is off, which Chorus goes by: set "
            "model.compile to blocks as well, or set accelerate's to no.",
        ),
    ],
)
def test_what_it_was_told_otherwise_is_refused_with_both_values(variables, sentence):
    assert refusal({}, **variables) == sentence


@pytest.mark.parametrize(
    ("name", "value"), [("MODE", "max-autotune"), ("USE_FULLGRAPH", "True"), ("USE_DYNAMIC", "True")]
)
def test_ways_to_compile_that_chorus_has_not_are_refused(name, value):
    text = refusal(SETTINGS, DYNAMO_BACKEND="INDUCTOR", **{f"DYNAMO_{name}": value})
    assert text.startswith(f"accelerate was told dynamo_{name.lower()} {value.lower()} and model.compile is blocks")


def test_another_compiler_is_refused():
    assert "dynamo_backend aot_eager and" in refusal(SETTINGS, DYNAMO_BACKEND="AOT_EAGER")


@pytest.mark.parametrize("engine", ["DEEPSPEED", "FSDP", "MEGATRON_LM", "PARALLELISM_CONFIG"])
def test_engines_that_chorus_does_not_use_are_refused(engine):
    assert "which Chorus does not: switch it off" in refusal({}, **{f"USE_{engine}": "true"})


def test_use_cpu_is_refused_only_where_there_is_a_gpu():
    env = SILENT | {"ACCELERATE_USE_CPU": "True"}
    check_accelerate(config_from_values({}), False, env)
    with pytest.raises(ConfigError, match="use_cpu"):
        check_accelerate(config_from_values({}), True, env)


def test_one_rank_of_each_machine_says_it_before_anything_is_loaded(tmp_path):
    save_config(config_from_values({"workspace_dir": str(tmp_path / "run")}), tmp_path / "run.yaml")
    ranks = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    env = {**os.environ, **SILENT, **ranks, "ACCELERATE_MIXED_PRECISION": "bf16"}
    processes = [
        subprocess.Popen(
            [sys.executable, str(ROOT / "scripts" / "train.py"), f"--config={tmp_path / 'run.yaml'}"],
            env={**env, "RANK": rank, "LOCAL_RANK": rank},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in "01"
    ]
    first, second = (process.communicate(timeout=60)[1] for process in processes)
    assert [process.returncode for process in processes] == [2, 2]
    assert first.startswith("accelerate was told mixed_precision bf16 and model.mixed_precision is no")
    assert (first.count("\n"), second) == (1, "")
    assert not (tmp_path / "run").exists()
