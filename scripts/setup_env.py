#!/usr/bin/env python3
"""Make `.venv`, the environment that Chorus runs in: once, and again only when what it is made from has changed.

Owns the folder `.venv` in the repository root and these files in it: `setup.json` (the stamp: what has been installed),
`setup.log` (what venv and pip printed) and `setup.lock` (held while an installation runs).

Standard library only, and nothing that Python 3.6 cannot parse: a Python too old for Chorus shall say so in a
sentence and not in a SyntaxError. Annotations are quoted for the same reason.
"""

import argparse
import contextlib
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST_PYTHON = (3, 10)

# PyPI holds the CUDA build of torch for Linux, but for Windows only the CPU build. Since 2.12, PyTorch calls CUDA 13.0
# its stable build for cards from Turing on (https://github.com/pytorch/pytorch/blob/main/RELEASE.md).
WINDOWS_CUDA_INDEX = "https://download.pytorch.org/whl/cu130"

# What to do when a part of Python that the system packages separately is missing.
REMEDIES = {
    "venv": {
        "debian": "run `sudo apt install python3-venv`",
        "macos": "run `brew install python`",
        "windows": "run the Python installer again and tick pip",
        "other": "install your system's package with Python's venv and ensurepip",
    },
    "tkinter": {
        "debian": "run `sudo apt install python3-tk`",
        "fedora": "run `sudo dnf install python3-tkinter`",
        "arch": "run `sudo pacman -S tk`",
        "macos": "run `brew install python-tk`",
        "windows": "run the Python installer again and tick tcl/tk",
        "other": "install your system's package with Python's tkinter",
    },
}


class SetupError(Exception):
    """The environment can't be made; str() is one sentence with the remedy, `log_lines` what was printed before."""

    def __init__(self, sentence, log_lines=()):
        super().__init__(sentence)
        self.log_lines = list(log_lines)


def main(argv: "list[str] | None" = None, root: Path = ROOT) -> int:
    """Parse the flags, set up `.venv` below `root` if need be; returns the exit code."""
    parser = argparse.ArgumentParser(description="Make or renew .venv, the environment that Chorus runs in.")
    parser.add_argument("--test", action="store_true", help="install what the tests need as well")
    parser.add_argument("--ui", action="store_true", help="refuse a Python without tkinter, which the window needs")
    parser.add_argument("--quiet", action="store_true", help="print errors only")
    parser.add_argument("--print-python", action="store_true", help="print the path of the environment's Python")
    args = parser.parse_args(argv)
    say = _say_nothing if args.quiet else _say
    names = ["requirements.txt"] + (["requirements-test.txt"] if args.test else [])
    try:
        index = torch_index(sys.platform, os.environ, has_nvidia_gpu)
        if not is_ready(root, names, index):
            check_python(sys.version_info)
            check_venv_module(_has_venv_module())
            check_tkinter(_has_tkinter(sys.executable), args.ui, args.test, say)
            set_up(root, names, index, say)
        elif args.ui:
            check_tkinter(_has_tkinter(str(venv_python(root))), args.ui, args.test, say)
    except SetupError as error:
        for line in error.log_lines:
            print(f"    {line}", file=sys.stderr)
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nSet-up interrupted; the next start goes on with it.", file=sys.stderr)
        return 130
    if args.print_python:
        print(venv_python(root))
    return 0


def set_up(root: Path, names: "list[str]", index: str, say, create=None, install=None) -> None:
    """Make the environment if there is no working one, install the files `names` into it, and stamp it.

    names: requirements files in `root`.
    index: package index that torch comes from; "" is pip's own.
    say: called with each line for the person who waits.
    create: create(root), makes `root/.venv`; by default `create_venv`.
    install: install(root, arguments, say), runs `pip install` with them; by default `pip_install`.
    Raises SetupError. Whatever interrupts it: the stamp is missing, so that the next call goes on.
    """
    create, install = create or create_venv, install or pip_install
    venv = root / ".venv"
    with exclusive(venv / "setup.lock", say):
        if is_ready(root, names, index):  # another process has done it while this one waited
            return
        stamp = read_stamp(root)
        (venv / "setup.log").write_text("", encoding="utf-8")
        # pip keeps an installed torch of the right version, whichever build it is: another one needs a new environment
        if stamp.get("torch_index", index) != index or not _is_usable(root):
            say(f"Making the environment of Chorus in {venv}")
            _empty(venv, keep=("setup.lock", "setup.log"))
            create(root)
        # what was installed no longer counts from here on; the build of torch does, also after an interruption
        write_stamp(root, index, {})
        say(f"Installing packages: some GB and minutes at first, details in {venv / 'setup.log'}")
        say("NVIDIA GPU found." if has_nvidia_gpu() else "No NVIDIA GPU found.")
        digests = {name: _digest(root / name) for name in names}  # of what is installed, should a file change meanwhile
        for arguments in pip_arguments(root, names, index):
            install(root, arguments, say)
        write_stamp(root, index, digests)
        say("The environment is ready.")


