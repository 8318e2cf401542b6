"""Reads and writes tensors without trusting files: safetensors headers are validated, pickles never run code.

Does not import torch at import, so that the window can inspect files, too.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from modules.config.atomic_file import new_file
from modules.config.errors import first_line
from modules.config.regular_file import check_regular, open_regular
from modules.weights.errors import UNSAFE_PICKLE, WeightsError

if TYPE_CHECKING:
    from torch import Tensor

METADATA = "__metadata__"
SAFETENSORS = ".safetensors"
MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors library; the largest models need about 1 MB
PICKLE_SUFFIXES = (".ckpt", ".pt", ".pth", ".bin")
BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8, "F16": 16, "BF16": 16, "F32": 32, "F64": 64, "C64": 64,
}  # fmt: skip


def read_header(path: str | Path) -> dict[str, dict[str, Any]]:
    """The validated header of a safetensors file, without reading tensors.

    Returns name -> {"dtype": str, "shape": list[int], "data_offsets": [begin, end]} in bytes, and always "__metadata__"
    -> dict[str, str]. Raises WeightsError if the file is missing, has another format, is truncated or inconsistent.
    Source: the description of the format, https://huggingface.co/docs/safetensors.
    """
    try:
        size = os.path.getsize(path)
        with open_regular(path) as file:
            return _header(path, file, size)
    except OSError as error:
        raise _unreadable(path, error) from error


def _header(path: str | Path, file: BinaryIO, size: int) -> dict[str, dict[str, Any]]:
    """See `read_header`. path: for messages. file, size: of what holds it."""
    start = file.read(64)
    reason = _other_format(start, size)
    if reason:
        raise WeightsError(f"'{path}': {reason}.")
    length = int.from_bytes(start[:8], "little")
    if length > min(size - 8, MAX_HEADER_BYTES):
        raise _damaged(path, f"its header claims {length} bytes, but the file has {size}")
    file.seek(8)
    text = file.read(length)
    header = _parse(path, text)
    metadata = header.setdefault(METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _damaged(path, "its metadata is not a map of strings")
    tensors = {name: entry for name, entry in header.items() if name != METADATA}
    for name, entry in tensors.items():
        _check_entry(path, name, entry)
    _check_layout(path, tensors, size - 8 - length)
    return header


def tensor_shapes(header: Mapping[str, dict[str, Any]]) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every tensor in a header returned by `read_header`."""
    return {name: tuple(entry["shape"]) for name, entry in header.items() if name != METADATA}


def tensor_types(header: Mapping[str, dict[str, Any]]) -> set[str]:
    """The types of the tensors in a header returned by `read_header`, as the format calls them: "F32", "BF16" ..."""
    return {entry["dtype"] for name, entry in header.items() if name != METADATA}


def load_tensors(path: str | Path, names: Iterable[str] | None = None) -> dict[str, Tensor]:
    """Loads the tensors of a file to the CPU: all of them, or those in `names`.

    The header of a safetensors file is validated first. `.ckpt`, `.pt`, `.pth` and `.bin` are unpickled with
    `weights_only=True` only; a `state_dict` inside is unwrapped, and other values than tensors are ignored.
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
        raise WeightsError(f"'{path}': has no tensor '{missing[0]}'; choose a file of the expected kind.")
    if is_pickle:
        return {name: tensors[name] for name in wanted}
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            return {name: file.get_tensor(name) for name in wanted}
    except SafetensorError as error:
        raise _damaged(path, first_line(error).rstrip(".")) from error


def load_finite(path: str | Path, names: Iterable[str] | None = None) -> dict[str, Tensor]:
    """`load_tensors` of an adapter, of which a single infinite value would spoil a whole model.

    Raises WeightsError, naming the tensor, if one holds NaN or infinity.
    """
    tensors = load_tensors(path, names)
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not tensor.float().isfinite().all():
            raise WeightsError(
                f"'{path}': its tensor '{name}' holds NaN or infinity, as after a training that diverged; choose an "
                "intact file."
            )
    return tensors


def check_pickle(path: str | Path) -> None:
    """Raises WeightsError if `load_tensors` would reject the contents of a pickle, without unpickling it."""
    try:
        if _unsafe_names(path):
            raise _unsafe(path)
    except OSError as error:
        raise _unreadable(path, error) from error
    except WeightsError:
        raise
    except Exception as error:  # not a checkpoint, or truncated: torch's reader raises anything
        raise _unsafe(path) from error


def _unsafe_names(path: str | Path) -> list[str]:
    """What a pickle would call or make that is not allowed."""
    import torch
    from torch import _weights_only_unpickler
    from torch.serialization import get_unsafe_globals_in_checkpoint

    with open_regular(path) as file:
        if file.read(1) != b"\x80":
            return get_unsafe_globals_in_checkpoint(path)
        # the format of PyTorch before 1.6: a number, a version, the system, the object, the storages' keys
        file.seek(0)
        names = set().union(*(_weights_only_unpickler.get_globals_in_pkl(file) for _ in range(5)))
    allowed = _weights_only_unpickler._get_allowed_globals().keys()
    storages = {f"torch.{name}" for name in vars(torch) if name.endswith("Storage")}
    return sorted(names - allowed - storages)


def save_tensors(path: str | Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Writes a safetensors file atomically.

    Tensors that share memory are saved separately. metadata: "format" is set to "pt", which some programs need.
    Raises OSError if writing fails.
    """
    from safetensors.torch import save_file

    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with new_file(path) as temporary:  # directly to disk; serializing in memory would double its use
        with errors_of_the_disk(path):
            save_file(_separate(tensors), temporary, metadata={"format": "pt", **(metadata or {})})
        _sort_metadata(temporary)


