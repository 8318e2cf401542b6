"""What set-up decides and refuses before it installs anything: pure functions of what it finds on a machine."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath, PureWindowsPath

import pytest

from scripts.setup import place, system, torch_build
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


WINDOWS = system.Python((3, 13, 1), True, "win32", "AMD64")
MAC = system.Python((3, 13, 1), True, "darwin", "arm64", macos="15.1")
LINUX = system.Python((3, 13, 1), True, "linux", "x86_64", ("glibc", "2.36"))


@pytest.mark.parametrize(
    "python",
    [
        WINDOWS,
        MAC,
        LINUX,
        LINUX._replace(machine="aarch64"),
        LINUX._replace(version=(3, 10, 0)),
        WINDOWS._replace(version=(3, 14, 2)),
        MAC._replace(macos="14.0"),
        LINUX._replace(libc=("glibc", "2.28")),
    ],
)
def test_a_python_that_pytorch_is_built_for_is_taken(python):
    system.check_python(python)


@pytest.mark.parametrize(
    ("python", "reason"),
    [
        (LINUX._replace(version=(3, 9, 18)), r"^Python 3\.9 is too old for Chorus, which needs 3\.10 or newer; inst"),
        (WINDOWS._replace(version=(3, 15, 0)), r"^Python 3\.15 is too new: .+ up to 3\.14 so far; install"),
        (WINDOWS._replace(is_64_bit=False), "32-bit build"),
        (WINDOWS._replace(machine="ARM64"), "not built for Windows on ARM"),
        (MAC._replace(machine="x86_64"), "no longer built for Intel Macs"),
        (MAC._replace(macos="13.6"), r"macOS 13\.6 is too old"),
        (LINUX._replace(machine="ppc64le"), "not built for ppc64le on linux"),
        (LINUX._replace(libc=("musl", "1.2.5")), "musl"),
        (LINUX._replace(libc=("", "")), "musl"),  # as Pythons before 3.13 see it
        (LINUX._replace(libc=("glibc", "2.17")), r"glibc 2\.28 or newer, and this one has glibc 2\.17"),
    ],
)
def test_a_python_that_pytorch_is_not_built_for_is_refused_with_the_reason(python, reason):
    with pytest.raises(SetupError, match=reason):
        system.check_python(python)


def test_the_python_of_these_tests_is_described_as_one_that_will_do():
    system.check_python(system.this_python())


@pytest.mark.parametrize(
    ("platform", "os_release", "tkinter", "venv"),
    [
        ("linux", "NAME=x\nID=debian\n", "apt install python3.12-tk`", "apt install python3.12-venv`"),
        ("linux", 'ID=x\nID_LIKE="ubuntu debian"\n', "apt install python3.12-tk`", "apt install python3.12-venv`"),
        ("linux", "ID=fedora\n", "dnf install python3-tkinter`", "your system's package"),
        ("linux", 'ID="rocky"\nID_LIKE="rhel fedora"\n', "dnf install python3-tkinter`", "your system's package"),
        ("linux", "ID=manjaro\nID_LIKE=arch\n", "pacman -S tk`", "your system's package"),
        ("linux", "", "your system's package", "your system's package"),
        ("darwin", "", "brew install python-tk@3.12`", "brew install python@3.12`"),
        ("win32", "", "run the Python installer again and tick tcl/tk", "run the Python installer again"),
    ],
)
def test_the_remedy_names_the_package_of_the_system_and_of_the_python(platform, os_release, tkinter, venv):
    assert tkinter in system.remedy("tkinter", platform, os_release, (3, 12, 1))
    assert venv in system.remedy("venv", platform, os_release, (3, 12, 1))


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


# --- the folder of Chorus


def test_a_folder_whose_packages_would_have_paths_too_long_for_windows_is_refused():
    longest = PureWindowsPath("C:/", "x" * 57)
    longer = PureWindowsPath("C:/", "x" * 58)
    place.check_length(longest, "win32", lambda: False)
    place.check_length(longer, "win32", lambda: True)
    place.check_length(PurePosixPath("/", "x" * 58), "linux", lambda: False)
    with pytest.raises(SetupError, match=r"path of 61 characters, and Windows leaves room for 60; move it"):
        place.check_length(longer, "win32", lambda: False)


def test_the_longest_path_of_the_packages_fits_below_the_longest_folder_that_is_taken():
    (licenses,) = Path(pytest.__file__).parents[1].glob("torch-*.dist-info")
    longest = max((str(path.relative_to(licenses)) for path in licenses.rglob("*")), key=len)
    packages = PureWindowsPath("C:/", "x" * (place.MAX_CHARACTERS - 3), ".venv", "Lib", "site-packages")
    assert len(str(packages / "torch-2.13.0+cu130.dist-info" / longest)) < 260


@pytest.mark.parametrize(
    ("root", "is_synced"),
    [
        (PureWindowsPath(r"C:\Users\Ann\OneDrive - Work\Documents\chorus"), True),
        (PureWindowsPath(r"c:\users\ann\onedrive - work"), True),
        (PureWindowsPath(r"C:\Users\Ann\chorus"), False),
        (PurePosixPath("/Users/ann/Library/Mobile Documents/com~apple~CloudDocs/chorus"), True),
        (PurePosixPath("/Users/ann/Library/CloudStorage/OneDrive-Work/chorus"), True),
        (PurePosixPath("/Users/ann/chorus"), False),
    ],
)
def test_a_folder_that_a_cloud_service_copies_is_known_as_such(root, is_synced):
    environ = {"OneDrive": r"C:\Users\Ann\OneDrive - Work", "OneDriveConsumer": "", "PATH": "/"}
    assert place.is_synced(root, environ, type(root)("/Users/ann")) is is_synced
