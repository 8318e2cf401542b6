"""The GPUs and cores that a run can use, queried with NVML: no torch, no CUDA context, no GPU memory used."""

from __future__ import annotations

import contextlib
import glob
import itertools
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import PureWindowsPath
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from modules.config.counted import counted
from modules.config.errors import UserError
from modules.machine.memory_estimate import GIB

if TYPE_CHECKING:
    import torch

    from modules.config.TrainConfig import TrainConfig

T = TypeVar("T")
Link = Literal["nvlink", "pcie", "none", "unknown"]

GPU_TYPE = "cuda"  # torch's name for them
HIDES_ALL = ("", "-1")  # values of CUDA_VISIBLE_DEVICES
NO_DRIVER = "no NVIDIA driver is installed"
DEVICE_FILES = "/dev/nvidia[0-9]*"  # exist if Linux's driver has GPUs; a container has those that it may use

SMALL_SHARE = 0.5  # of the largest GPU's memory: a GPU with less is more likely there for a display than for training

# nvmlGpuP2PCapsIndex_t. pynvml's NVML_P2P_CAPS_INDEX_READ is a tuple, because of a stray comma, and can't be used.
_P2P_READ, _P2P_NVLINK = 0, 2


@dataclass(frozen=True)
class Gpu:
    """A GPU of this machine.

    index: its CUDA index in this process, as used in `device_indexes`. nvml_index: its index in nvidia-smi.
    memory_bytes: total memory; None if the driver does not report it, as on chips that share the CPU's memory.
    """

    index: int
    name: str
    uuid: str
    memory_bytes: int | None
    nvml_index: int


@dataclass(frozen=True)
class GpuProcess:
    """A process that uses a GPU. name: its executable, empty if unknown. pid: in the host's namespace.

    memory_bytes: used on this GPU; None if the driver does not report it, as on Windows.
    """

    pid: int
    name: str
    memory_bytes: int | None


@dataclass(frozen=True)
class GpuUsage:
    """The current use of a GPU; a figure is None if the driver does not report it.

    utilisation: percentage of time in which a kernel was running. processes: by memory, largest first.
    """

    memory_used_bytes: int | None
    utilisation: int | None
    temperature_celsius: int | None
    processes: tuple[GpuProcess, ...] = ()


UNKNOWN_USAGE = GpuUsage(None, None, None)


def is_gpu(device: torch.device) -> bool:
    """Whether its work runs in the background: streams, events, pinned memory and a cache of free memory matter."""
    return device.type == GPU_TYPE


def list_gpus(env: Mapping[str, str] = os.environ) -> list[Gpu]:
    """The GPUs that this process may use, in CUDA's order.

    CUDA_VISIBLE_DEVICES is interpreted as torch and CUDA do: numbers or UUIDs up to the first that does not exist,
    none if one is repeated. Of GPUs that are divided into MIG instances, CUDA gives a process the first instance, and
    then no other GPU; one that has no instance is not usable.
    Source: https://docs.nvidia.com/datacenter/tesla/mig-user-guide/mig-device-names.html#cuda-device-enumeration
    The order is that of the PCI bus, as in nvidia-smi. CUDA's default (CUDA_DEVICE_ORDER=FASTEST_FIRST) puts the
    fastest first by an undocumented rule. It makes a difference only with GPUs of different kinds; ranks then need
    CUDA_DEVICE_ORDER=PCI_BUS_ID for indexes to match this list, and Chorus sets that for the ranks it spawns.
    A GPU that the driver lists but can't open, because it is lost or access is denied, is left out.
    Returns an empty list without a GPU, a driver or its NVML library.
    """
    visible = env.get("CUDA_VISIBLE_DEVICES")
    with open_nvml() as nvml:
        if nvml is None:
            return []
        if visible is not None and visible.startswith("MIG-"):
            return _list_mig_instance(nvml, visible.split(",")[0])
        gpus = _list_all(nvml)
        chosen = range(len(gpus)) if visible is None else _visible_indexes(visible, [gpu.uuid for gpu in gpus])
        usable = _without_divided(nvml, [gpus[place] for place in chosen])
    return [replace(gpu, index=index) for index, gpu in enumerate(usable)]


