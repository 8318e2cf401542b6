"""What the environment in `.venv` is made from, as written down in `.venv/setup.json`."""

import hashlib
import json
import os
import re
from pathlib import Path


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


def digest(requirements: Path) -> str:
    """Of the content of a requirements file."""
    return hashlib.sha256(requirements.read_bytes()).hexdigest()
