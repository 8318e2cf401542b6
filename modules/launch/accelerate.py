"""What `accelerate launch` was told about the training itself, which Chorus's own settings decide too.

It hands this to the processes it starts by environment variables, for accelerate's `Accelerator`. Chorus takes over
what it has a setting for and the person has not set otherwise, and refuses what it would ignore. (Names and values:
accelerate 1.15, utils/launch.py.) One option, --gradient_accumulation_steps, it hands on with DeepSpeed alone: its
words have that.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from modules.config.errors import ConfigError
from modules.config.files import apply_overrides, config_from_values, to_values

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig

Env = Mapping[str, str]

# what Chorus has of its own, or goes without
_NOT_USED = {
    "ACCELERATE_USE_DEEPSPEED": "DeepSpeed",
    "ACCELERATE_USE_FSDP": "FSDP",
    "ACCELERATE_USE_MEGATRON_LM": "Megatron-LM",
    "ACCELERATE_USE_PARALLELISM_CONFIG": "a parallelism_config",
    "ACCELERATE_CPU_AFFINITY": "CPU affinity",
}


@dataclass(frozen=True)
class _Choice:
    """Something that a setting of Chorus decides too.

    name: accelerate's for it. told: what accelerate was told. neutral: what tells it nothing, beside no word at all.
    setting, own: ours, and its value. ours: what to set it to for the same; empty where nothing is.
    """

    name: str
    told: str
    neutral: str
    setting: str
    own: str
    ours: str


def heed_accelerate(
    config: TrainConfig, given: Collection[str], has_gpu: bool, env: Env = os.environ, words: Sequence[str] = ()
) -> tuple[TrainConfig, list[str]]:
    """`config` with what accelerate was told, and a line for each setting that changes by it.

    given: paths of the settings that the person has set, which accelerate must not contradict; a preset's are none of
    them. words: of accelerate's command, as `launcher_words` finds them.
    Raises ConfigError, one sentence, for a contradiction, and for what Chorus has no setting for.
    """
    for variable, what in _NOT_USED.items():
        if _is_true(env, variable):
            raise ConfigError(
                f"accelerate was told to use {what}, which Chorus does not: switch it off (accelerate config), as "
                "resources/accelerate_config.yaml has it."
            )
    if has_gpu and _is_true(env, "ACCELERATE_USE_CPU"):
        raise ConfigError(
            "accelerate was told use_cpu, and Chorus trains on the GPUs that it sees: set CUDA_VISIBLE_DEVICES to an "
            "empty text as well, or use_cpu to false."
        )
    taken: dict[str, str] = {}
    for choice in _choices(config, env, words):
        if choice.told in ("", choice.neutral) or choice.ours == choice.own:
            continue
        if choice.ours and choice.setting not in given:
            taken[choice.setting] = choice.ours
            continue
        alike = f"set {choice.setting} to {choice.ours} as well, or " if choice.ours else ""
        apart = f"set accelerate's to {choice.neutral}" if choice.neutral else "leave accelerate's out"
        raise ConfigError(
            f"accelerate was told {choice.name} {choice.told} and {choice.setting} is {choice.own}, which Chorus goes "
            f"by: {alike}{apart}."
        )
    if not taken:
        return config, []
    overrides = [f"{path}={value}" for path, value in taken.items()]
    lines = [f"{path} is {value}, as accelerate was told." for path, value in taken.items()]
    return config_from_values(apply_overrides(to_values(config), overrides), source="accelerate"), lines


def launcher_words(proc: Path = Path("/proc")) -> list[str]:
    """What the program that has started this process was called with, but for what it has handed on to this one.

    [] where that can't be told: Linux only.
    """
    try:
        words = os.fsdecode((proc / str(os.getppid()) / "cmdline").read_bytes()).split("\0")[:-1]
    except OSError:
        return []
    return words[: len(words) - len(sys.argv[1:])]


def _choices(config: TrainConfig, env: Env, words: Sequence[str]) -> Iterator[_Choice]:
    told = _told(env, "MIXED_PRECISION")
    ours = told if told in ("bf16", "fp16") else ""
    yield _Choice("mixed_precision", told, "no", "model.mixed_precision", config.model.mixed_precision, ours)

    name = "gradient_accumulation_steps"
    told = _told(env, name.upper()) or _option(words, name)
    yield _Choice(name, told, "", name, str(config.gradient_accumulation_steps), told if told.isdecimal() else "")

    backend = _told(env, "DYNAMO_BACKEND")
    ours = "blocks" if backend == "inductor" else ""
    yield _Choice("dynamo_backend", backend, "no", "model.compile", config.model.compile, ours)
    if backend not in ("", "no"):
        for part, neutral in {"mode": "default", "use_fullgraph": "false", "use_dynamic": "false"}.items():
            told = _told(env, f"DYNAMO_{part.upper()}")
            yield _Choice(f"dynamo_{part}", told, neutral, "model.compile", config.model.compile, "")


def _told(env: Env, name: str) -> str:
    return env.get(f"ACCELERATE_{name}", "").lower()


def _option(words: Sequence[str], name: str) -> str:
    """What --name was given, with underscores or hyphens, as accelerate reads it; "" without it."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument(f"--{name}", f"--{name.replace('_', '-')}", dest="value", default="")
    return parser.parse_known_args(words)[0].value


def _is_true(env: Env, variable: str) -> bool:
    return env.get(variable, "").lower() in ("1", "true", "yes", "on")