def no_gpu_reason(env: Mapping[str, str] = os.environ) -> str:
    """Why `list_gpus` is empty, as a clause without a full stop."""
    import pynvml

    with open_nvml() as nvml:
        if nvml is None:
            return _no_nvml_reason(pynvml)
        num_hidden = len(_list_all(nvml))
        num_listed = ask_nvml(nvml, nvml.nvmlDeviceGetCount) or 0
    if num_hidden:
        return f"CUDA_VISIBLE_DEVICES is {env.get('CUDA_VISIBLE_DEVICES', '')!r} and hides the {num_hidden} that exist"
    return f"the driver lists {num_listed} but opens none" if num_listed else "the NVIDIA driver finds none"


def driver_fault(env: Mapping[str, str] = os.environ) -> str:
    """Why an installed driver does not work, as after an update without a reboot; a clause without a full stop.

    Empty without a driver, if it works, and if CUDA_VISIBLE_DEVICES hides all GPUs on purpose.
    """
    import pynvml

    with open_nvml() as nvml:
        answers = nvml is not None
    if answers or env.get("CUDA_VISIBLE_DEVICES") in HIDES_ALL or not glob.glob(DEVICE_FILES):
        return ""
    reason = _no_nvml_reason(pynvml)
    return "" if reason == NO_DRIVER else reason


def read_usage(gpus: Sequence[Gpu]) -> list[GpuUsage]:
    """The current use of each GPU. Takes milliseconds, or a second if no process keeps the driver loaded."""
    with open_nvml() as nvml:
        return [UNKNOWN_USAGE if nvml is None else _usage(nvml, gpu) for gpu in gpus]


def link_between(a: Gpu, b: Gpu) -> Link:
    """How two GPUs access each other's memory: by NVLink, directly over PCIe, or not at all ("none").

    "unknown" if the driver does not report it: under WSL, for MIG instances, for a GPU that has been lost.
    """
    with open_nvml() as nvml:
        return "unknown" if nvml is None else _link(nvml, a, b)


def link_matrix(gpus: Sequence[Gpu]) -> list[list[Link | None]]:
    """`link_between` for all pairs, symmetric; None on the diagonal."""
    links: list[list[Link | None]] = [[None] * len(gpus) for _ in gpus]
    with open_nvml() as nvml:
        for a, b in itertools.combinations(range(len(gpus)), 2):
            links[a][b] = links[b][a] = "unknown" if nvml is None else _link(nvml, gpus[a], gpus[b])
    return links


def slow_links_warning(gpus: Sequence[Gpu]) -> str | None:
    """A warning if two of the GPUs that will train are known to have no direct link, else None.

    A GPU that is named twice, which several gloo ranks may share, counts once.
    """
    with open_nvml() as nvml:
        if nvml is None:
            return None
        slow = [(a, b) for a, b in itertools.combinations(dict.fromkeys(gpus), 2) if _link(nvml, a, b) == "none"]
    if not slow:
        return None
    a, b = slow[0]
    others = f" (and {counted(len(slow) - 1, 'more pair')})" if len(slow) > 1 else ""
    return (
        f"GPU {a.index} ({a.name}) and GPU {b.index} ({b.name}){others} have no direct link, so that gradients go "
        "through the CPU's memory, which is slow: choose linked GPUs with device_indexes, or set "
        "gradient_reduce_precision to bf16 to halve the traffic."
    )


def mixed_gpus_warning(gpus: Sequence[Gpu]) -> str | None:
    """A warning if the GPUs that will train are of different models, else None."""
    names = sorted({gpu.name for gpu in gpus})
    if len(names) < 2:
        return None
    known = [(gpu.memory_bytes, gpu.index) for gpu in gpus if gpu.memory_bytes]
    (most, largest), (least, smallest) = (pick(known, key=itemgetter(0), default=(0, 0)) for pick in (max, min))
    if least < SMALL_SHARE * most:
        return (
            f"Different devices ({', '.join(names)}): each holds the whole model, and GPU {smallest} has "
            f"{least / GIB:.0f} GiB of memory where GPU {largest} has "
            f"{most / GIB:.0f}; leave the smaller ones out with device_indexes."
        )
    return (
        f"Different devices ({', '.join(names)}): the slowest sets the pace; choose GPUs of one kind with "
        "device_indexes."
    )


