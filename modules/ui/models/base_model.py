"""Examine a base model's path or name. No Tk; call it in a thread, as a disk may be slow."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from pathlib import Path

from modules.config.errors import ModelFileError
from modules.config.model_index import index_file, read_model_index
from modules.machine.hub import HUB_NAME
from modules.session.byte_sizes import spoken_bytes

HASHED_BYTES = 1 << 22  # between two looks at whether the hash is still wanted
MAX_HEADER_BYTES = 1 << 25
DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E4M3": "float8", "F8_E5M2": "float8"}


def examine_base(base: str) -> tuple[str, bool]:
    """A sentence on what is at a base model's path or name, and whether it is unusable."""
    if not base.strip():
        return "", False  # reported by the checks of the settings
    path = Path(os.path.expanduser(base))
    try:
        if path.is_dir():
            return _look_at_folder(path)
        if path.is_file():
            if path.suffix.lower() != ".safetensors":
                return f"model.base {base!r} is not a .safetensors file: choose one, or a diffusers folder.", True
            return f"A file of {_size_text(path, path.stat().st_size)}.", False
    except OSError as error:
        return f"model.base {base!r} can't be read: {error.strerror}; choose another.", True
    if is_on_hub(base):
        return "A model of the Hugging Face Hub.", False
    return f"model.base {base!r} isn't a folder, a file or a model on the Hub: choose another.", True


def is_on_hub(base: str) -> bool:
    """Whether it is a name on the Hub; one that is a path here, too, is that path."""
    return HUB_NAME.fullmatch(base) is not None and not os.path.exists(os.path.expanduser(base))


def base_bytes(base: str) -> int | None:
    """The size of a model's local files; None for a name on the Hub. Call it in a thread."""
    path = Path(os.path.expanduser(base))
    try:
        files = [path] if path.is_file() else []
        if index_file(path).is_file():  # else it may be a half-typed path, such as the root of the disk
            files = list(path.rglob("*.safetensors"))
        return sum(file.stat().st_size for file in files) or None
    except OSError:  # an unreadable folder, which the model tab reports
        return None


def sha256_of(path: Path, is_cancelled: threading.Event) -> str:
    """The SHA-256 of a file in hexadecimal digits, by which sites of models know it; "" if cancelled.

    Its first ten digits are what they call AutoV2. Raises OSError. Call it in a thread: it reads the whole file.
    """
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while not is_cancelled.is_set():
            part = file.read(HASHED_BYTES)
            if not part:
                return digest.hexdigest()
            digest.update(part)
    return ""


def _look_at_folder(path: Path) -> tuple[str, bool]:
    index = index_file(path)
    if not index.is_file():
        return f"model.base '{path}' has no model_index.json: choose the folder that holds it.", True
    try:
        name = read_model_index(path)["_class_name"]
    except ModelFileError as error:
        return f"model.base {error}", True
    files = {file: file.stat().st_size for file in path.rglob("*.safetensors")}
    size = f", {_size_text(max(files, key=files.__getitem__), sum(files.values()))}" if files else ""
    return f"A diffusers folder: {name}{size}.", False


def _size_text(largest: Path, num_bytes: int) -> str:
    """The size, and the precision of the weights in the largest file if that can be read."""
    dtype = main_dtype(largest)
    return spoken_bytes(num_bytes) + (f" in {dtype}" if dtype else "")


def main_dtype(path: Path) -> str:
    """The dtype of most bytes in a .safetensors file, such as "float16"; "" if its header is damaged.

    The header is JSON after its length in 8 bytes: https://huggingface.co/docs/safetensors
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        try:
            entries = json.loads(file.read(length)) if 0 < length <= MAX_HEADER_BYTES else {}
            num_bytes: dict[str, int] = {}
            for name, entry in entries.items():
                if name != "__metadata__":
                    start, end = entry["data_offsets"]
                    num_bytes[entry["dtype"]] = num_bytes.get(entry["dtype"], 0) + end - start
        except (ValueError, AttributeError, KeyError, TypeError):
            return ""
    name = max(num_bytes, key=num_bytes.__getitem__, default="")
    return DTYPES.get(name, name)
