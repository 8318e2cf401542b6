"""The questions of start_multi_gpu.py about GPUs and how they work together, as options of train.py."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from modules.config.errors import UserError
from modules.config.presets import GPU_COUNTS, fitting_memory, gpu_counts, has_variants, variant_name, why_not_offered
from modules.config.TrainConfig import TrainConfig
from modules.machine.backend import backend_warning, choose_backend
from modules.machine.can_start import StartFacts, blocking, device_problems
from modules.machine.devices import Gpu
from modules.machine.Machine import Machine
from modules.machine.memory_estimate import GIB
from modules.machine.run_shape import chosen_gpus
from modules.session.printing import print_line
from modules.session.Questions import Questions, read_choice
from scripts.starting.what_to_train import read_config

read_backend = read_choice("nccl", "gloo", "auto")


def has_one_device(machine: Machine) -> bool:
    return is_mac(machine) or len(machine.gpus) == 1


def is_mac(machine: Machine) -> bool:
    return machine.system == "darwin"


def most_ranks(machine: Machine) -> int:
    """Where all devices train."""
    return 1 if is_mac(machine) else len(machine.gpus) or min(2, machine.cores)


def describe(machine: Machine) -> str:
    if is_mac(machine):
        return "On macOS, training uses a single device."
    if not machine.gpus:
        return f"There is no GPU ({machine.no_gpu_reason}): processes on the CPU train instead ({machine.cores} cores)."
    if len(machine.gpus) == 1:
        return f"There is one GPU ({machine.gpus[0].name}): it trains alone."
    return "\n".join(f"GPU {gpu.index}: {gpu.name}{_memory(gpu)}" for gpu in machine.gpus)


def ask_devices(questions: Questions, arguments: list[str], machine: Machine) -> None:
    """Asks for the GPUs, and for how they work together where there is more than one."""
    config = read_config(arguments)

    def read(text: str) -> str:
        return read_gpus(text, arguments, machine)

    if has_one_device(machine) and "gpus" not in questions.given:
        questions.answers["gpus"] = "1"
    elif machine.gpus:
        questions.ask("gpus", "GPUs: how many, all, or which ones as 0,2", read, default_gpus(config))
    else:
        questions.ask("gpus", "Processes: how many", read, str(config.world_size or most_ranks(machine)))
    chosen = [*arguments, *device_arguments({"gpus": questions.answers["gpus"]}, arguments, machine)]
    if read_config(chosen).enable_multi_gpu:
        ask_way(questions, config, machine)


def ask_way(questions: Questions, config: TrainConfig, machine: Machine) -> None:
    """config: with the defaults."""

    def fitting(backend: str) -> str:
        """As a default: the settings and the last answer may be for another machine."""
        return "auto" if backend_warning(backend, *choose_backend(backend, bool(machine.gpus))) else backend

    if "backend" in questions.last:
        questions.last["backend"] = fitting(questions.last["backend"])
    questions.ask("backend", "Backend: nccl, gloo or auto", read_backend, fitting(config.distributed_backend))
    text = "Should each GPU load its own share of the images?"
    questions.ask_whether("data_loading", text, config.distributed_data_loading)
    if machine.system == "win32":
        return
    launcher = "torchrun" if config.use_torchrun else "spawn"
    questions.ask("launcher", "Launcher: spawn or torchrun", read_choice("spawn", "torchrun"), launcher)


def ask_variant(questions: Questions, arguments: list[str], machine: Machine) -> list[str]:
    """`arguments` with the preset that is made for the chosen GPUs, if that is wanted in place of the one for any."""
    name = questions.answers["settings"]
    if "settings" in questions.given or not has_variants(name) or "--resume" in arguments:  # a run keeps its settings
        return arguments
    chosen = arguments + device_arguments({"gpus": questions.answers["gpus"]}, arguments, machine)
    config = read_config(chosen)
    gpus = chosen_gpus(config, machine.gpus)
    sizes = [gpu.memory_bytes for gpu in gpus if gpu.memory_bytes]
    memory = fitting_memory(min(sizes)) if sizes else None
    if memory and (reason := why_not_offered(name, memory)):
        print_line(f"{name} for a GPU with {memory} GB: {reason}")
        memory = None
    if len(gpus) > 1 and len(gpus) not in GPU_COUNTS and config.max_steps and config.batch_size_mode == "per_device":
        steps = config.max_steps
        as_many = math.ceil(steps / len(gpus))
        print_line(
            f"max_steps {steps} is meant for one GPU: --set max_steps={as_many} is the same number of images on these."
        )
    variant = variant_name(name, memory, len(gpus) if len(gpus) in gpu_counts(name) else 1)
    if variant == name or not questions.ask_whether("variant", f"{variant} matches these GPUs: use it?", True):
        return arguments
    questions.answers["settings"] = variant
    return [f"--preset={variant}" if argument == f"--preset={name}" else argument for argument in arguments]


def device_arguments(answers: Mapping[str, str], arguments: list[str], machine: Machine) -> list[str]:
    """Options for which devices train and how; what has no answer is as the settings say.

    arguments: those that say what is trained. Raises UserError for devices that this machine does not have.
    """
    config = read_config(arguments)
    gpus = read_gpus(answers.get("gpus") or default_gpus(config), arguments, machine)
    chosen = rank_arguments(config, gpus, machine)
    if "--multi_gpu" not in chosen:
        return chosen
    if backend := answers.get("backend"):
        chosen.append(f"--backend={read_backend(backend)}")
    shares, launcher = answers.get("data_loading"), answers.get("launcher")
    if shares == "no":
        chosen.append("--single_gpu_data_loading")
    elif shares == "yes" and not config.distributed_data_loading:
        chosen.append("--set=distributed_data_loading=true")
    if launcher == "torchrun" and machine.system == "win32":
        raise UserError("--torchrun: it does not work on Windows, where Chorus starts the ranks itself; leave it out.")
    if launcher == "spawn":
        chosen.append("--no_torchrun")
    elif launcher == "torchrun" and not config.use_torchrun:
        chosen.append("--set=use_torchrun=true")
    return chosen


def rank_arguments(config: TrainConfig, gpus: str, machine: Machine) -> list[str]:
    """gpus: as `read_gpus` gives it. What the settings say of their number or numbers otherwise is taken back."""
    is_list = "," in gpus
    chosen = [f"--devices={gpus.rstrip(',')}"] if is_list else []
    chosen += ["--set=world_size=null"] if config.world_size and not gpus.isdecimal() else []
    chosen += ["--set=device_indexes=[]"] if config.device_indexes and not is_list else []
    num_ranks = len(gpus.rstrip(",").split(",")) if is_list else most_ranks(machine) if gpus == "all" else int(gpus)
    if num_ranks * config.num_nodes == 1:
        return [*chosen, "--set=enable_multi_gpu=false"]
    return ["--multi_gpu", *([f"--world_size={gpus}"] if gpus.isdecimal() else []), *chosen]


def default_gpus(config: TrainConfig) -> str:
    """What the settings say, as an answer."""
    if config.device_indexes:
        return ",".join(map(str, config.device_indexes)) + "," * (len(config.device_indexes) == 1)
    return str(config.world_size or "all")


def fitting_ranks(config: TrainConfig, machine: Machine) -> str:
    """As many as can share a step's samples evenly, where the settings do not say how many; as an answer."""
    if config.world_size or config.device_indexes:
        return default_gpus(config)
    return str(max(ranks for ranks in range(1, most_ranks(machine) + 1) if config.batch_size % ranks == 0))


