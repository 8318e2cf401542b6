"""An environment for programs that are not ours: it sees the packages of this one, and adds what they need besides.

Nothing that is installed here is replaced or downloaded again, and nothing is added to it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from importlib.metadata import distributions, version
from pathlib import Path

from modules.config.errors import UserError

STAMP = "complete.txt"
MOST_LINES = 12


def torchvision_requirement() -> str:
    """That of the installed PyTorch: torchvision 0.(n + 15) is made for PyTorch 2.n."""
    major, minor = version("torch").split(".")[:2]
    if major != "2":
        raise UserError(f"peers knows which torchvision fits PyTorch 2, but not {version('torch')}.")
    return f"torchvision==0.{int(minor) + 15}.0"


def peer_python(folder: Path, requirements: Mapping[str, str], listed: Sequence[str] = ()) -> Path:
    """The interpreter of the environment in `folder`, made where it is not there yet.

    requirements: import -> requirement, of what may be missing beside the packages of this environment. listed: lines
    of a file of requirements, whose versions are installed even where this environment has others, but for PyTorch.
    Raises UserError where the environment can't be made, with the reason of pip.
    """
    shared = {one.name: one.version for one in distributions()}
    wanted = [requirement for requirement in requirements.values() if requirement.split("==")[0] not in shared]
    state = "\n".join([sys.version, *sys.path, *sorted(requirements.values()), *listed, version("torch")])
    key = hashlib.sha256(state.encode()).hexdigest()
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    stamp = folder / STAMP
    if stamp.exists() and stamp.read_text(encoding="ascii") == key:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    _share_packages(python)
    constraints = folder / "constraints.txt"
    constraints.write_text("".join(f"{name}=={held}\n" for name, held in sorted(shared.items())), encoding="utf-8")
    if wanted:
        _install(python, ["-c", str(constraints), *wanted])
    if listed:
        own = folder / "requirements.txt"
        own.write_text("\n".join(listed), encoding="utf-8")
        only_torch = folder / "torch.txt"
        only_torch.write_text(f"torch=={version('torch')}\n", encoding="utf-8")
        _install(python, ["-c", str(only_torch), "-r", str(own)])
    # not with the others: as a dependency, pip could take another PyTorch along
    _install(python, ["--no-deps", torchvision_requirement()])
    stamp.write_text(key, encoding="ascii")
    return python


def _share_packages(python: Path) -> None:
    """The packages of this interpreter can be imported, after those of the environment."""
    place = subprocess.check_output(
        [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], encoding="utf-8"
    )
    folders = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (Path(place.strip()) / "shared.pth").write_text("".join(f"{path}\n" for path in folders), encoding="utf-8")


def _install(python: Path, arguments: Sequence[str]) -> None:
    index = os.environ.get("CHORUS_TORCH_INDEX", "").strip()
    command = [str(python), "-m", "pip", "install", "-q", *(["--extra-index-url", index] if index else []), *arguments]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        encoding="utf-8", errors="replace", check=False,
    )  # fmt: skip
    if done.returncode:
        said = "\n".join(done.stdout.strip().splitlines()[-MOST_LINES:])
        wanted = ", ".join(
            argument for argument in arguments if "==" in argument or argument.endswith("requirements.txt")
        )
        raise UserError(f"peers needs {wanted}, which pip could not install:\n{said}")
