"""Runs all checks of a machine, in the order in which they are reported."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from modules.config.errors import UserError
from modules.machine.backend import choose_backend
from modules.machine.devices import num_cores
from modules.machine.doctor.CheckResult import CheckResult
from modules.machine.doctor.communication import check_communication
from modules.machine.doctor.disk import check_disk
from modules.machine.doctor.hardware import (
    Hardware,
    check_driver,
    check_gpus,
    check_links,
    check_torch,
    read_hardware,
    read_torch,
)
from modules.machine.doctor.known_problems import check_known_problems, read_situation
from modules.machine.doctor.network import check_clock, check_loopback, check_port
from modules.machine.doctor.settings import check_run_settings
from modules.machine.doctor.system import check_machine
from modules.machine.interfaces import interface_towards
from modules.machine.run_shape import chosen_gpus, ranks_here

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig

T = TypeVar("T")
SECONDS = 30  # for queries of a driver, a disk or a name server, any of which may never return


def examine(
    config: TrainConfig,
    arguments: Sequence[str] = (),
    quick: bool = False,
    check_nodes: Callable[[], CheckResult] | None = None,
) -> Iterator[CheckResult]:
    """Run the checks one after the other and yield each result at once, as some take a minute.

    config: of the run to come. arguments: the arguments of scripts/train.py that yield it; without any, the settings
    themselves are not checked. quick: skip measuring the communication. check_nodes: checks the other machines, with
    which it has to meet; None: they are not checked.
    """
    yield check_machine()
    everything = within(SECONDS, "GPUs", read_hardware)
    if isinstance(everything, CheckResult):
        yield everything
        everything = Hardware(no_gpu_reason="the driver does not answer", cores=num_cores())
    hardware = everything.choose([gpu.index for gpu in chosen_gpus(config, everything.gpus)])
    answer = read_torch()
    facts = None if isinstance(answer, CheckResult) else answer
    yield answer if isinstance(answer, CheckResult) else check_torch(answer, everything, config.model.attention)
    yield from _check_devices(everything, hardware, facts)
    for setting in ("workspace_dir", "cache_dir"):
        yield within(SECONDS, setting, check_disk, setting, getattr(config, setting))
    yield from _check_meeting(config)
    if check_nodes and _num_nodes(config) > 1:
        yield check_nodes()
    ranks = _num_ranks(config, everything)
    known = within(SECONDS, "known traps", _read_known_problems, config, hardware, facts, ranks, len(everything.gpus))
    yield from [known] if isinstance(known, CheckResult) else known
    if arguments:
        yield check_run_settings(config, arguments, everything)
    if facts and not quick:
        backend, _ = choose_backend(_backend(config), bool(hardware.gpus), facts["has_nccl"])
        yield check_communication(hardware, ranks, backend)


def within(seconds: float, name: str, check: Callable[..., T], *arguments: Any) -> T | CheckResult:
    """The result of `check(*arguments)`; a failed result named `name` if that takes too long.

    It runs in a thread, which is then abandoned: a hanging driver call can't be interrupted.
    """
    answers: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(check(*arguments))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if answers:
        return answers[0]
    remedy = "Look for a lost GPU, disk or network share with `dmesg`, and restart the machine if it stays so."
    return CheckResult(name, "fails", f"there was no answer within {seconds:g} s", remedy)


def _check_devices(everything: Hardware, chosen: Hardware, facts: dict[str, Any] | None) -> Iterator[CheckResult]:
    if driver := check_driver(everything, facts):
        yield driver
    yield check_gpus(chosen)
    if len(chosen.gpus) > 1:
        yield check_links(chosen)


def _check_meeting(config: TrainConfig) -> Iterator[CheckResult]:
    """Check what the ranks of all machines need in order to find each other."""
    yield check_loopback()
    yield check_port(int(config.initial_port), _num_nodes(config), config.node_rank)
    yield check_clock()


def _read_known_problems(
    config: TrainConfig, hardware: Hardware, facts: dict[str, Any] | None, num_ranks: int, num_gpus: int
) -> list[CheckResult]:
    return check_known_problems(
        read_situation(
            hardware=hardware,
            facts=facts,
            num_gpus=num_gpus,
            num_ranks=num_ranks,
            num_nodes=_num_nodes(config),
            towards_master=interface_towards(config.master_addr) if sys.platform == "linux" else None,
            backend=_backend(config),
            folders=(config.workspace_dir, config.cache_dir),
        )
    )


def _num_ranks(config: TrainConfig, hardware: Hardware) -> int:
    """The number of ranks on this machine; 1 if the settings are invalid, which `check_run_settings` reports."""
    try:
        return ranks_here(config, hardware.gpus, hardware.cores)
    except UserError:
        return 1


def _num_nodes(config: TrainConfig) -> int:
    return config.num_nodes if config.enable_multi_gpu else 1


def _backend(config: TrainConfig) -> str:
    return config.distributed_backend if config.enable_multi_gpu else "auto"