def tensors_to_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """The content of a safetensors file in memory."""
    from safetensors.torch import save

    return save(_separate(tensors))


def tensors_from_bytes(data: bytes, source: str) -> dict[str, Tensor]:
    """The tensors of what `tensors_to_bytes` has returned. source: where it comes from, for the message.

    Raises WeightsError, after looking at the header only, if it is anything else.
    """
    from safetensors.torch import load

    _header(source, io.BytesIO(data), len(data))
    return load(data)


def _sort_metadata(path: Path) -> None:
    """Sorts the metadata in a file's header, which the library writes in random order, so that equal runs save equal
    files."""
    with open(path, "r+b") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        header[METADATA] = dict(sorted(header[METADATA].items()))
        text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
        file.seek(8)
        file.write(text.ljust(length))  # reordered JSON has the same length, so the tensors keep their offsets


@contextlib.contextmanager
def errors_of_the_disk(path: str | Path) -> Iterator[None]:
    """Context that converts a SafetensorError caused by the disk to the original OSError. path: named in the error."""
    from safetensors import SafetensorError

    try:
        yield
    except SafetensorError as error:
        found = re.search(r"([^:]*) \(os error (\d+)\)", str(error))
        if found is None:
            raise
        number = int(found[2])  # on Windows a Windows error number, which is what the last argument of OSError is for
        raise OSError(number, found[1].strip(), os.fspath(path), number) from error


def _separate(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous CPU copies that don't share memory, because safetensors rejects tied weights."""
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
        check_regular(path)
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise _unreadable(path, error) from error
    except Exception as error:  # a malformed or malicious pickle can raise anything
        raise _unsafe(path) from error
    if isinstance(loaded, dict) and isinstance(loaded.get("state_dict"), dict):
        loaded = loaded["state_dict"]
    entries = loaded.items() if isinstance(loaded, dict) else ()
    tensors = {name: value for name, value in entries if isinstance(name, str) and torch.is_tensor(value)}
    if not tensors:
        raise WeightsError(f"'{path}': has no named tensors; use the safetensors version of this model.")
    return tensors


def _unreadable(path: str | Path, error: OSError) -> WeightsError:
    return WeightsError(f"'{path}': can't be read ({error.strerror}); choose a safetensors file.")


def _unsafe(path: str | Path) -> WeightsError:
    return WeightsError(f"'{path}': {UNSAFE_PICKLE}; use the safetensors version of this model.")


def _other_format(start: bytes, size: int) -> str | None:
    """What a file starting with `start` is and what to do, if it is not a safetensors file; None if it may be one."""
    text = start.lstrip().lower()
    if size == 0:
        return "is empty; download or copy it again"
    if start.startswith(b"version https://git-lfs"):
        return "is a Git LFS pointer, not the model itself; run 'git lfs pull' or download the file"
    if text.startswith((b"<!doctype", b"<html", b"<?xml")):
        return "is a web page, not a model; download it again, after signing in if required"
    if start.startswith((b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04")) and start[8:9] != b"{":
        return "is a pickled checkpoint, not safetensors; use the safetensors version of this model"
    if start.startswith(b"GGUF"):
        return "is a GGUF file, which model.denoiser alone takes; use the safetensors version of this model"
    if size < 8 or start[8:9] != b"{":
        return "is not a safetensors file; choose one that ends in .safetensors"
    return None


def _damaged(path: str | Path, reason: str) -> WeightsError:
    return WeightsError(f"'{path}': is a damaged safetensors file, {reason}; download or export it again.")


def _parse(path: str | Path, text: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        entries = dict(pairs)
        if len(entries) < len(pairs):
            # Parsers differ in which of the two they use, so the validated entry might not be the loaded one.
            raise _damaged(path, "a name occurs twice in its header")
        return entries

    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=unique)
        if b"\\u" in text:  # the only way to write half of a surrogate pair, which no other reader accepts
            json.dumps(header, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise _damaged(path, "its header is not readable JSON") from error
    if not isinstance(header, dict):
        raise _damaged(path, "its header is not a table of tensors")
    return header


def _check_entry(path: str | Path, name: str, entry: Any) -> None:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise _damaged(path, f"tensor '{name}' lacks a dtype, shape or offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in BITS:
        raise _damaged(path, f"tensor '{name}' has the unknown dtype {dtype!r}")
    if not _are_counts(shape) or not _are_counts(offsets) or len(offsets) != 2:
        raise _damaged(path, f"the shape or offsets of tensor '{name}' are not integers")
    # Elements of 4 and 6 bits are packed, so only the tensor as a whole must fill whole bytes.
    if math.prod(shape) * BITS[dtype] != (offsets[1] - offsets[0]) * 8:
        raise _damaged(path, f"tensor '{name}' of shape {shape} and dtype {dtype} does not match its offsets")


def _are_counts(numbers: Any) -> bool:
    # Limits, so that a malicious header can't make computing the product of a shape slow.
    if not isinstance(numbers, list) or len(numbers) > 64:
        return False
    return all(type(number) is int and 0 <= number < 1 << 63 for number in numbers)


def _check_layout(path: str | Path, tensors: Mapping[str, dict[str, Any]], data_bytes: int) -> None:
    """Checks that tensors are contiguous and fill the file, without overlaps or gaps that could hide other data."""
    position = 0
    for begin, end, name in sorted((*entry["data_offsets"], name) for name, entry in tensors.items()):
        if begin != position:
            raise _damaged(path, f"tensor '{name}' does not start where the previous one ends")
        position = end
    if position != data_bytes:
        raise _damaged(path, f"its tensors need {position} bytes, but it has {data_bytes}")
