#!/usr/bin/env python3
"""Make `.venv`, the environment that Chorus runs in: once, and again only when what it is made from has changed.

Owns the folder `.venv` in the repository root and these files in it: `setup.json` (the stamp: what has been installed),
`setup.log` (what venv and pip printed) and `setup.lock` (held while an installation runs).

Here and in `scripts/setup`: standard library only, and nothing that Python 3.6 cannot parse, so that a Python too old
for Chorus says so in a sentence and not in a SyntaxError. Annotations are quoted for the same reason.
"""

import argparse
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.setup.installing import check_not_running, check_torch, create_venv, pip_install
from scripts.setup.lock import exclusive
from scripts.setup.place import CPU_BYTES, CUDA_BYTES, check_free_space, check_length, has_long_paths, is_synced
from scripts.setup.saying import say_nothing, say_on_terminal
from scripts.setup.SetupError import SetupError
from scripts.setup.stamp import digest, interpreter_behind, read_stamp, venv_python, write_stamp
from scripts.setup.system import (
    NEWEST_PYTHON,
    OLDEST_PYTHON,
    check_python,
    check_tkinter,
    check_venv_module,
    exit_code,
    has_tkinter,
    has_venv_module,
    this_python,
)
from scripts.setup.torch_build import describe_build, has_cuda, has_nvidia_gpu, list_gpus, torch_index

ROOT = Path(__file__).resolve().parents[1]


def main(argv: "list[str] | None" = None, root: Path = ROOT) -> int:
    """Parse the flags, set up `.venv` below `root` if need be; returns the exit code."""
    parser = argparse.ArgumentParser(description="Make or renew .venv, the environment that Chorus runs in.")
    parser.add_argument("--test", action="store_true", help="install what the tests need as well")
    parser.add_argument("--ui", action="store_true", help="refuse a Python without tkinter, which the window needs")
    parser.add_argument("--quiet", action="store_true", help="print errors only")
    parser.add_argument("--print-python", action="store_true", help="print the path of the environment's Python")
    args = parser.parse_args(argv)
    say = say_nothing if args.quiet else say_on_terminal
    names = ["requirements.txt"] + (["requirements-test.txt"] if args.test else [])
    try:
        index = wanted_index(root)
        if not is_ready(root, names, index):
            check_python(this_python())
            check_length(root, sys.platform, has_long_paths)
            check_venv_module(has_venv_module())
            check_tkinter(has_tkinter(sys.executable), args.ui, args.test, say)
            if is_synced(root, os.environ, Path.home()):
                say(
                    f"Warning: {root} is in a folder that OneDrive or iCloud Drive copies, with gigabytes of packages, "
                    "backups and models: better move Chorus to another folder before you use it."
                )
            set_up(root, names, index, say)
        elif args.ui:
            check_tkinter(has_tkinter(str(venv_python(root))), args.ui, args.test, say)
    except SetupError as error:
        for line in error.log_lines:
            print(f"    {line}", file=sys.stderr)
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        place = error.filename or root
        print(f"{place}: {error.strerror or error}; close what uses it and start again.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nSet-up interrupted; the next start resumes it.", file=sys.stderr)
        return 130
    if args.print_python:
        print(venv_python(root))
    return 0


def set_up(
    root: Path,
    names: "list[str]",
    index: str,
    say: "Callable[[str], None]",
    create: "Callable[[Path], None] | None" = None,
    install: "Callable[[Path, list[str], Callable[[str], None]], None] | None" = None,
) -> None:
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
        check_not_running(root)
        stamp = read_stamp(root)
        (venv / "setup.log").write_text("", encoding="utf-8")
        # pip keeps an installed torch of the right version, whichever build it is: another one needs a new environment
        if stamp.get("torch_index", index) != index or not _is_usable(root):
            say(f"Making the environment of Chorus in {venv}")
            _empty(venv, keep=("setup.lock", "setup.log"))
            if _torch_requirement(root):
                check_free_space(venv, CUDA_BYTES if has_cuda(index, sys.platform) else CPU_BYTES)
            create(root)
        # what was installed no longer counts from here on; the build of torch does, also after an interruption
        write_stamp(root, index, {})
        say(f"Installing packages: several GB and minutes the first time; details in {venv / 'setup.log'}")
        say(describe_build(index, sys.platform, has_nvidia_gpu(), list_gpus()))
        digests = {name: digest(root / name) for name in names}  # of what is installed, should a file change meanwhile
        for arguments in pip_arguments(root, names, index):
            install(root, arguments, say)
        if _torch_requirement(root):
            check_torch(root)
        write_stamp(root, index, digests)
        say("The environment is ready.")


def wanted_index(root: Path) -> str:
    """Where the torch of this machine comes from, as `torch_index` says it."""
    installed = read_stamp(root).get("torch_index")
    return torch_index(sys.platform, os.environ, installed, has_nvidia_gpu, list_gpus)


def is_ready(root: Path, names: "list[str]", index: str) -> bool:
    """Whether `.venv` holds what the files `names` ask for. Reads small files only: every start waits for it."""
    stamp = read_stamp(root)
    interpreter = interpreter_behind(root)
    installed = stamp.get("requirements", {})
    return (
        interpreter is not None
        and stamp.get("interpreter") == interpreter
        and stamp.get("torch_index") == index
        and all(installed.get(name) == digest(root / name) for name in names)
    )


def pip_arguments(root: Path, names: "list[str]", index: str) -> "list[list[str]]":
    """What follows `pip install` in each of its calls: torch alone if it comes from `index`, then the files `names`."""
    calls = []
    torch = _torch_requirement(root)
    if index and torch:
        calls.append([torch, "--index-url", index])
    calls.append([argument for name in names for argument in ("-r", str(root / name))])
    return calls


def _torch_requirement(root: Path) -> "str | None":
    requirements = (root / "requirements.txt").read_text(encoding="utf-8")
    found = re.search(r"^torch\s*==\s*[^\s;#]+", requirements, re.MULTILINE)
    return found.group(0) if found else None


def _is_usable(root: Path) -> bool:
    # whether there is an environment with pip and a Python that will do, whoever made it
    python = venv_python(root)
    fits = f"{OLDEST_PYTHON} <= sys.version_info[:2] <= {NEWEST_PYTHON}"
    probe = f"import sys, pip._internal.cli.main; sys.exit(not {fits})"
    return python.exists() and exit_code([str(python), "-c", probe]) == 0


def _empty(folder: Path, keep: "tuple[str, ...]") -> None:
    for entry in folder.iterdir():
        if entry.name in keep:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(str(entry))
        else:
            entry.unlink()


if __name__ == "__main__":
    sys.exit(main())
