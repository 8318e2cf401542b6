"""Measures how fast the ranks exchange gradients and compares it with the nominal speed of their links."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from modules.config.installation import PACKAGE
from modules.machine.backend import Backend
from modules.machine.doctor.CheckResult import CheckResult
from modules.machine.doctor.child import ChildAnswer, run_child
from modules.machine.doctor.hardware import Hardware

START_SECONDS = 240  # for the ranks to start and join
GROUP_SECONDS = 25  # for each pair, and for all together: more than the probe's own limit
SLOW_SHARE = 0.3  # of the nominal speed; a healthy link reaches 60 to 95 %


def check_communication(
    hardware: Hardware, num_ranks: int, backend: Backend, run: Callable[..., ChildAnswer] = run_child
) -> CheckResult:
    """hardware: with only the GPUs that train. num_ranks: on this machine."""
    name = "communication"
    if num_ranks < 2:
        return CheckResult(name, "ok", "a single rank, so there is nothing to exchange")
    command = [sys.executable, "-m", f"{PACKAGE}.distributed.probe"]
    command += [f"--backend={backend}", f"--world-size={num_ranks}"]
    if hardware.gpus:
        command += [f"--devices={','.join(str(gpu.index) for gpu in hardware.gpus)}", "--seconds=0.5"]
    else:
        command += ["--megabytes=16", "--seconds=0.3"]
    limit = START_SECONDS + GROUP_SECONDS * (num_ranks * (num_ranks - 1) // 2 + 1)
    answer = run(command, limit)
    if answer.code is None:
        return CheckResult(name, "fails", f"the test did not end within {limit} s", _remedy(backend))
    if answer.code not in (0, 1):
        remedy = f"Correct the settings, or test the communication alone: `python -m {PACKAGE}.distributed.probe`."
        return CheckResult(name, "fails", answer.last_words, remedy)
    try:
        measured = json.loads(answer.output.splitlines()[-1])
    except (ValueError, IndexError):
        return CheckResult(name, "fails", f"the test broke off: {answer.last_words}", _remedy(backend))
    if measured["failed"]:
        text = measured["failed"]["text"].rstrip(".")
        return CheckResult(name, "fails", text, _remedy(measured["backend"]), values=measured)
    return _judge(measured, hardware)


def _judge(measured: Mapping[str, Any], hardware: Hardware) -> CheckResult:
    pairs = list(_pairs(measured, hardware))
    expected = [should for _, _, should in pairs]
    # a ring is as fast as its slowest link
    known = [should for should in expected if should is not None]
    of_all = min(known) if len(known) == len(expected) else None
    what = f"{len(measured['devices'])} {'GPUs' if hardware.gpus else 'CPU ranks'} by {measured['backend']}"
    text = f"{what}: {_figure(measured['all']['gb_per_s'], of_all)}"
    details = tuple(f"{label}: {_figure(speed, should)}" for label, speed, should in pairs) if len(pairs) > 1 else ()
    slow = [label for label, speed, should in pairs if should and speed < SLOW_SHARE * should]
    values = {**measured, "expected_gb_per_s": expected, "expected_all_gb_per_s": of_all}
    if not slow:
        return CheckResult("communication", "ok", text, details=details, values=values)
    remedy = (
        "Look at `nvidia-smi topo -m` and at the slots of the slow ones, switch ACS and the IOMMU off in the firmware, "
        "or choose other GPUs with device_indexes."
    )
    return CheckResult("communication", "warning", f"{text}; slow: {', '.join(slow)}", remedy, details, values)


def _pairs(measured: Mapping[str, Any], hardware: Hardware) -> Iterator[tuple[str, float, float | None]]:
    """(label, measured GB/s, nominal GB/s or None) of each pair."""
    places = {gpu.index: place for place, gpu in enumerate(hardware.gpus)}
    for pair in measured["pairs"]:
        a, b = (measured["devices"][rank] for rank in pair["ranks"])
        by_nccl = measured["backend"] == "nccl"  # gloo always goes through the CPU's memory
        should = hardware.speeds[places[a]][places[b]] if by_nccl else None
        first, second = (a, b) if hardware.gpus else pair["ranks"]
        yield f"{'GPUs' if hardware.gpus else 'ranks'} {first}-{second}", pair["gb_per_s"], should


def _figure(speed: float, should: float | None) -> str:
    if should is None:
        return f"{speed:.2f} GB/s"
    return f"{speed:.1f} of {should:.0f} GB/s ({100 * speed / should:.0f}%)"


def _remedy(backend: Backend) -> str:
    if backend == "gloo":
        return "See whether a firewall stops the ranks, and train with enable_multi_gpu off meanwhile."
    return (
        f"Set NCCL_DEBUG=INFO and run `python -m {PACKAGE}.distributed.probe` to see where it stops; "
        "NCCL_P2P_DISABLE=1 does without direct links, and distributed_backend gloo without NCCL."
    )
