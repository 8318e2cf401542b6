"""Downloads the packages that a bare GPU machine lacks, where it has PyTorch but no network."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from modules.session.printing import print_text

ROOT = Path(__file__).resolve().parents[2]
# A machine with PyTorch for machine learning usually has transformers, safetensors, numpy, pillow and the like. These
# are what Chorus needs beside them: a dozen megabytes. av and bitsandbytes are too large to carry, and skipped there.
PACKAGES = (
    *("diffusers", "importlib-metadata", "peft", "pydantic", "pydantic-core", "annotated-types", "typing-inspection"),
    *("ftfy", "wcwidth", "platformdirs", "prodigyopt", "schedulefree", "pytorch-optimizer", "gguf"),
)
PYTHON = "3.12"
PLATFORMS = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014", "manylinux1")
NEXT = """\
There: python -m pip install --no-index --no-deps --target site {folder}/*.whl
       PYTHONPATH=site python scripts/gpu_tests.py right --budget 180"""


def download_wheels(folder: Path) -> int:
    """Downloads the wheels of PACKAGES with pip, for Linux on x86-64; returns pip's exit code."""
    wanted = [f"{name}=={version_of(name)}" for name in PACKAGES]
    target = ["--python-version", PYTHON, "--implementation", "cp", "--only-binary=:all:"]
    for platform in PLATFORMS:
        target += ["--platform", f"{platform}_x86_64"]
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", *target, "-d", str(folder), *wanted]
    code = subprocess.run(command, check=False).returncode
    if not code:
        print_text(NEXT.format(folder=folder))
    return code


def version_of(package: str) -> str:
    """The version that requirements.txt pins, for the newest Pythons, else the one that is installed here.

    Raises PackageNotFoundError if it is neither pinned nor installed.
    """
    text = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    pinned = re.search(rf"^(?:# )?{re.escape(package)}==([\w.]+)", text, re.MULTILINE)
    if pinned:
        return pinned[1]
    try:
        return version(package)
    except PackageNotFoundError as error:
        raise PackageNotFoundError(f"{package}: run ./scripts/test.sh once, which sets up an environment") from error
