from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from modules.config.describe import settings_by_path
from modules.config.errors import ConfigError
from modules.config.files import config_from_values, save_config
from modules.launch.accelerate import accelerate_option, apply_accelerate_options, launcher_arguments
from tests.support.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
# what accelerate 1.15 sets whatever its options are
SILENT = {
    "ACCELERATE_MIXED_PRECISION": "no",
    "ACCELERATE_DYNAMO_BACKEND": "NO",
    "ACCELERATE_DYNAMO_MODE": "default",
    "ACCELERATE_DYNAMO_USE_FULLGRAPH": "False",
    "ACCELERATE_DYNAMO_USE_DYNAMIC": "False",
    "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION": "False",
}
LISTEN = """
from modules.launch.accelerate import launcher_arguments
words = launcher_arguments()
print(words[words.index("--gradient_accumulation_steps"):-1])
"""
ALL = settings_by_path()
SETTINGS = {"model": {"mixed_precision": "bf16", "compile": "blocks"}, "gradient_accumulation_steps": 4}


def refusal(values: dict, **variables: str) -> str:
    told = {f"ACCELERATE_{name}": value for name, value in variables.items()}
    with pytest.raises(ConfigError) as caught:
        apply_accelerate_options(config_from_values(values), ALL, False, SILENT | told)
    return str(caught.value)


@pytest.mark.parametrize("values", [{}, SETTINGS])
def test_what_accelerate_was_not_told_is_for_the_settings_to_say(values):
    config = config_from_values(values)
    assert (
        apply_accelerate_options(config, (), True, SILENT)
        == apply_accelerate_options(config, (), True, {})
        == (config, [])
    )


def test_what_both_say_alike_is_fine():
    told = {
        "ACCELERATE_MIXED_PRECISION": "bf16",
        "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4",
        "ACCELERATE_DYNAMO_BACKEND": "INDUCTOR",
    }
    config = config_from_values(SETTINGS)
    assert apply_accelerate_options(config, ALL, True, SILENT | told) == (config, [])


def test_what_nobody_has_set_is_as_accelerate_was_told_and_said():
    told = {
        "ACCELERATE_MIXED_PRECISION": "fp16",
        "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "8",
        "ACCELERATE_DYNAMO_BACKEND": "INDUCTOR",
    }
    config, lines = apply_accelerate_options(
        config_from_values(SETTINGS), {"model.compile", "batch_size"}, True, SILENT | told
    )
    assert (config.model.mixed_precision, config.gradient_accumulation_steps) == ("fp16", 8)
    assert lines == [
        "model.mixed_precision is fp16, as given to accelerate.",
        "gradient_accumulation_steps is 8, as given to accelerate.",
    ]


