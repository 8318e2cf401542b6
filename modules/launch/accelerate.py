"""Options of `accelerate launch` that concern the training itself and that Chorus has settings for too.

accelerate passes them to its processes in environment variables, for its `Accelerator`. Chorus applies those that it
has a setting for, unless the user has set it otherwise, and refuses those that it would have to ignore. (Names and
values: accelerate 1.15, utils/launch.py.) --gradient_accumulation_steps is passed on only with DeepSpeed, so that
one is read from accelerate's command line.
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
from modules.config.installation import shipped_file
from modules.distributed.environments import is_accelerate_launch

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig

Env = Mapping[str, str]

# features that Chorus has its own version of, or does not support
_NOT_USED = {
    "ACCELERATE_USE_DEEPSPEED": "DeepSpeed",
    "ACCELERATE_USE_FSDP": "FSDP",
    "ACCELERATE_USE_MEGATRON_LM": "Megatron-LM",
    "ACCELERATE_USE_PARALLELISM_CONFIG": "a parallelism_config",
    "ACCELERATE_CPU_AFFINITY": "CPU affinity",
}


@dataclass(frozen=True)
class _Choice:
    """An option of accelerate that corresponds to a setting of Chorus.

    name, told: the option and its value. neutral: the value that means the same as leaving the option out.
    setting, own: our setting and its value. ours: the value of our setting with the same effect; empty if none has.
    """

    name: str
    told: str
    neutral: str
    setting: str
    own: str
    ours: str


def apply_accelerate_options(
    config: TrainConfig, given: Collection[str], has_gpu: bool, env: Env = os.environ, arguments: Sequence[str] = ()
) -> tuple[TrainConfig, list[str]]:
    """`config` with accelerate's options applied, and a line for each setting that this changes.

    given: paths of the settings that the user has set (not those of a preset), which accelerate must not contradict.
    arguments: of accelerate's command line, as `launcher_arguments` finds them.
    Raises ConfigError, one sentence, for a contradiction and for an option that Chorus has no setting for.
    """
    for variable, what in _NOT_USED.items():
        if _is_true(env, variable):
            raise ConfigError(
                f"accelerate was told to use {what}, which Chorus does not: turn it off (accelerate config), as "
                f"{shipped_file('accelerate_config.yaml')} has it."
            )
    if has_gpu and _is_true(env, "ACCELERATE_USE_CPU"):
        raise ConfigError(
            "accelerate was given use_cpu, but Chorus trains on the GPUs that it sees: set CUDA_VISIBLE_DEVICES to an "
            "empty text as well, or use_cpu to false."
        )
    taken: dict[str, str] = {}
    for choice in _choices(config, env, arguments):
        if choice.told in ("", choice.neutral) or choice.ours == choice.own:
            continue
        if choice.ours and choice.setting not in given:
            taken[choice.setting] = choice.ours
            continue
        alike = f"set {choice.setting} to {choice.ours} as well, or " if choice.ours else ""
        apart = f"set accelerate's to {choice.neutral}" if choice.neutral else "leave accelerate's out"
        raise ConfigError(
            f"accelerate was given {choice.name} {choice.told}, but Chorus uses {choice.setting} {choice.own}: "
            f"{alike}{apart}."
        )
    if not taken:
        return config, []
    overrides = [f"{path}={value}" for path, value in taken.items()]
    lines = [f"{path} is {value}, as given to accelerate." for path, value in taken.items()]
    return config_from_values(apply_overrides(to_values(config), overrides), source="accelerate"), lines


def accelerate_option(name: str, env: Env = os.environ, arguments: Sequence[str] | None = None) -> str:
    """What `accelerate launch` was given as its option --`name`, or in its file, in lower case.

        use_amp = accelerate_option("mixed_precision") in ("bf16", "fp16")

    Empty if it was given nothing, and in a process that accelerate has not started.

    arguments: of accelerate's command line; by default those of the parent process.
    """
    if not is_accelerate_launch(env):
        return ""
    return _told(env, name.upper()) or _option(launcher_arguments() if arguments is None else arguments, name)


def launcher_arguments(proc: Path = Path("/proc")) -> list[str]:
    """The arguments of the parent process, without those that it has passed on to this one.

    Empty where they cannot be read: they can on Linux only.
    """
    try:
        arguments = os.fsdecode((proc / str(os.getppid()) / "cmdline").read_bytes()).split("\0")[:-1]
    except OSError:
        return []
    return arguments[: len(arguments) - len(sys.argv[1:])]


def _choices(config: TrainConfig, env: Env, arguments: Sequence[str]) -> Iterator[_Choice]:
    told = _told(env, "MIXED_PRECISION")
    ours = told if told in ("bf16", "fp16") else ""
    yield _Choice("mixed_precision", told, "no", "model.mixed_precision", config.model.mixed_precision, ours)

    name = "gradient_accumulation_steps"
    told = _told(env, name.upper()) or _option(arguments, name)
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


def _option(arguments: Sequence[str], name: str) -> str:
    """The value of --name, spelled with underscores or hyphens as accelerate allows; "" if it was not given."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument(f"--{name}", f"--{name.replace('_', '-')}", dest="value", default="")
    return parser.parse_known_args(arguments)[0].value


def _is_true(env: Env, variable: str) -> bool:
    return env.get(variable, "").lower() in ("1", "true", "yes", "on")
