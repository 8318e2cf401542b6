"""Tensors from and to files, without trusting the files: safetensors with a header checked here, never a pickle's code.

No torch at import, so that the window can look into a file too.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modules.config.atomic_file import new_file
from modules.weights.errors import WeightsError

if TYPE_CHECKING:
    from torch import Tensor

METADATA = "__metadata__"
MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors library; the largest models need about 1 MB
PICKLE_SUFFIXES = (".ckpt", ".pt", ".pth", ".bin")
BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8, "F16": 16, "BF16": 16, "F32": 32, "F64": 64, "C64": 64,
}  # fmt: skip


def read_header(path: str | Path) -> dict[str, dict[str, Any]]:
    """The checked header of a safetensors file; the tensors themselves are not read.

    Returns name -> {"dtype": str, "shape": list[int], "data_offsets": [begin, end]} in bytes, and "__metadata__" ->
    dict[str, str], which is always there. Raises WeightsError if the file is missing, is something else, is cut short
    or contradicts itself.
    Source: the format's description, https://huggingface.co/docs/safetensors.
    """
    try:
        size = os.path.getsize(path)
        with open(path, "rb") as file:
            start = file.read(64)
            reason = _other_format(start, size)
            if reason:
                raise WeightsError(f"'{path}': {reason}.")
            length = int.from_bytes(start[:8], "little")
            if length > min(size - 8, MAX_HEADER_BYTES):
                raise _damaged(path, f"its header claims {length} bytes and the file has {size}")
            file.seek(8)
            text = file.read(length)
    except OSError as error:
        raise _unreadable(path, error) from error
    header = _parse(path, text)
    metadata = header.setdefault(METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _damaged(path, "its metadata is not a list of texts")
    tensors = {name: entry for name, entry in header.items() if name != METADATA}
    for name, entry in tensors.items():
        _check_entry(path, name, entry)
    _check_layout(path, tensors, size - 8 - length)
    return header


def tensor_shapes(header: Mapping[str, dict[str, Any]]) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every tensor in what `read_header` gave."""
    return {name: tuple(entry["shape"]) for name, entry in header.items() if name != METADATA}


def load_tensors(path: str | Path, names: Iterable[str] | None = None) -> dict[str, Tensor]:
    """The tensors of a file, on the CPU; all of them, or those in `names`.

    A safetensors file's header is checked first. `.ckpt`, `.pt`, `.pth` and `.bin` are unpickled with
    `weights_only=True` and in no other way; a `state_dict` inside is unwrapped, what is no tensor is left out.
    Raises WeightsError if the file can't be used or lacks one of `names`.
    """
    is_pickle = Path(path).suffix.lower() in PICKLE_SUFFIXES
    if is_pickle:
        tensors = _load_pickle(path)
        present = set(tensors)
    else:
        present = set(tensor_shapes(read_header(path)))
    wanted = sorted(present) if names is None else list(names)
    missing = [name for name in wanted if name not in present]
    if missing:
        raise WeightsError(f"'{path}': has no tensor '{missing[0]}'; choose a file of the kind that is asked for.")
    if is_pickle:
        return {name: tensors[name] for name in wanted}
    from safetensors import safe_open

    with safe_open(path, framework="pt", device="cpu") as file:
        return {name: file.get_tensor(name) for name in wanted}


def check_pickle(path: str | Path) -> None:
    """Raises WeightsError where `load_tensors` would refuse a pickle for what it holds; nothing is unpickled.

    Of PyTorch's format before 1.6 only the attempt tells.
    """
    from torch.serialization import get_unsafe_globals_in_checkpoint

    try:
        with open(path, "rb") as file:
            if file.read(1) == b"\x80":  # the old format
                return
        if not get_unsafe_globals_in_checkpoint(path):
            return
    except OSError as error:
        raise _unreadable(path, error) from error
    except (ValueError, RuntimeError) as error:  # no checkpoint, or a part of one
        raise _unsafe(path) from error
    raise _unsafe(path)


