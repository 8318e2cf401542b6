"""The facts about the machine that a bug report needs: system, processor, memory, Chorus, and CUDA's environment."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Mapping
from pathlib import Path

from modules.config.counted import counted
from modules.config.installation import IS_INSTALLED, PACKAGE, ROOT
from modules.machine.devices import num_cores
from modules.machine.doctor.CheckResult import CheckResult
from modules.machine.doctor.child import run_child

GIB = 2**30
GIT_SECONDS = 5.0

# Environment variables, or their prefixes, that change how PyTorch, NCCL and the Hub behave.
STEERING = (
    "ACCELERATE_",
    "CHORUS_",
    "CUBLAS_",
    "CUDA_",
    "CUDNN_",
    "DIFFUSERS_",
    "DISABLE_ADDMM_CUDA_LT",
    "GLOO_",
    "HF_HOME",
    "HF_HUB_OFFLINE",
    "MKL_",
    "NCCL_",
    "NVIDIA_TF32_OVERRIDE",
    "NVIDIA_VISIBLE_DEVICES",
    "OMP_",
    "PYTORCH_",
    "TORCHINDUCTOR_",
    "TORCH_",
    "TRITON_",
)


def check_machine(env: Mapping[str, str] = os.environ) -> CheckResult:
    """Never fails: it describes the machine to readers of the report."""
    import psutil

    memory = psutil.virtual_memory()
    processor, commit = _processor(), _commit()
    variables = {name: env[name] for name in sorted(env) if name.startswith(STEERING)}
    values = {
        "platform": platform.platform(),
        "processor": processor,
        "cores": num_cores(),
        "memory_bytes": memory.total,
        "free_memory_bytes": memory.available,
        "commit": commit,
        "environment": variables,
    }
    text = (
        f"{values['platform']}, {counted(num_cores(), 'core')} of {processor}, {memory.total / GIB:.1f} GiB of memory "
        f"({memory.available / GIB:.1f} free), Chorus {commit or _release()}"
    )
    details = tuple(f"{name}={value}" for name, value in variables.items())
    return CheckResult("machine", "ok", text, details=details, values=values)


def chorus_version() -> str:
    """The checked-out commit, or the version of the installed package. It may start git: call it in a thread."""
    return _commit() or _release()


def _processor() -> str:
    """The model name; on Linux `platform.processor` gives at most x86_64."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not Linux
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _release() -> str:
    return importlib.metadata.version(PACKAGE) if IS_INSTALLED else "without git"


def _commit(root: Path = ROOT) -> str:
    """The checked-out commit, with "+" if tracked files were modified; "" outside a git checkout."""
    if IS_INSTALLED:  # into a folder that may be part of another program's checkout
        return ""
    command = ["git", "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"]
    try:
        answer = run_child(command, GIT_SECONDS, root)
    except OSError:  # git is not installed
        return ""
    return answer.output.strip() if answer.code == 0 else ""
