"""Which build of torch a machine needs, by the package index that it comes from."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

# PyPI holds the CUDA build of torch for Linux, but for Windows only the CPU build. Since 2.12, PyTorch calls CUDA 13.0
# its stable build for cards from Turing on (https://github.com/pytorch/pytorch/blob/main/RELEASE.md).
WINDOWS_CUDA_INDEX = "https://download.pytorch.org/whl/cu130"


def torch_index(platform: str, environ: "dict[str, str]", gpu_found) -> str:
    """The package index that torch comes from; "" when the one pip uses anyway has the right build.

    platform: as sys.platform. environ: CHORUS_TORCH_INDEX in it wins.
    gpu_found: called only where the answer depends on it, as nvidia-smi can take seconds.
    """
    chosen = environ.get("CHORUS_TORCH_INDEX", "").strip()
    if chosen:
        return chosen
    return WINDOWS_CUDA_INDEX if platform == "win32" and gpu_found() else ""


def has_cuda(index: str, platform: str) -> bool:
    """Whether the torch from there is a build with CUDA, which is several times as large."""
    return "/cu" in index or (index == "" and platform.startswith("linux"))


def has_nvidia_gpu() -> bool:
    """Whether a driver of an NVIDIA GPU is there; the cheap signs first."""
    driver = Path("/proc/driver/nvidia/version")
    if sys.platform == "win32":
        driver = Path(os.environ.get("SYSTEMROOT", r"C:\Windows")) / "System32" / "nvcuda.dll"
    if driver.exists():
        return True
    nvidia_smi = shutil.which("nvidia-smi")
    if nvidia_smi is None:
        return False
    try:
        listed = subprocess.check_output([nvidia_smi, "-L"], stderr=subprocess.DEVNULL, timeout=30)
    except (OSError, subprocess.SubprocessError):  # a left-over, failing or hanging driver is no usable GPU
        return False
    return listed.startswith(b"GPU ")
