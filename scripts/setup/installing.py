"""Making the environment and filling it, with all that venv and pip say in `.venv/setup.log`."""

import collections
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from scripts.setup.saying import say_in_place, say_nothing, say_on_terminal
from scripts.setup.SetupError import SetupError
from scripts.setup.stamp import venv_python

SHOWN_LINES, SEARCHED_LINES = 15, 200

# What venv, pip or torch say when they fail, and what to do about it. The first that is found counts: pip goes on after
# some of what it says, and of a package that it could not look for it says in the end that there is none.
CAUSES = (
    (r"No space left on device|WinError 112\b", "the disk is full: free some space"),
    (
        r"CERTIFICATE_VERIFY_FAILED",
        "the certificate of the package index is not trusted, as behind a company's proxy: set PIP_CERT to the file of "
        "its certificates, or use Python 3.12 or newer, whose pip takes those of the system",
    ),
    (r"ProxyError|407 Proxy", "the proxy refused the connection: set HTTPS_PROXY to its address, name and password"),
    (
        r"NewConnectionError|NameResolutionError|ConnectTimeout|ReadTimeout|Connection(Reset|Aborted)Error|getaddrinfo",
        "the package index can't be reached: check the network",
    ),
    (r"WinError 206\b", "a path is too long for Windows: move Chorus to a short folder such as %USERPROFILE%\\chorus"),
    (r"WinError (5|32)\b", "a file is in use: close Chorus and whatever else runs from this folder"),
    (
        r"WinError (126|1114)\b|msvcp140|vcruntime140",
        "Microsoft's Visual C++ runtime is missing or too old: install https://aka.ms/vc14/vc_redist.x64.exe",
    ),
    (
        r"No matching distribution found for (?P<package>\S+)",
        "the package index has no {package} for this system and Python: see CHORUS_TORCH_INDEX, PIP_INDEX_URL, or take "
        "another Python",
    ),
)


# pip would compile the 16,000 files on one core. Like pip, it passes over files that are for another Python.
COMPILE = "import compileall, sysconfig; compileall.compile_dir(sysconfig.get_path('purelib'), quiet=2, workers=0)"


def create_venv(root: Path, options: "tuple[str, ...]" = ()) -> None:
    """Make `root/.venv`. options: further ones of `python -m venv`. Raises SetupError."""
    python = sys.executable
    if sys.prefix != sys.base_prefix:
        # this may be the Python of the very environment that is made anew
        python = getattr(sys, "_base_executable", python) if os.name == "nt" else os.path.realpath(python)
    code, lines = _run_logged([python, "-m", "venv", str(root / ".venv"), *options], root, say_nothing)
    if code != 0:
        raise _failure(root, f"Making the environment in .venv failed (exit code {code})", lines)


def pip_install(root: Path, arguments: "list[str]", say: "Callable[[str], None]") -> None:
    """Run `pip install` with `arguments` in the environment; a line on the terminal shows how it goes on.

    Raises SetupError with the last lines of pip.
    """
    on_terminal = say is say_on_terminal and sys.stderr.isatty()
    options = ["--disable-pip-version-check", "--no-input", "--no-compile"]
    command = [str(venv_python(root)), "-m", "pip", "install", *options]
    # pip downloads to the disk of the environment, which has been found large enough: /tmp is often small, in memory.
    downloads = root / ".venv" / "downloads"
    downloads.mkdir(exist_ok=True)
    try:
        code, lines = _run_logged(
            command + arguments,
            root,
            say_in_place if on_terminal else say_nothing,
            # PIP_USER: some systems ask pip for installations per user, which it refuses in an environment
            {"PIP_USER": "0", "TMPDIR": str(downloads)},
        )
    finally:
        shutil.rmtree(str(downloads), ignore_errors=True)
    if code == 0:
        if on_terminal:
            say_in_place("Compiling the packages on all cores")
        _run_logged([str(venv_python(root)), "-c", COMPILE], root, say_nothing)
    if on_terminal:
        say_in_place("")
    if code != 0:
        raise _failure(root, f"Installing the packages failed (pip's exit code {code})", lines)


def check_torch(root: Path) -> None:
    """Raises SetupError if the torch that has been installed can't be loaded, as by lack of a library of the system."""
    code, lines = _run_logged([str(venv_python(root)), "-c", "import torch"], root, say_nothing)
    if code != 0:
        raise _failure(root, "PyTorch is installed but can't be loaded", lines, "look at the lines above")


def check_not_running(root: Path, platform: str = sys.platform) -> None:
    """Raises SetupError if something runs in the environment and the system keeps its files from being replaced."""
    if platform == "win32" and _is_running(venv_python(root)):
        raise SetupError(
            "Chorus is running from this folder, and Windows lets nobody replace packages that are in use; close its "
            "window, wait for its training or stop it, and start again."
        )


def explain(lines: "list[str]") -> "str | None":
    """Why a command that said this has failed, and what to do; None if that is not known."""
    text = "\n".join(lines)
    for pattern, remedy in CAUSES:
        found = re.search(pattern, text)
        if found:
            return remedy.format(**found.groupdict())
    return None


def _run_logged(
    command: "list[str]", root: Path, echo: "Callable[[str], None]", variables: "dict[str, str] | None" = None
) -> "tuple[int, list[str]]":
    """Run `command` without a keyboard, each line of it to the log and to `echo`; its exit code and last lines.

    variables: for its environment.
    """
    environ = dict(os.environ, PYTHONUNBUFFERED="1", **(variables or {}))
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environ
    )
    assert process.stdout is not None  # it is a pipe
    lines = collections.deque(maxlen=SEARCHED_LINES)  # type: collections.deque[str] # annotated as Python 3.6 allows
    with open(str(_log(root)), "a", encoding="utf-8") as log, process:
        for raw in process.stdout:
            line = raw.decode("utf-8", "replace").rstrip()
            log.write(line + "\n")
            log.flush()
            lines.append(line)
            echo(line)
    return process.returncode, list(lines)


def _is_running(program: Path) -> bool:
    try:
        with open(str(program), "r+b"):  # refused while a process runs it
            return False
    except FileNotFoundError:
        return False
    except OSError:
        return True


def _failure(
    root: Path, what: str, lines: "list[str]", otherwise: str = "check the network and the free disk space"
) -> SetupError:
    return SetupError(
        f"{what}: {explain(lines) or otherwise}, and start again. See {_log(root)}.", lines[-SHOWN_LINES:]
    )


def _log(root: Path) -> Path:
    return root / ".venv" / "setup.log"
