"""Configurations that are known to cause problems, one entry each, with its source."""

from __future__ import annotations

import os
import re
import socket
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from modules.config.counted import counted
from modules.machine.backend import choose_backend
from modules.machine.doctor.CheckResult import CheckResult
from modules.machine.doctor.hardware import Hardware
from modules.machine.doctor.network import own_addresses
from modules.machine.wsl import in_wsl

GIB = 2**30
FEW_OPEN_FILES = 1024
NCCL_VARIABLES = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
NCCL_TROUBLES = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"
TORCH_CUDA = "https://docs.pytorch.org/docs/stable/notes/cuda.html"
CUDNN_PLANS = "https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/native/cudnn/MHA.cpp"
GLOO_ADDRESS = "https://github.com/pytorch/gloo/issues/70"


@dataclass(frozen=True)
class Situation:
    """The facts that the entries examine.

    hardware: with only the GPUs that train. num_gpus: all GPUs, chosen or not. facts: of torch_facts, None if torch
    does not load. num_ranks: on this machine. folders: that the run writes to. shm_bytes: size of /dev/shm; None
    without one. open_files: limit per process; None if there is none. interfaces: names of the network interfaces.
    addresses: that this machine's name resolves to. towards_master: the interface towards node 0, if known (Linux).
    in_wsl: whether this is Linux inside Windows. packages_folder: of this environment.
    """

    platform: str = sys.platform
    env: Mapping[str, str] = field(default_factory=dict)
    hardware: Hardware = field(default_factory=Hardware)
    facts: Mapping[str, Any] | None = None
    num_gpus: int = 0
    num_ranks: int = 1
    num_nodes: int = 1
    backend: str = "auto"
    folders: Sequence[str] = ()
    shm_bytes: int | None = None
    open_files: int | None = None
    interfaces: Sequence[str] = ()
    addresses: Sequence[str] = ()
    towards_master: str | None = None
    in_wsl: bool = False
    packages_folder: str = ""

    @property
    def has_several_ranks(self) -> bool:
        return self.num_ranks * self.num_nodes > 1

    @property
    def has_nccl(self) -> bool:
        return self.platform != "win32" and (self.facts is None or self.facts["has_nccl"])

    @property
    def uses_nccl(self) -> bool:
        backend, _ = choose_backend(self.backend, bool(self.hardware.gpus), self.has_nccl)
        return self.has_several_ranks and backend == "nccl"

    @property
    def uses_gloo(self) -> bool:
        return self.has_several_ranks and not self.uses_nccl

    def has_link(self, *kinds: str) -> bool:
        return any(kind in kinds for row in self.hardware.links for kind in row)


@dataclass(frozen=True)
class KnownProblem:
    """find: returns the problem as a clause without a full stop; empty if there is none. source: a page or file."""

    name: str
    state: Literal["warning", "fails"]
    find: Callable[[Situation], str]
    remedy: str
    source: str


def check_known_problems(situation: Situation) -> list[CheckResult]:
    """One result per problem found, or a single one saying that there is none."""
    found = [
        CheckResult(problem.name, problem.state, text, problem.remedy, values={"source": problem.source})
        for problem in KNOWN_PROBLEMS
        if (text := problem.find(situation))
    ]
    return found or [CheckResult("known traps", "ok", f"none of the {len(KNOWN_PROBLEMS)} that are looked for")]


def read_situation(**known: Any) -> Situation:
    """The current situation of this machine. known: fields that are settings or already determined."""
    return Situation(
        env=os.environ,
        shm_bytes=_shm_bytes(),
        open_files=_open_files(),
        interfaces=[name for _, name in socket.if_nameindex()] if hasattr(socket, "if_nameindex") else (),
        addresses=own_addresses(),
        in_wsl=in_wsl(),
        packages_folder=sysconfig.get_path("purelib"),
        **known,
    )


# --- the entries' conditions, in the order of the table below


