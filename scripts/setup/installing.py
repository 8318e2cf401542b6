"""Making the environment and filling it, with all that venv and pip say in `.venv/setup.log`."""

import os
import subprocess
import sys
from pathlib import Path

from scripts.setup.saying import say_in_place, say_nothing, say_on_terminal
from scripts.setup.SetupError import SetupError
from scripts.setup.stamp import venv_python


def create_venv(root: Path, options: "tuple[str, ...]" = ()) -> None:
    """Make `root/.venv`. options: further ones of `python -m venv`. Raises SetupError."""
    python = sys.executable
    if sys.prefix != sys.base_prefix:
        # this may be the Python of the very environment that is made anew
        python = getattr(sys, "_base_executable", python) if os.name == "nt" else os.path.realpath(python)
    code = _run_logged([python, "-m", "venv", str(root / ".venv"), *options], root, say_nothing)
    if code != 0:
        raise _failure(root, f"Making the environment in .venv failed (exit code {code})")


def pip_install(root: Path, arguments: "list[str]", say) -> None:
    """Run `pip install` with `arguments` in the environment; a line on the terminal shows how it goes on.

    Raises SetupError with the last lines of pip.
    """
    on_terminal = say is say_on_terminal and sys.stderr.isatty()
    command = [str(venv_python(root)), "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    code = _run_logged(command + arguments, root, say_in_place if on_terminal else say_nothing)
    if on_terminal:
        say_in_place("")
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