def driver_versions() -> tuple[str, tuple[int, int]] | None:
    """(driver version, newest CUDA version that it supports); None without a working driver."""
    with open_nvml() as nvml:
        driver = ask_nvml(nvml, nvml.nvmlSystemGetDriverVersion) if nvml else None
        cuda = ask_nvml(nvml, nvml.nvmlSystemGetCudaDriverVersion_v2) if nvml else None
    return None if driver is None or cuda is None else (driver, (cuda // 1000, cuda % 1000 // 10))


def num_cores() -> int:
    """The number of CPU cores that this process may use, which a job scheduler may limit."""
    if hasattr(os, "sched_getaffinity"):  # not on Windows and macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def default_num_ranks(config: TrainConfig, gpus: Sequence[Gpu], cores: int) -> int:
    """The number of ranks that a multi-GPU run starts on this machine, one of `num_nodes`.

    world_size if it is set; else one per chosen GPU, or per GPU if none is chosen; without GPUs two, on one core one.
    Raises UserError for a chosen GPU that does not exist, and for more ranks than GPUs if the backend needs a GPU for
    each rank. On CPUs, and on GPUs with gloo, any number of ranks is allowed.
    """
    check_device_indexes(config.device_indexes, len(gpus))
    num_gpus = len(config.device_indexes) or len(gpus)
    if config.world_size is None:
        return num_gpus or min(2, cores)
    if 0 < num_gpus < config.world_size and config.distributed_backend != "gloo":
        there = f"device_indexes names {num_gpus}" if config.device_indexes else f"this machine has {num_gpus}"
        raise UserError.at(
            "world_size",
            f"{config.world_size} with distributed_backend {config.distributed_backend}: each rank needs a "
            f"GPU of its own and {there}; use {num_gpus} or less, or leave world_size empty.",
        )
    return config.world_size


def check_device_indexes(device_indexes: Sequence[int], num_gpus: int) -> None:
    """Raises UserError if a chosen GPU does not exist."""
    for index in device_indexes:
        if index >= num_gpus:
            there = f"only 0 to {num_gpus - 1} exist" if num_gpus else "there is no GPU here"
            raise UserError.at("device_indexes", f"{list(device_indexes)}: {there}; choose others, or none for all.")


@contextlib.contextmanager
def open_nvml() -> Iterator[Any]:
    """The initialized module pynvml; None if the driver can't be queried, in which case CUDA can't be used either."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:  # no driver, no library, a version mismatch with the kernel module, or no permission
        yield None
        return
    try:
        yield pynvml
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def ask_nvml(nvml: Any, query: Callable[..., T], *arguments: Any) -> T | None:
    """The result of a query; None if the driver does not support it, as often on consumer cards and WSL."""
    try:
        return query(*arguments)
    except nvml.NVMLError:
        return None


def _list_all(nvml: Any) -> list[Gpu]:
    gpus: list[Gpu] = []
    for nvml_index in range(ask_nvml(nvml, nvml.nvmlDeviceGetCount) or 0):
        handle = ask_nvml(nvml, nvml.nvmlDeviceGetHandleByIndex, nvml_index)
        if handle is not None:
            gpus.append(_describe(nvml, handle, len(gpus), nvml_index))
    return gpus


def _describe(nvml: Any, handle: Any, index: int, nvml_index: int) -> Gpu:
    name = ask_nvml(nvml, nvml.nvmlDeviceGetName, handle) or "NVIDIA GPU"
    uuid = ask_nvml(nvml, nvml.nvmlDeviceGetUUID, handle) or ""
    memory = ask_nvml(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    return Gpu(index, name, uuid, memory.total if memory else None, nvml_index)


def _no_nvml_reason(nvml: Any) -> str:
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        if error.value == nvml.NVML_ERROR_LIBRARY_NOT_FOUND:
            return NO_DRIVER
        return f"the NVIDIA driver does not answer ({error})"
    nvml.nvmlShutdown()
    return "the NVIDIA driver answered just now: refresh"


def _usage(nvml: Any, gpu: Gpu) -> GpuUsage:
    handle = ask_nvml(nvml, nvml.nvmlDeviceGetHandleByUUID, gpu.uuid)
    if handle is None:
        return UNKNOWN_USAGE
    memory = ask_nvml(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    rates = ask_nvml(nvml, nvml.nvmlDeviceGetUtilizationRates, handle)
    temperature = ask_nvml(nvml, nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU)
    running = {}  # by process id: a process that both computes and draws is listed twice
    for query in (nvml.nvmlDeviceGetGraphicsRunningProcesses, nvml.nvmlDeviceGetComputeRunningProcesses):
        for process in ask_nvml(nvml, query, handle) or ():
            running[process.pid] = GpuProcess(process.pid, _process_name(nvml, process.pid), process.usedGpuMemory)
    processes = sorted(running.values(), key=lambda process: -(process.memory_bytes or 0))
    return GpuUsage(
        memory_used_bytes=memory.used if memory else None,
        utilisation=rates.gpu if rates else None,
        temperature_celsius=temperature,
        processes=tuple(processes),
    )


def _process_name(nvml: Any, pid: int) -> str:
    try:
        path = ask_nvml(nvml, nvml.nvmlSystemGetProcessName, pid) or ""  # unknown for processes outside the container
    except UnicodeDecodeError:  # pynvml assumes that every name is UTF-8
        return ""
    return PureWindowsPath(path).name  # splits at / as well


def _list_mig_instance(nvml: Any, uuid: str) -> list[Gpu]:
    handle = ask_nvml(nvml, nvml.nvmlDeviceGetHandleByUUID, uuid)
    parent = ask_nvml(nvml, nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, handle) if handle is not None else None
    nvml_index = ask_nvml(nvml, nvml.nvmlDeviceGetIndex, parent) if parent is not None else None
    return [] if nvml_index is None else [_describe(nvml, handle, 0, nvml_index)]


def _without_divided(nvml: Any, gpus: Sequence[Gpu]) -> list[Gpu]:
    """The first MIG instance of these GPUs; without one, the GPUs that are not in MIG mode."""
    undivided = []
    for gpu in gpus:
        handle = ask_nvml(nvml, nvml.nvmlDeviceGetHandleByIndex, gpu.nvml_index)
        modes = ask_nvml(nvml, nvml.nvmlDeviceGetMigMode, handle)  # the present one, and that after a reset
        if not modes or modes[0] != nvml.NVML_DEVICE_MIG_ENABLE:
            undivided.append(gpu)
            continue
        for number in range(ask_nvml(nvml, nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
            instance = ask_nvml(nvml, nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, number)
            if instance is not None:
                return [_describe(nvml, instance, 0, gpu.nvml_index)]
    return undivided


def _visible_indexes(visible: str, uuids: Sequence[str]) -> list[int]:
    """The positions in `uuids` that CUDA_VISIBLE_DEVICES selects."""
    entries = [entry.strip() for entry in visible.split(",")]
    if entries[0].startswith("GPU-"):
        places = [_place_of_uuid(entry, uuids) for entry in entries]
    else:
        places = [_leading_number(entry) for entry in entries]
    chosen = list(itertools.takewhile(lambda place: place >= 0, places))
    if len(set(chosen)) < len(chosen):
        return []
    return list(itertools.takewhile(lambda place: place < len(uuids), chosen))


def _place_of_uuid(entry: str, uuids: Sequence[str]) -> int:
    """The position of the UUID with this prefix; -1 if none or several have it."""
    matches = [place for place, uuid in enumerate(uuids) if entry.startswith("GPU-") and uuid.startswith(entry)]
    return matches[0] if len(matches) == 1 else -1


def _leading_number(entry: str) -> int:
    """Parse a number as C does, like CUDA: "1 " and "1st" are 1; text without a leading number ends the list."""
    match = re.match("[+-]?[0-9]+", entry)
    return int(match[0]) if match else -1


def _link(nvml: Any, a: Gpu, b: Gpu) -> Link:
    handles = [ask_nvml(nvml, nvml.nvmlDeviceGetHandleByUUID, gpu.uuid) for gpu in (a, b)]
    if None in handles:
        return "unknown"
    if ask_nvml(nvml, nvml.nvmlDeviceGetP2PStatus, *handles, _P2P_NVLINK) == nvml.NVML_P2P_STATUS_OK:
        return "nvlink"
    status = ask_nvml(nvml, nvml.nvmlDeviceGetP2PStatus, *handles, _P2P_READ)
    if status in (None, nvml.NVML_P2P_STATUS_UNKNOWN):
        return "unknown"
    return "pcie" if status == nvml.NVML_P2P_STATUS_OK else "none"