def _foreign_torch(here: Situation) -> str:
    if here.facts is None or not here.packages_folder:
        return ""
    place = Path(here.facts["file"]).resolve().parents[1]
    own = {Path(here.packages_folder).resolve(), Path(sysconfig.get_path("platlib")).resolve()}
    return "" if place in own else f"PyTorch is loaded from {place}, not from this environment"


def _hidden_gpus(here: Situation) -> str:
    visible = here.env.get("CUDA_VISIBLE_DEVICES", "")
    named = [entry for entry in visible.split(",") if entry.strip()]
    is_divided = visible.startswith("MIG-") or any(gpu.uuid.startswith("MIG-") for gpu in here.hardware.gpus)
    if here.hardware.driver is None or named == ["-1"] or is_divided or here.num_gpus >= len(named):
        return ""
    return f"CUDA_VISIBLE_DEVICES {visible!r} names {counted(len(named), 'GPU')}, of which {here.num_gpus} can be found"


def _mig(here: Situation) -> str:
    instances = [gpu for gpu in here.hardware.gpus if gpu.uuid.startswith("MIG-")]
    return f"{instances[0].name}: a process gets one MIG instance, and then no other GPU" if instances else ""


def _p2p_off(here: Situation) -> str:
    if here.env.get("NCCL_P2P_DISABLE", "0") in ("", "0") or not (here.uses_nccl and here.has_link("nvlink", "pcie")):
        return ""
    return "NCCL_P2P_DISABLE is set and keeps NCCL from the direct links that there are"


def _p2p_promised(here: Situation) -> str:
    """The first drivers for these cards reported direct links that did not work."""
    if not here.uses_nccl or here.hardware.driver is None or here.env.get("NCCL_P2P_DISABLE", "0") not in ("", "0"):
        return ""
    cards = [gpu.name for gpu in here.hardware.gpus if "RTX 40" in gpu.name]
    is_old = _version(here.hardware.driver) < (550, 40, 7)
    return f"{len(cards)} x {cards[0]} with driver {here.hardware.driver}" if len(cards) > 1 and is_old else ""


def _no_nccl(here: Situation) -> str:
    is_missed = here.hardware.gpus and here.has_several_ranks and here.platform != "win32" and here.backend != "gloo"
    return "this PyTorch was built without NCCL: the ranks use gloo" if is_missed and not here.has_nccl else ""


def _no_interface(here: Situation) -> str:
    """NCCL takes prefixes, exclusions (^) and exact names (=); gloo takes names."""
    if here.platform == "win32":  # interface names there differ from those that the libraries accept
        return ""
    nccl = here.env.get("NCCL_SOCKET_IFNAME", "")
    gloo = here.env.get("GLOO_SOCKET_IFNAME", "")
    if here.uses_nccl and nccl and not nccl.startswith("^"):
        names = nccl.lstrip("=").split(",")
        matches = [one for one in here.interfaces for name in names if one == name or one.startswith(name)]
        if not matches:
            return f"NCCL_SOCKET_IFNAME {nccl!r} names no network interface of {', '.join(here.interfaces)}"
    missing = [name for name in gloo.split(",") if gloo and name not in here.interfaces]
    if missing and here.has_several_ranks:
        return f"GLOO_SOCKET_IFNAME names {missing[0]!r}, which is none of {', '.join(here.interfaces)}"
    return ""


def _nameless(here: Situation) -> str:
    """On Linux, Chorus tells gloo which interface to use if it is known; elsewhere gloo resolves the host name."""
    looks_up = not here.platform.startswith("linux") or (here.num_nodes > 1 and not here.towards_master)
    if not (here.uses_gloo and looks_up) or here.env.get("GLOO_SOCKET_IFNAME"):
        return ""
    if not here.addresses:
        return "this machine's own name leads to no address, and gloo looks it up"
    if here.num_nodes > 1 and all(address.startswith("127.") for address in here.addresses):
        return f"this machine's name leads to {here.addresses[0]}, where other machines can't reach it"
    return ""


