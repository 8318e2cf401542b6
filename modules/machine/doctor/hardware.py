"""Checks the GPUs, their driver and links, and whether PyTorch can use them."""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from modules.config.counted import counted
from modules.config.installation import INSTALL_TORCH_BUILD, IS_INSTALLED, PACKAGE, SET_UP_AGAIN
from modules.machine.devices import (
    Gpu,
    GpuUsage,
    Link,
    driver_versions,
    link_matrix,
    list_gpus,
    no_gpu_reason,
    num_cores,
    read_usage,
)
from modules.machine.doctor.CheckResult import CheckResult, State
from modules.machine.doctor.child import ChildAnswer, run_child
from modules.machine.link_speeds import link_speeds

GIB = 2**30
USED_SHARE = 0.1  # of the memory may be in use by a desktop and the driver
TORCH_SECONDS = 180  # to import torch from a slow disk and to create a CUDA context on each GPU

# Major version of CUDA that torch was built for -> the oldest driver that supports it.
# Source: https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html, table 1
OLDEST_DRIVER = {11: 450, 12: 525, 13: 580}

SIGNS = {"nvlink": "NVLink", "pcie": "PCIe", "none": "-", "unknown": "?"}


@dataclass(frozen=True)
class Hardware:
    """The facts from the driver. links, speeds: between all `gpus`, from `link_matrix` and `link_speeds`.

    driver, driver_cuda: its version and the newest CUDA it supports; None without a driver. no_gpu_reason: "" if there
    is a GPU.
    """

    gpus: tuple[Gpu, ...] = ()
    usage: tuple[GpuUsage, ...] = ()
    links: Sequence[Sequence[Link | None]] = ()
    speeds: Sequence[Sequence[float | None]] = ()
    driver: str | None = None
    driver_cuda: tuple[int, int] | None = None
    no_gpu_reason: str = ""
    cores: int = 1

    def choose(self, indexes: Collection[int]) -> Hardware:
        """A copy with only the given GPUs."""
        places = [place for place, gpu in enumerate(self.gpus) if gpu.index in indexes]
        return replace(
            self,
            gpus=tuple(self.gpus[place] for place in places),
            usage=tuple(self.usage[place] for place in places),
            links=[[self.links[a][b] for b in places] for a in places],
            speeds=[[self.speeds[a][b] for b in places] for a in places],
        )


def read_hardware(env: Mapping[str, str] = os.environ) -> Hardware:
    """Query the driver, which may take seconds, or forever if a GPU is lost."""
    gpus = list_gpus(env)
    links = link_matrix(gpus)
    driver, cuda = driver_versions() or (None, None)
    return Hardware(
        gpus=tuple(gpus),
        usage=tuple(read_usage(gpus)),
        links=links,
        speeds=link_speeds(gpus, links),
        driver=driver,
        driver_cuda=cuda,
        no_gpu_reason="" if gpus else no_gpu_reason(env),
        cores=num_cores(),
    )


def check_gpus(hardware: Hardware) -> CheckResult:
    if not hardware.gpus:
        remedy = "If there is an NVIDIA GPU, install its driver and see that `nvidia-smi` lists it."
        text = f"none: {hardware.no_gpu_reason}; training runs on the CPU's {counted(hardware.cores, 'core')}, slowly"
        return CheckResult("GPUs", "warning", text, remedy, values={"gpus": [], "cores": hardware.cores})
    details = tuple(map(_gpu_line, hardware.gpus, hardware.usage))
    values = {"gpus": [asdict(gpu) for gpu in hardware.gpus]}
    counts = Counter(gpu.name for gpu in hardware.gpus)
    troubles = [", ".join(f"{count} x {name}" for name, count in counts.items())]
    remedies = []
    if crowded := [gpu.index for gpu, usage in zip(hardware.gpus, hardware.usage, strict=True) if _is_used(gpu, usage)]:
        troubles.append(f"in use: GPU {_spoken(crowded)}")
        remedies.append("End what uses them, or choose others with device_indexes.")
    if len(counts) > 1:
        troubles.append("the slowest sets the pace of all")
        remedies.append("Choose GPUs of one kind with device_indexes.")
    state: State = "warning" if remedies else "ok"
    return CheckResult("GPUs", state, "; ".join(troubles), " ".join(remedies), details, values)


def check_links(hardware: Hardware) -> CheckResult:
    """Report how two or more GPUs access each other's memory, as a matrix."""
    matrix = hardware.links
    pairs = list(itertools.combinations(range(len(hardware.gpus)), 2))
    counts = {kind: sum(matrix[a][b] == kind for a, b in pairs) for kind in SIGNS}
    values = {"links": [list(row) for row in matrix], "gb_per_s": [list(row) for row in hardware.speeds]}
    words = {"nvlink": "by NVLink", "pcie": "directly over PCIe", "none": "without a direct link", "unknown": "unknown"}
    text = f"of {counted(len(pairs), 'pair')} " + ", ".join(
        f"{counts[kind]} {words[kind]}" for kind in SIGNS if counts[kind]
    )
    state: State = "warning" if counts["none"] else "ok"
    remedy = ""
    if counts["none"]:
        remedy = (
            "Gradients of these pairs go through the CPU's memory: choose linked GPUs with device_indexes, or set "
            "gradient_reduce_precision to bf16 to halve the traffic."
        )
    return CheckResult("links", state, text, remedy, tuple(_matrix_lines(hardware)), values)


