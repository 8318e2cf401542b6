"""What set-up decides and refuses before it installs anything: pure functions of what it finds on a machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scripts.setup import system, torch_build
from scripts.setup.SetupError import SetupError

needs_posix = pytest.mark.skipif(os.name == "nt", reason="stands in for a program with a shell script")


# --- which torch


@pytest.mark.parametrize(
    ("platform", "gpu", "index"),
    [
        ("linux", True, ""),
        ("linux", False, ""),
        ("darwin", False, ""),
        ("win32", True, torch_build.WINDOWS_CUDA_INDEX),
        ("win32", False, ""),
    ],
)
def test_only_windows_with_a_gpu_needs_an_index_of_its_own(platform, gpu, index):
    assert torch_build.torch_index(platform, {}, lambda: gpu) == index


@pytest.mark.parametrize("platform", ["linux", "win32"])
def test_the_environment_variable_overrides_the_index(platform):
    chosen = {"CHORUS_TORCH_INDEX": " https://example.org/cpu "}
    assert torch_build.torch_index(platform, chosen, lambda: True) == "https://example.org/cpu"


@needs_posix
@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("echo 'GPU 0: NVIDIA H200 (UUID: GPU-1)'", True),
        ("echo 'No devices were found'", False),
        ("echo 'GPU access blocked'; exit 9", False),
    ],
)
def test_nvidia_smi_counts_only_when_it_lists_a_gpu(tmp_path, monkeypatch, script, found):
    if Path("/proc/driver/nvidia/version").exists():
        pytest.skip("this machine has a driver, which settles it")
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert torch_build.has_nvidia_gpu() is found


# --- what the system must bring


def test_a_python_too_old_is_told_so_in_a_sentence():
    with pytest.raises(SetupError, match=r"^Python 3\.9 is too old for Chorus, which needs 3\.10 or newer; install"):
        system.check_python((3, 9, 18))
    system.check_python((3, 10, 0))
    system.check_python((4, 0))


@pytest.mark.parametrize(
    ("platform", "os_release", "tkinter", "venv"),
    [
        ("linux", "NAME=x\nID=debian\n", "apt install python3-tk`", "apt install python3-venv`"),
        ("linux", 'ID=linuxmint\nID_LIKE="ubuntu debian"\n', "apt install python3-tk`", "apt install python3-venv`"),
        ("linux", "ID=fedora\n", "dnf install python3-tkinter`", "your system's package"),
        ("linux", 'ID="rocky"\nID_LIKE="rhel fedora"\n', "dnf install python3-tkinter`", "your system's package"),
        ("linux", "ID=manjaro\nID_LIKE=arch\n", "pacman -S tk`", "your system's package"),
        ("linux", "", "your system's package", "your system's package"),
        ("darwin", "", "brew install python-tk`", "brew install python`"),
        ("win32", "", "run the Python installer again and tick tcl/tk", "run the Python installer again"),
    ],
)
def test_the_remedy_names_the_package_of_the_system(platform, os_release, tkinter, venv):
    assert tkinter in system.remedy("tkinter", platform, os_release)
    assert venv in system.remedy("venv", platform, os_release)


def test_a_missing_venv_module_is_told_with_its_remedy():
    with pytest.raises(SetupError, match=r"venv module is missing or incomplete; .+ and start again"):
        system.check_venv_module(False)


def test_a_missing_tkinter_stops_the_window_warns_the_tests_and_leaves_training_alone():
    said = []
    with pytest.raises(SetupError, match=r"tkinter, which the window of Chorus needs, is missing; .+ and start again"):
        system.check_tkinter(False, for_window=True, for_tests=False, say=said.append)
    system.check_tkinter(False, for_window=False, for_tests=False, say=said.append)
    assert said == []
    system.check_tkinter(False, for_window=False, for_tests=True, say=said.append)
    assert len(said) == 1
    assert said[0].startswith("Warning: Python's tkinter")
