"""Which build of torch a machine needs, by the package index that it comes from."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

# PyPI holds the build with CUDA 13.0 for Linux, but for Windows only the one for the CPU.
CUDA_13_INDEX = "https://download.pytorch.org/whl/cu130"
CUDA_12_INDEX = "https://download.pytorch.org/whl/cu126"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"


class Gpu(NamedTuple):
    """driver: its major version. capability: the compute capability."""

    driver: int
    capability: "tuple[int, int]"


def fits_cuda_13(gpu: Gpu) -> bool:
    """From Turing on. Sources: https://github.com/pytorch/pytorch/blob/main/RELEASE.md and
    https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html, table 1.
    """
    return gpu.driver >= 580 and gpu.capability >= (7, 5)


def fits_cuda_12(gpu: Gpu) -> bool:
    """CUDA 12.6, from Maxwell to Hopper. Sources: the same."""
    return gpu.driver >= 525 and (5, 0) <= gpu.capability < (10, 0)


def torch_index(
    platform: str,
    environ: "Mapping[str, str]",
    installed: "str | None",
    has_nvidia_gpu: "Callable[[], bool]",
    list_gpus: "Callable[[], list[Gpu]]",
) -> str:
    """The package index that torch comes from; "" when the one pip uses anyway has the right build.

    platform: as sys.platform. environ: CHORUS_TORCH_INDEX in it wins.
    installed: where the torch that is there comes from. It stays: the folder may be shared by machines with other
    drivers, or without a GPU, and each would install its own; and an index that was chosen is not named at each start.
    has_nvidia_gpu, list_gpus: called only where the answer depends on them, as nvidia-smi can take seconds.
    """
    chosen = environ.get("CHORUS_TORCH_INDEX", "").strip()
    if chosen:
        return chosen
    if installed:
        return installed
    if platform == "darwin" or (platform == "win32" and not has_nvidia_gpu()):
        return ""
    newest = CUDA_13_INDEX if platform == "win32" else ""
    if installed == newest:
        return newest
    gpus = list_gpus()
    return newest if sum(map(fits_cuda_13, gpus)) >= sum(map(fits_cuda_12, gpus)) else CUDA_12_INDEX


def has_cuda(index: str, platform: str) -> bool:
    """Whether the torch from there is a build with CUDA, which is several times as large."""
    return "/cu" in index or (index == "" and platform.startswith("linux"))


def describe_build(index: str, platform: str, gpu_found: bool, gpus: "list[Gpu]") -> str:
    """What the person who waits should know about the build that is being installed."""
    if index not in ("", CUDA_13_INDEX, CUDA_12_INDEX):
        return f"PyTorch is installed from {index}; CHORUS_TORCH_INDEX chooses another index."
    if platform == "darwin":
        return "PyTorch is installed for the CPU: Chorus does not use Apple's GPU."
    if not gpu_found:
        if not has_cuda(index, platform):
            return "No NVIDIA GPU found: PyTorch is installed for the CPU."
        smaller = f"CHORUS_TORCH_INDEX={CPU_INDEX} would give the much smaller build without"
        return f"No NVIDIA GPU found: PyTorch is installed with CUDA all the same; {smaller}."
    if gpus and not any(fits_cuda_13(gpu) or fits_cuda_12(gpu) for gpu in gpus):
        return (
            f"Warning: PyTorch has no build for a GPU of compute capability {_spoken(gpus[0].capability)} with the "
            f"NVIDIA driver {gpus[0].driver}: update the driver to 580 or newer; GPUs before Maxwell are not supported."
        )
    if index == CUDA_12_INDEX:
        return "NVIDIA GPU found. It or its driver is too old for CUDA 13: PyTorch is installed with CUDA 12.6."
    return "NVIDIA GPU found."


def has_nvidia_gpu() -> bool:
    """Whether a driver of an NVIDIA GPU is there; the cheap signs first."""
    driver = Path("/proc/driver/nvidia/version")
    if sys.platform == "win32":
        driver = Path(os.environ.get("SYSTEMROOT", r"C:\Windows")) / "System32" / "nvcuda.dll"
    return driver.exists() or _ask_nvidia_smi("-L").startswith("GPU ")


def list_gpus() -> "list[Gpu]":
    """Those that nvidia-smi lists; none where it does not say what is asked, as that of drivers before 510."""
    answer = _ask_nvidia_smi("--query-gpu=driver_version,compute_cap", "--format=csv,noheader")
    found = re.findall(r"^(\d+)\.[\d.]+, (\d+)\.(\d+)\s*$", answer, re.MULTILINE)
    return [Gpu(int(driver), (int(major), int(minor))) for driver, major, minor in found]


def _ask_nvidia_smi(*arguments: str) -> str:
    nvidia_smi = shutil.which("nvidia-smi")
    if nvidia_smi is None:
        return ""
    try:
        answer = subprocess.check_output([nvidia_smi, *arguments], stderr=subprocess.DEVNULL, timeout=30)
    except (OSError, subprocess.SubprocessError):  # a left-over, failing or hanging driver is no usable GPU
        return ""
    return answer.decode("utf-8", "replace")


def _spoken(capability: "tuple[int, int]") -> str:
    return ".".join(map(str, capability))