def save_tensors(path: str | Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file; until it is complete and on the disk, `path` is what it was.

    Tensors that share memory are written once each. metadata: texts; "format" is set to "pt", which some readers ask.
    Raises OSError if the disk refuses.
    """
    from safetensors.torch import save_file

    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with new_file(path) as temporary:  # straight to the disk: as bytes in memory, gigabytes would be held twice
        with errors_of_the_disk(path):
            save_file(_separate(tensors), temporary, metadata={"format": "pt", **(metadata or {})})
        _sort_metadata(temporary)


def _sort_metadata(path: Path) -> None:
    """Sorts the metadata in a file's header: the library writes it in random order, so equal runs would differ."""
    with open(path, "r+b") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        header[METADATA] = dict(sorted(header[METADATA].items()))
        text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
        file.seek(8)
        file.write(text.ljust(length))  # the same JSON in another order, so the tensors behind it stay in place


@contextlib.contextmanager
def errors_of_the_disk(path: str | Path) -> Iterator[None]:
    """Inside, an OSError that safetensors hides in an error of its own comes out as what it is. path: named in it."""
    from safetensors import SafetensorError

    try:
        yield
    except SafetensorError as error:
        found = re.search(r"([^:]*) \(os error (\d+)\)", str(error))
        if found is None:
            raise
        number = int(found[2])  # as Windows counts them on Windows, where the last argument says so
        raise OSError(number, found[1].strip(), os.fspath(path), number) from error


def _separate(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous CPU tensors, none of which shares memory with another: safetensors refuses tied weights."""
    separate: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        copy = tensor.detach().cpu().contiguous()
        storage = copy.untyped_storage()
        if storage.data_ptr() in seen or storage.nbytes() != copy.nbytes:
            copy = copy.clone()
        seen.add(copy.untyped_storage().data_ptr())
        separate[name] = copy
    return separate


def _load_pickle(path: str | Path) -> dict[str, Tensor]:
    import torch

    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise _unreadable(path, error) from error
    except Exception as error:  # a malformed or hostile pickle raises whatever its bytes lead to
        raise _unsafe(path) from error
    if isinstance(loaded, dict) and isinstance(loaded.get("state_dict"), dict):
        loaded = loaded["state_dict"]
    entries = loaded.items() if isinstance(loaded, dict) else ()
    tensors = {name: value for name, value in entries if isinstance(name, str) and torch.is_tensor(value)}
    if not tensors:
        raise WeightsError(f"'{path}': holds no named tensors; use the safetensors version of this model.")
    return tensors


def _unreadable(path: str | Path, error: OSError) -> WeightsError:
    return WeightsError(f"'{path}': can't be read ({error.strerror}); choose a safetensors file.")


def _unsafe(path: str | Path) -> WeightsError:
    return WeightsError(
        f"'{path}': is damaged, or holds more than weights, which could run code; "
        "use the safetensors version of this model."
    )


def _other_format(start: bytes, size: int) -> str | None:
    """What a file is that begins with `start` and is no safetensors file, and what to do; None if it may be one."""
    text = start.lstrip().lower()
    if size == 0:
        return "is empty; download or copy it again"
    if start.startswith(b"version https://git-lfs"):
        return "is a Git LFS pointer, not the model itself; run 'git lfs pull' or download the file"
    if text.startswith((b"<!doctype", b"<html", b"<?xml")):
        return "is a web page, not a model; download it again, signed in where that is asked"
    if start.startswith((b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04")) and start[8:9] != b"{":
        return "is a pickled checkpoint, not safetensors; use the safetensors version of this model"
    if start.startswith(b"GGUF"):
        return "is a GGUF file, not safetensors; use the safetensors version of this model"
    if size < 8 or start[8:9] != b"{":
        return "is not a safetensors file; choose one that ends in .safetensors"
    return None


def _damaged(path: str | Path, reason: str) -> WeightsError:
    return WeightsError(f"'{path}': is a damaged safetensors file, {reason}; download or export it again.")


def _parse(path: str | Path, text: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        entries = dict(pairs)
        if len(entries) < len(pairs):
            # Readers differ in which of the two they take: one that checks might not see what another loads.
            raise _damaged(path, "a name occurs twice in its header")
        return entries

    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, "its header is not readable JSON") from error
    if not isinstance(header, dict):
        raise _damaged(path, "its header is no table of tensors")
    return header


def _check_entry(path: str | Path, name: str, entry: Any) -> None:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise _damaged(path, f"tensor '{name}' lacks a type, shape or place")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in BITS:
        raise _damaged(path, f"tensor '{name}' is of the unknown type {dtype!r}")
    if not _are_counts(shape) or not _are_counts(offsets) or len(offsets) != 2:
        raise _damaged(path, f"the shape or place of tensor '{name}' is not made of whole numbers")
    # 4 and 6 bit numbers are packed without gaps, so only the whole tensor has to fill whole bytes.
    if math.prod(shape) * BITS[dtype] != (offsets[1] - offsets[0]) * 8:
        raise _damaged(path, f"tensor '{name}' of shape {shape} and type {dtype} does not fill its place")


def _are_counts(numbers: Any) -> bool:
    # The limits keep a hostile header from making the product of a shape a long computation.
    if not isinstance(numbers, list) or len(numbers) > 64:
        return False
    return all(type(number) is int and 0 <= number < 1 << 63 for number in numbers)


def _check_layout(path: str | Path, tensors: Mapping[str, dict[str, Any]], data_bytes: int) -> None:
    """Tensors lie one behind the other and fill the file: no overlap, no gap in which something could hide."""
    position = 0
    for begin, end, name in sorted((*entry["data_offsets"], name) for name, entry in tensors.items()):
        if begin != position:
            raise _damaged(path, f"tensor '{name}' does not begin where the one before it ends")
        position = end
    if position != data_bytes:
        raise _damaged(path, f"its tensors need {position} bytes and {data_bytes} are there")