def read_gpus(text: str, arguments: list[str], machine: Machine) -> str:
    """2 is how many, 0,2 are which ones, 2, is one of them. Raises UserError for what this machine does not have."""
    answer = re.sub(r"\s*,\s*", ",", text.strip()).lower()
    if not re.fullmatch("all|[1-9][0-9]*|[0-9]+,|[0-9]+(,[0-9]+)+,?", answer):
        raise UserError(f"{text!r}: write how many, such as 2, which ones, such as 0,2, or all.")
    if answer.count(",") > 1:
        answer = answer.rstrip(",")
    if is_mac(machine) and answer not in ("1", "all"):
        raise UserError(f"{text!r}: on macOS there is one device for the training; leave the number out.")
    paths = ["world_size", "device_indexes", *([] if "--resume" in arguments else ["batch_size"])]
    check_devices(arguments + rank_arguments(read_config(arguments), answer, machine), machine, *paths)
    return answer


def check_devices(arguments: list[str], machine: Machine, *paths: str) -> None:
    """Raises UserError for a problem of one of the settings at `paths` with the devices of this machine."""
    if refused := blocking(device_problems(read_config(arguments), StartFacts(machine)), *paths):
        raise UserError.of(refused[0])


def _memory(gpu: Gpu) -> str:
    return f", {gpu.memory_bytes / GIB:.0f} GiB" if gpu.memory_bytes else ""