@pytest.mark.parametrize("told", [{"MIXED_PRECISION": "fp8"}, {"DYNAMO_BACKEND": "AOT_EAGER"}])
def test_what_chorus_has_no_setting_for_is_refused_though_nobody_has_set_it(told):
    env = SILENT | {f"ACCELERATE_{name}": value for name, value in told.items()}
    with pytest.raises(ConfigError, match="set accelerate's to no"):
        apply_accelerate_options(config_from_values({}), (), True, env)


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        (
            {"MIXED_PRECISION": "bf16"},
            "accelerate was given mixed_precision bf16, but Chorus uses model.mixed_precision no: set "
            "model.mixed_precision to bf16 as well, or set accelerate's to no.",
        ),
        (
            {"MIXED_PRECISION": "fp8"},
            "accelerate was given mixed_precision fp8, but Chorus uses model.mixed_precision no: set "
            "accelerate's to no.",
        ),
        (
            {"GRADIENT_ACCUMULATION_STEPS": "8"},
            "accelerate was given gradient_accumulation_steps 8, but Chorus uses gradient_accumulation_steps 1: "
            "set gradient_accumulation_steps to 8 as well, or leave accelerate's out.",
        ),
        (
            {"DYNAMO_BACKEND": "INDUCTOR"},
            "accelerate was given dynamo_backend inductor, but Chorus uses model.compile off: set "
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
    assert text.startswith(f"accelerate was given dynamo_{name.lower()} {value.lower()}, but Chorus uses model.compile")


def test_another_compiler_is_refused():
    assert "dynamo_backend aot_eager, but" in refusal(SETTINGS, DYNAMO_BACKEND="AOT_EAGER")


@pytest.mark.parametrize("engine", ["DEEPSPEED", "FSDP", "MEGATRON_LM", "PARALLELISM_CONFIG"])
def test_engines_that_chorus_does_not_use_are_refused(engine):
    assert "which Chorus does not: turn it off" in refusal({}, **{f"USE_{engine}": "true"})


def test_use_cpu_is_refused_only_where_there_is_a_gpu():
    env = SILENT | {"ACCELERATE_USE_CPU": "True"}
    apply_accelerate_options(config_from_values({}), ALL, False, env)
    with pytest.raises(ConfigError, match="use_cpu"):
        apply_accelerate_options(config_from_values({}), ALL, True, env)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["accelerate", "launch", "--gradient_accumulation_steps", "8", "train.py"], "8"),
        (["python", "-m", "accelerate.commands.launch", "--gradient-accumulation-steps=2", "train.py"], "2"),
        (["accelerate", "launch", "--gradient_accumulation_steps", "8", "--gradient_accumulation_steps", "3"], "3"),
    ],
)
def test_accumulation_that_accelerate_keeps_to_itself_is_read_from_its_words(words, told):
    with pytest.raises(ConfigError, match=f"accelerate was given gradient_accumulation_steps {told}, but"):
        apply_accelerate_options(config_from_values(SETTINGS), ALL, False, SILENT, words)
    config = config_from_values({"gradient_accumulation_steps": int(told)})
    assert apply_accelerate_options(config, ALL, False, SILENT, words) == (config, [])


def test_a_program_of_ones_own_can_read_the_options_of_accelerate():
    env = SILENT | {"ACCELERATE_MIXED_PRECISION": "BF16"}
    arguments = ["accelerate", "launch", "--gradient-accumulation-steps=2", "train.py"]
    assert accelerate_option("mixed_precision", env, arguments) == "bf16"
    assert accelerate_option("gradient_accumulation_steps", env, arguments) == "2"
    assert accelerate_option("gradient_accumulation_steps", env, []) == ""
    assert accelerate_option("gradient_accumulation_steps", {}, arguments) == ""  # not started by it


def test_the_words_of_the_launcher_end_where_those_of_the_script_begin(tmp_path, monkeypatch):
    words = ["accelerate", "launch", "--num_processes", "2", "train.py", "--config=a b.yaml", "--resume"]
    (tmp_path / str(os.getppid())).mkdir()
    (tmp_path / str(os.getppid()) / "cmdline").write_bytes(b"".join(f"{word}\0".encode() for word in words))
    monkeypatch.setattr(sys, "argv", ["train.py", "--config=a b.yaml", "--resume"])
    assert launcher_arguments(tmp_path) == words[:5]
    assert launcher_arguments(tmp_path / "nothing") == []


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the words of another process are read on Linux only")
def test_accelerate_itself_is_heard(tmp_path):
    """With one process; with several, the ranks have the same parent."""
    pytest.importorskip("accelerate")
    script = tmp_path / "script.py"
    script.write_text(f"import sys; sys.path.insert(0, {str(ROOT)!r})\n" + LISTEN)
    told = ["--cpu", "--num_processes=1", "--gradient_accumulation_steps", "4"]
    command = [sys.executable, "-m", "accelerate.commands.launch", *told, str(script)]
    command += ["--gradient_accumulation_steps=9"]  # an argument of the script
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert done.stdout == "['--gradient_accumulation_steps', '4']\n", done.stderr


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
    first, second = (process.communicate(timeout=PATIENCE_SECONDS)[1] for process in processes)
    assert [process.returncode for process in processes] == [2, 2]
    assert first.startswith("accelerate was given mixed_precision bf16, but Chorus uses model.mixed_precision no")
    assert (first.count("\n"), second) == (1, "")
    assert not (tmp_path / "run").exists()