def is_ready(root: Path, names: "list[str]", index: str) -> bool:
    """Whether `.venv` holds what the files `names` ask for. Reads small files only: every start waits for it."""
    stamp = read_stamp(root)
    interpreter = interpreter_behind(root)
    installed = stamp.get("requirements", {})
    return (
        interpreter is not None
        and stamp.get("interpreter") == interpreter
        and stamp.get("torch_index") == index
        and all(installed.get(name) == _digest(root / name) for name in names)
    )


# --- the stamp


def read_stamp(root: Path) -> dict:
    """What `write_stamp` wrote; {} where there is none, or none that can be read."""
    try:
        stamp = json.loads((root / ".venv" / "setup.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):  # never set up, or damaged: set up again
        return {}
    return stamp if isinstance(stamp, dict) else {}


def write_stamp(root: Path, index: str, digests: "dict[str, str]") -> None:
    """Write down, atomically, what `.venv` is made from. digests: of each requirements file that is installed."""
    stamp = {"interpreter": interpreter_behind(root), "torch_index": index, "requirements": digests}
    target = root / ".venv" / "setup.json"
    partial = target.with_suffix(".json.partial")
    with open(str(partial), "w", encoding="utf-8") as file:
        json.dump(stamp, file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    os.replace(str(partial), str(target))


def venv_python(root: Path) -> Path:
    """The Python of the environment, there or not."""
    return root / ".venv" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def interpreter_behind(root: Path) -> "str | None":
    """The installed Python that the environment rests on; None when it is gone.

    It tells another version without starting it: an upgrade of Python is another path (python3 -> python3.12).
    """
    python = venv_python(root)
    if os.name == "nt":  # the file in the environment only starts the one in the folder named here
        try:
            config = (root / ".venv" / "pyvenv.cfg").read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        home = re.search(r"^home\s*=\s*(.+?)\s*$", config, re.MULTILINE)
        python = Path(home.group(1)) / "python.exe" if home else python
    python = Path(os.path.realpath(str(python)))
    return str(python) if python.is_file() else None


def _digest(requirements: Path) -> str:
    return hashlib.sha256(requirements.read_bytes()).hexdigest()


# --- which torch


def torch_index(platform: str, environ: "dict[str, str]", gpu_found) -> str:
    """The package index that torch comes from; "" when the one pip uses anyway has the right build.

    platform: as sys.platform. environ: CHORUS_TORCH_INDEX in it wins.
    gpu_found: called only where the answer depends on it, as nvidia-smi can take seconds.
    """
    chosen = environ.get("CHORUS_TORCH_INDEX", "").strip()
    if chosen:
        return chosen
    return WINDOWS_CUDA_INDEX if platform == "win32" and gpu_found() else ""


def pip_arguments(root: Path, names: "list[str]", index: str) -> "list[list[str]]":
    """What follows `pip install` in each of its calls: torch alone if it comes from `index`, then the files `names`."""
    calls = []
    torch = _torch_requirement(root / "requirements.txt")
    if index and torch:
        calls.append([torch, "--index-url", index])
    calls.append([argument for name in names for argument in ("-r", str(root / name))])
    return calls


def _torch_requirement(requirements: Path) -> "str | None":
    found = re.search(r"^torch\s*==\s*[^\s;#]+", requirements.read_text(encoding="utf-8"), re.MULTILINE)
    return found.group(0) if found else None


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


# --- what the system must bring


def check_python(version: "tuple[int, ...]") -> None:
    """Raises SetupError if `version` (as sys.version_info) is too old."""
    if tuple(version[:2]) < OLDEST_PYTHON:
        raise SetupError(
            f"Python {version[0]}.{version[1]} is too old for Chorus, which needs {'.'.join(map(str, OLDEST_PYTHON))} "
            "or newer; install one from https://www.python.org or with your package manager and start again."
        )


def check_venv_module(present: bool) -> None:
    """Raises SetupError if this Python can't make virtual environments (Debian packages that separately)."""
    if not present:
        raise SetupError(f"Python's venv module is missing or incomplete; {remedy('venv')} and start again.")


def check_tkinter(present: bool, for_window: bool, for_tests: bool, say) -> None:
    """Raises SetupError if the window is wanted without tkinter; the tests without it say so; training needs none."""
    if present:
        return
    sentence = f"Python's tkinter, which the window of Chorus needs, is missing; {remedy('tkinter')}"
    if for_window:
        raise SetupError(sentence + " and start again.")
    if for_tests:
        say("Warning: " + sentence + " to run the tests of the window.")


def remedy(part: str, platform: "str | None" = None, os_release: "str | None" = None) -> str:
    """What to do on this system when `part` of Python ("venv" or "tkinter") is missing.

    platform: as sys.platform. os_release: the text of /etc/os-release; both by default from this machine.
    """
    platform = platform or sys.platform
    if os_release is None:
        release = Path("/etc/os-release")
        os_release = release.read_text(encoding="utf-8") if release.exists() else ""
    system = {"darwin": "macos", "win32": "windows"}.get(platform)
    if system is None:
        ids = " ".join(re.findall(r"^ID(?:_LIKE)?=\"?([^\"\n]*)", os_release, re.MULTILINE)).split()
        system = next((name for name in ids if name in REMEDIES[part]), "debian" if "ubuntu" in ids else "other")
    return REMEDIES[part][system]


def _has_venv_module() -> bool:
    return importlib.util.find_spec("venv") is not None and importlib.util.find_spec("ensurepip") is not None


def _has_tkinter(python: str) -> bool:
    # really imported, and by that Python: a file of tkinter may be there without the library that it loads
    return _exit_code([python, "-c", "import tkinter"]) == 0


def _is_usable(root: Path) -> bool:
    # whether there is an environment with pip and a Python that is new enough, whoever made it
    python = venv_python(root)
    probe = f"import sys, pip._internal.cli.main; sys.exit(sys.version_info < {OLDEST_PYTHON})"
    return python.exists() and _exit_code([str(python), "-c", probe]) == 0


def _exit_code(command: "list[str]") -> int:
    try:
        return subprocess.call(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    except OSError:  # a file that can't be started, as a half-written one
        return -1


# --- doing it


def create_venv(root: Path, options: "tuple[str, ...]" = ()) -> None:
    """Make `root/.venv`. options: further ones of `python -m venv`. Raises SetupError."""
    python = sys.executable
    if sys.prefix != sys.base_prefix:
        # this may be the Python of the very environment that is made anew
        python = getattr(sys, "_base_executable", python) if os.name == "nt" else os.path.realpath(python)
    code = _run_logged([python, "-m", "venv", str(root / ".venv"), *options], root, _say_nothing)
    if code != 0:
        raise _failure(root, f"Making the environment in .venv failed (exit code {code})")


def pip_install(root: Path, arguments: "list[str]", say) -> None:
    """Run `pip install` with `arguments` in the environment; a line on the terminal shows how it goes on.

    Raises SetupError with the last lines of pip.
    """
    on_terminal = say is _say and sys.stderr.isatty()
    command = [str(venv_python(root)), "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    code = _run_logged(command + arguments, root, _say_in_place if on_terminal else _say_nothing)
    if on_terminal:
        _say_in_place("")
    if code != 0:
        raise _failure(root, f"Installing the packages failed (pip's exit code {code})")


def _run_logged(command: "list[str]", root: Path, echo) -> int:
    """Run `command` without a keyboard, each line of it to the log and to `echo`; returns its exit code."""
    # PIP_USER: some systems ask pip for installations per user, which it refuses in an environment
    environ = dict(os.environ, PIP_USER="0", PYTHONUNBUFFERED="1")
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environ
    )
    with open(str(root / ".venv" / "setup.log"), "a", encoding="utf-8") as log, process:
        for raw in process.stdout:
            line = raw.decode("utf-8", "replace").rstrip()
            log.write(line + "\n")
            log.flush()
            echo(line)
    return process.returncode


def _failure(root: Path, what: str) -> SetupError:
    log = root / ".venv" / "setup.log"
    lines = log.read_text(encoding="utf-8").splitlines()
    sentence = f"{what}; see the lines above or {log}, check the network and the free disk space, and start again."
    return SetupError(sentence, lines[-15:])


@contextlib.contextmanager
def exclusive(path: Path, say):
    """Hold the lock file `path`, after waiting for a process that holds it. A process that dies lets go of it."""
    try:
        path.parent.mkdir(exist_ok=True)
        lock = open(str(path), "a")  # noqa: SIM115 - closed below; what happens in the with block isn't this error
    except OSError as error:
        raise SetupError(
            f"{path} can't be written ({error.strerror}); put Chorus into a folder of your own and start again."
        ) from error
    with lock:
        if not _try_lock(lock):
            say("Another set-up of this folder is running; waiting for it to end.")
            while not _try_lock(lock):
                time.sleep(0.1)
        yield


def _try_lock(file) -> bool:
    try:
        if os.name == "nt":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # held by another process, in the words of fcntl and of msvcrt
        return False
    return True


def _empty(folder: Path, keep: "tuple[str, ...]") -> None:
    for entry in folder.iterdir():
        if entry.name in keep:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(str(entry))
        else:
            entry.unlink()


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # stdout is kept for --print-python


def _say_in_place(line: str) -> None:
    width = shutil.get_terminal_size().columns - 1
    print("\r" + line.strip()[:width].ljust(width) + ("" if line else "\r"), end="", file=sys.stderr, flush=True)


def _say_nothing(line: str) -> None:
    pass


if __name__ == "__main__":
    sys.exit(main())