def check_driver(hardware: Hardware, facts: Mapping[str, Any] | None) -> CheckResult | None:
    """Compare the driver with the CUDA version torch was built for; None without a driver. facts: of torch_facts."""
    if hardware.driver is None or hardware.driver_cuda is None:
        return None
    newest = ".".join(map(str, hardware.driver_cuda))
    text = f"{hardware.driver}, for CUDA up to {newest}"
    values = {"driver": hardware.driver, "cuda": newest}
    built_for = facts and facts["cuda"]
    if not built_for or int(built_for.split(".")[0]) <= hardware.driver_cuda[0]:
        return CheckResult("driver", "ok", text, values=values)
    oldest = OLDEST_DRIVER.get(int(built_for.split(".")[0]))
    wanted = f"{oldest} or newer" if oldest else f"one for CUDA {built_for}"
    remedy = f"Install driver {wanted}, or a build of PyTorch for CUDA {newest} {INSTALL_TORCH_BUILD}."
    return CheckResult("driver", "fails", f"{text}; this PyTorch was built for CUDA {built_for}", remedy, values=values)


def read_torch(run: Callable[..., ChildAnswer] = run_child) -> dict[str, Any] | CheckResult:
    """The output of modules.distributed.torch_facts; a failed result if torch can't be used at all."""
    answer = run([sys.executable, "-m", f"{PACKAGE}.distributed.torch_facts"], TORCH_SECONDS)
    if answer.code is None:
        remedy = "See whether `nvidia-smi` answers and restart the machine if it does not; else look at a slow disk."
        return CheckResult("PyTorch", "fails", f"it did not answer within {TORCH_SECONDS} s", remedy)
    try:
        facts = json.loads(answer.output.splitlines()[-1]) if answer.code == 0 else None
    except (ValueError, IndexError):
        facts = None
    if facts is None:
        remedy = f"PyTorch has to be installed again: {SET_UP_AGAIN}"
        remedy += "." if IS_INSTALLED else "; if it says that all is ready, delete .venv before."
        return CheckResult("PyTorch", "fails", f"it can't be loaded: {answer.last_words}", remedy)
    return facts


def check_torch(facts: Mapping[str, Any], hardware: Hardware, attention: str = "auto") -> CheckResult:
    """Check that PyTorch can compute on the GPUs that the driver lists. attention: `model.attention` of the run."""
    version, num_gpus = facts["version"], len(hardware.gpus)
    broken = [(index, device["error"]) for index, device in enumerate(facts["devices"]) if device["error"]]
    remedy = ""
    if num_gpus and facts["cuda"] is None:
        text = "is a build without CUDA and can't use the GPUs"
        remedy = f"Install a CUDA build {INSTALL_TORCH_BUILD}."
    elif num_gpus and facts["reason"]:
        text = f"can't use CUDA: {facts['reason']}"
        remedy = "Install a driver that fits, and restart; with NVSwitch, see that nvidia-fabricmanager runs."
    elif broken:
        text = f"can't compute on GPU {_spoken([index for index, _ in broken])}: {broken[0][1]}"
        remedy = "End what fills its memory, install a PyTorch for this chip, or leave it out with device_indexes."
    elif len(facts["devices"]) < num_gpus:
        text = f"sees {len(facts['devices'])} of {num_gpus} GPUs"
        remedy = "Look at CUDA_VISIBLE_DEVICES, and at `nvidia-smi` for a GPU in another compute mode or in MIG mode."
    elif not facts["has_gloo"]:
        text = "was built without gloo, which ranks need to meet"
        remedy = f"Install PyTorch from PyPI: {SET_UP_AGAIN}."
    else:
        where = f"all {num_gpus} GPUs" if num_gpus > 1 else "the GPU" if num_gpus else "the CPU"
        versions = {"NCCL": facts["nccl"], "cuDNN": facts["cudnn"]}
        text = f"computes on {where}" + "".join(f", {name} {number}" for name, number in versions.items() if number)
    details = tuple(_capability_line(index, device, attention) for index, device in enumerate(facts["devices"]))
    return CheckResult("PyTorch", "fails" if remedy else "ok", f"{version} {text}", remedy, details, dict(facts))


def _capability_line(index: int, device: Mapping[str, str], attention: str) -> str:
    line = f"GPU {index}: compute capability {device['capability']}"
    if device["attention"] == "cudnn":
        state = "stays on" if attention == "cudnn" else "is off"
        return f"{line}; PyTorch chooses cuDNN's attention, which {state} in training"
    return line


def _gpu_line(gpu: Gpu, usage: GpuUsage) -> str:
    memory, used = gpu.memory_bytes, usage.memory_used_bytes
    free = ""
    if memory is not None and used is not None:
        free = f", {(memory - used) / GIB:.1f} of {memory / GIB:.1f} GiB free"
    by = ", ".join(f"{process.name or 'process'} {process.pid}" for process in usage.processes[:3])
    return f"GPU {gpu.index}: {gpu.name}{free}{f', used by {by}' if by else ''}"


def _is_used(gpu: Gpu, usage: GpuUsage) -> bool:
    return gpu.memory_bytes is not None and (usage.memory_used_bytes or 0) > USED_SHARE * gpu.memory_bytes


def _matrix_lines(hardware: Hardware) -> list[str]:
    indexes = [str(gpu.index) for gpu in hardware.gpus]
    width = max(len(sign) for sign in SIGNS.values()) + 1
    lines = ["GPU ".ljust(6) + "".join(index.ljust(width) for index in indexes)]
    for index, row in zip(indexes, hardware.links, strict=True):
        lines.append(index.ljust(6) + "".join(("." if kind is None else SIGNS[kind]).ljust(width) for kind in row))
    return [line.rstrip() for line in lines]


def _spoken(values: Sequence[int]) -> str:
    return ", ".join(map(str, values))