def _small_shm(here: Situation) -> str:
    if not here.uses_nccl or here.num_ranks < 2 or here.shm_bytes is None or here.shm_bytes >= GIB:
        return ""
    return f"/dev/shm has {here.shm_bytes / 2**20:.0f} MiB, as containers do by default; NCCL may need more"


def _wsl(here: Situation) -> str:
    return "WSL: page-locked memory is limited, and GPUs have no direct links" if here.in_wsl and here.uses_nccl else ""


def _windows_disk(here: Situation) -> str:
    there = [folder for folder in here.folders if re.match("/mnt/[a-z](/|$)", os.path.abspath(folder))]
    return f"{there[0]} is on a disk of Windows, which WSL reads slowly" if here.in_wsl and there else ""


def _bad_allocator(here: Situation) -> str:
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        text = here.env.get(name, "")
        options = [option for option in re.sub(r"\[[^]]*]", "[]", text).split(",") if option]
        wrong = [option for option in options if not re.fullmatch(r"\s*[a-z0-9_]+\s*:\s*\S+\s*", option)]
        if wrong:
            return f"{name} {text!r}: {wrong[0]!r} is not written name:value"
    return ""


def _segments(here: Situation) -> str:
    text = here.env.get("PYTORCH_ALLOC_CONF", "") + here.env.get("PYTORCH_CUDA_ALLOC_CONF", "")
    on = re.search(r"expandable_segments\s*:\s*True", text) and (here.platform == "win32" or here.in_wsl)
    return "expandable_segments is on, which PyTorch has on Linux alone" if on and here.hardware.gpus else ""


def _blocking(here: Situation) -> str:
    on = here.hardware.gpus and here.env.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0")
    return "CUDA_LAUNCH_BLOCKING is set: the CPU waits for each kernel" if on else ""


def _attention_variable(here: Situation) -> str:
    asked = here.env.get("DIFFUSERS_ATTN_BACKEND", "").lower()
    if asked == "_native_cudnn" and here.hardware.gpus:
        return "DIFFUSERS_ATTN_BACKEND asks for cuDNN's attention, whose gradients can be wrong"
    is_other = asked not in ("", "native")
    return (
        f"DIFFUSERS_ATTN_BACKEND is {asked}: runs refuse it, because it overrules model.attention" if is_other else ""
    )


def _checked_collectives(here: Situation) -> str:
    on = here.has_several_ranks and here.env.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL"
    return (
        "TORCH_DISTRIBUTED_DEBUG is DETAIL: it adds a consistency check to every collective, which is slow"
        if on
        else ""
    )


def _crowded_cores(here: Situation) -> str:
    cores, threads = here.hardware.cores, here.env.get("OMP_NUM_THREADS", "").split(",")[0]
    if threads.isdigit() and here.num_ranks > 1 and here.num_ranks * int(threads) > 2 * cores:
        return (
            f"OMP_NUM_THREADS {threads} for each of {here.num_ranks} ranks is more than {counted(cores, 'core')} can do"
        )
    return ""  # if it is not set, ranks divide the cores among themselves, see setup_distributed


def _few_cores(here: Situation) -> str:
    few = here.hardware.cores < here.num_ranks
    return f"{here.num_ranks} ranks share {counted(here.hardware.cores, 'core')}" if few else ""


def _few_files(here: Situation) -> str:
    few = here.open_files is not None and here.open_files < FEW_OPEN_FILES
    return f"a process may have {here.open_files} files open" if few else ""


