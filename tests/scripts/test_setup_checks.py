"""What set-up decides and refuses before it installs anything: pure functions of what it finds on a machine."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath, PureWindowsPath

import pytest

from scripts.setup import installing, place, system, torch_build
from scripts.setup.SetupError import SetupError

needs_posix = pytest.mark.skipif(os.name == "nt", reason="stands in for a program with a shell script")


# --- which torch

NEW = torch_build.Gpu(580, (8, 6))
OLD_DRIVER = torch_build.Gpu(550, (8, 6))
OLD_CARD = torch_build.Gpu(580, (6, 1))
BLACKWELL_WITH_OLD_DRIVER = torch_build.Gpu(570, (12, 0))


def asked_too_much():
    raise AssertionError("nvidia-smi can take seconds, and every start would wait for it")


def index_for(platform, gpus, installed=None, **environ):
    return torch_build.torch_index(platform, environ, installed, lambda: bool(gpus), lambda: gpus)


@pytest.mark.parametrize(
    ("gpus", "on_linux", "on_windows"),
    [
        ([], "", ""),
        ([NEW], "", torch_build.CUDA_13_INDEX),
        ([OLD_DRIVER], torch_build.CUDA_12_INDEX, torch_build.CUDA_12_INDEX),
        ([OLD_CARD], torch_build.CUDA_12_INDEX, torch_build.CUDA_12_INDEX),
        ([OLD_CARD, OLD_CARD, NEW], torch_build.CUDA_12_INDEX, torch_build.CUDA_12_INDEX),  # which that one can use too
        ([BLACKWELL_WITH_OLD_DRIVER], "", torch_build.CUDA_13_INDEX),
    ],
)
def test_the_build_of_torch_is_the_newest_that_driver_and_gpus_can_use(gpus, on_linux, on_windows):
    assert index_for("linux", gpus) == on_linux
    assert index_for("win32", gpus) == on_windows


def test_windows_and_macos_get_pypis_build_where_there_is_no_nvidia_gpu():
    assert torch_build.torch_index("win32", {}, None, lambda: False, asked_too_much) == ""
    assert torch_build.torch_index("darwin", {}, None, asked_too_much, asked_too_much) == ""


@pytest.mark.parametrize("installed", ["", torch_build.CUDA_12_INDEX])
def test_machines_that_share_a_folder_keep_the_build_that_one_of_them_has_installed(installed):
    assert torch_build.torch_index("linux", {}, installed, asked_too_much, asked_too_much) == installed


@pytest.mark.parametrize("platform", ["linux", "win32", "darwin"])
@pytest.mark.parametrize("installed", ["https://example.org/rocm", torch_build.CPU_INDEX, torch_build.CUDA_13_INDEX])
def test_a_build_that_was_chosen_stays_without_being_chosen_again(platform, installed):
    assert torch_build.torch_index(platform, {}, installed, asked_too_much, asked_too_much) == installed


def test_a_gpu_that_is_added_on_windows_gets_its_build():
    assert index_for("win32", [NEW], installed="") == torch_build.CUDA_13_INDEX


@pytest.mark.parametrize("platform", ["linux", "win32"])
def test_the_environment_variable_overrides_the_index(platform):
    chosen = "https://example.org/cpu"
    for installed in (None, "", torch_build.CUDA_12_INDEX, "https://example.org/rocm"):
        assert index_for(platform, [NEW], installed, CHORUS_TORCH_INDEX=f" {chosen} ") == chosen


@pytest.mark.parametrize(
    ("platform", "gpus", "said"),
    [
        ("darwin", [], "PyTorch is installed for the CPU: Chorus does not use Apple's GPU."),
        ("win32", [], "No NVIDIA GPU found: PyTorch is installed for the CPU."),
        ("linux", [], "with CUDA all the same; CHORUS_TORCH_INDEX=https://download.pytorch.org/whl/cpu would"),
        ("linux", [NEW], "NVIDIA GPU found."),
        ("linux", [OLD_DRIVER], "too old for CUDA 13: PyTorch is installed with CUDA 12.6."),
        ("linux", [BLACKWELL_WITH_OLD_DRIVER], "capability 12.0 with the NVIDIA driver 570: update the driver to 580"),
    ],
)
def test_set_up_says_which_build_it_installs_and_why(platform, gpus, said):
    assert said in torch_build.describe_build(index_for(platform, gpus), platform, bool(gpus), gpus)


def test_set_up_names_an_index_that_was_chosen_and_what_chooses_another():
    said = torch_build.describe_build("https://example.org/rocm", "linux", False, [])
    assert said == "PyTorch is installed from https://example.org/rocm; CHORUS_TORCH_INDEX chooses another index."


@needs_posix
def test_driver_and_capability_are_read_from_nvidia_smi(tmp_path, monkeypatch):
    answer = "550.54.15, 8.6\n550.54.15, 12.0\n[N/A], [N/A]"
    asked = "--query-gpu=driver_version,compute_cap"
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n[ $1 = {asked} ] && echo '{answer}'")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert torch_build.list_gpus() == [(550, (8, 6)), (550, (12, 0))]


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


# --- what went wrong


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        (
            ["ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device"],
            "the disk is full",
        ),
        (["There was a problem confirming the ssl certificate", "[SSL: CERTIFICATE_VERIFY_FAILED]"], "set PIP_CERT"),
        (["ProxyError('Cannot connect to proxy.', OSError('Tunnel connection failed: 407'))"], "set HTTPS_PROXY"),
        (
            [
                "WARNING: Retrying after connection broken by 'NewConnectionError(': Failed to establish it",
                "ERROR: No matching distribution found for torch==2.13.0",
            ],
            "check the network",
        ),
        (["ERROR: No matching distribution found for torch==2.13.0"], "has no torch==2.13.0 for this system"),
        (["OSError: [WinError 5] Access is denied: 'c10.dll'"], "close Chorus"),
        (["OSError: [WinError 206] The filename or extension is too long"], "short folder such as %USERPROFILE%"),
        (["OSError: [WinError 1114] A dynamic link library (DLL) initialization routine failed"], "vc_redist.x64.exe"),
    ],
)
def test_a_failure_is_told_by_its_cause(said, remedy):
    assert remedy in installing.explain(said)


def test_a_failure_of_another_kind_is_not_explained():
    assert installing.explain(["error: metadata-generation-failed", "[WinError 55]"]) is None