KNOWN_PROBLEMS = (
    KnownProblem(
        "environment",
        "warning",
        _foreign_torch,
        "Unset PYTHONPATH and set PYTHONNOUSERSITE=1, so that only the packages of this environment are loaded.",
        "https://docs.python.org/3/using/cmdline.html#environment-variables",
    ),
    KnownProblem(
        "hidden GPUs",
        "warning",
        _hidden_gpus,
        "Name only GPUs that `nvidia-smi -L` lists, each once; CUDA stops at the first that is not there.",
        "https://docs.nvidia.com/cuda/cuda-c-programming-guide/#env-vars",
    ),
    KnownProblem(
        "MIG",
        "warning",
        _mig,
        "To train on several GPUs switch MIG off with `nvidia-smi -mig 0`.",
        "https://docs.nvidia.com/datacenter/tesla/mig-user-guide/",
    ),
    KnownProblem("NCCL_P2P_DISABLE", "warning", _p2p_off, "Unset it, unless ranks hang without it.", NCCL_VARIABLES),
    KnownProblem(
        "P2P of RTX 40",
        "warning",
        _p2p_promised,
        "Install driver 550.40.07 or newer, or set NCCL_P2P_DISABLE=1: older ones promise direct links that hang.",
        "https://github.com/NVIDIA/nccl-tests/issues/117",
    ),
    KnownProblem(
        "backend",
        "warning",
        _no_nccl,
        "Install a build of PyTorch with NCCL, which is faster, or set distributed_backend to gloo.",
        "https://docs.pytorch.org/docs/stable/distributed.html#backends",
    ),
    KnownProblem(
        "network interface",
        "fails",
        _no_interface,
        "Name the interface that leads to the other ranks (`ip -br addr` lists them), or unset the variable.",
        NCCL_VARIABLES,
    ),
    KnownProblem(
        "own name",
        "fails",
        _nameless,
        "Set GLOO_SOCKET_IFNAME to the interface to use, or give the name a line with its address in the hosts file.",
        GLOO_ADDRESS,
    ),
    KnownProblem(
        "/dev/shm",
        "warning",
        _small_shm,
        "Start the container with --shm-size=1g or --ipc=host.",
        NCCL_TROUBLES,
    ),
    KnownProblem(
        "WSL",
        "warning",
        _wsl,
        "Use Linux itself for more than one GPU, or set gradient_reduce_precision to bf16 to halve the traffic.",
        "https://docs.nvidia.com/cuda/wsl-user-guide/",
    ),
    KnownProblem(
        "Windows disk",
        "warning",
        _windows_disk,
        "Keep images, cache and run folder in the Linux file system, such as below ~.",
        "https://learn.microsoft.com/windows/wsl/filesystems",
    ),
    KnownProblem("allocator", "fails", _bad_allocator, "Correct it, or unset it.", TORCH_CUDA),
    KnownProblem("allocator", "warning", _segments, "Take it out: it has no effect here but a warning.", TORCH_CUDA),
    KnownProblem("CUDA_LAUNCH_BLOCKING", "warning", _blocking, "Unset it unless you look for a bug.", TORCH_CUDA),
    KnownProblem("attention", "fails", _attention_variable, "Unset it, and choose by model.attention.", CUDNN_PLANS),
    KnownProblem(
        "TORCH_DISTRIBUTED_DEBUG",
        "warning",
        _checked_collectives,
        "Unset it unless you look for a bug.",
        "https://docs.pytorch.org/docs/stable/distributed.html#torch-distributed-debug",
    ),
    KnownProblem(
        "threads",
        "warning",
        _crowded_cores,
        "Set OMP_NUM_THREADS to the cores divided by the ranks.",
        "https://docs.pytorch.org/docs/stable/elastic/run.html",
    ),
    KnownProblem(
        "cores",
        "warning",
        _few_cores,
        "Use fewer ranks, or ask for more cores (--cpus-per-task with SLURM, --cpus with Docker).",
        "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
    ),
    KnownProblem(
        "open files",
        "warning",
        _few_files,
        "Raise the limit with `ulimit -n 4096` in the shell that starts the training.",
        "https://man7.org/linux/man-pages/man2/getrlimit.2.html",
    ),
)


# --- reading the machine


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)[:3]))


def _shm_bytes() -> int | None:
    if not os.path.isdir("/dev/shm"):
        return None
    facts = os.statvfs("/dev/shm")
    return facts.f_frsize * facts.f_blocks


def _open_files() -> int | None:
    if os.name == "nt":
        return None
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft
