"""Checks the disks that a run writes to: permissions, free space and speed."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path

from modules.machine.doctor.CheckResult import CheckResult
from modules.session.byte_sizes import spoken_bytes
from modules.session.writable import look_for_obstacles

GB = 10**9
FEW_BYTES = 10 * GB  # a model and a few backups
TOO_FEW_BYTES = GB // 2
FEW_FILES = 10_000  # the caches contain one file per image
SLOW_BYTES_PER_SECOND = 30e6  # a backup of 10 GB would take over five minutes

TEST_BYTES = 64 * 2**20
PORTION = bytes(range(256)) * 2**14  # 4 MiB
TEST_SECONDS = 3.0


def check_disk(setting: str, folder: str) -> CheckResult:
    """Check the folder of a setting, which need not exist. Takes seconds, or forever if a network share is gone."""
    name = setting.replace("_dir", " disk")
    path = Path(os.path.abspath(os.path.expanduser(folder)))
    remedy = f"Free some space, or choose another folder for {setting}."
    try:
        look_for_obstacles(path)
        existing = next(parent for parent in (path, *path.parents) if parent.is_dir())
        free = shutil.disk_usage(existing).free
        if free < TOO_FEW_BYTES:
            text = f"{path}: {spoken_bytes(free)} free, too little to train"
            return CheckResult(name, "fails", text, remedy, values={"folder": str(path), "free_bytes": free})
        write, read = measure_speed(existing)
    except OSError as error:
        text = f"{path} can't be written to: {error.strerror or error}"
        return CheckResult(name, "fails", text, f"Choose another folder for {setting}, or fix its permissions.")
    values = {"folder": str(path), "free_bytes": free, "write_bytes_per_s": write, "read_bytes_per_s": read}
    speeds = f"writes {spoken_bytes(write)}/s" + ("" if read is None else f", reads {spoken_bytes(read)}/s")
    text = f"{path}: {spoken_bytes(free)} free, {speeds}"
    files = _free_files(existing)
    if free < FEW_BYTES:
        return CheckResult(name, "warning", f"{text}; little for models and backups", remedy, values=values)
    if files is not None and files < FEW_FILES:
        return CheckResult(name, "warning", f"{text}; room for only {files} more files", remedy, values=values)
    if write < SLOW_BYTES_PER_SECOND:
        remedy = f"Choose a folder on a faster disk for {setting}: backups and the cache wait for this one."
        return CheckResult(name, "warning", f"{text}; slow", remedy, values=values)
    return CheckResult(name, "ok", text, values=values)


def measure_speed(folder: Path) -> tuple[float, float | None]:
    """(write, read) speed in bytes per second, measured with a temporary file. Raises OSError.

    The read speed is None if the system can't drop the file from its cache, so that it would be read from memory.
    """
    with tempfile.TemporaryFile(dir=folder, prefix=".chorus-", buffering=0) as file:
        start = time.perf_counter()
        written = 0
        while written < TEST_BYTES and time.perf_counter() - start < TEST_SECONDS:
            written += file.write(PORTION)
        os.fsync(file.fileno())
        write_speed = written / (time.perf_counter() - start)
        if not hasattr(os, "posix_fadvise"):  # available on Linux and a few others
            return write_speed, None
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        file.seek(0)
        start = time.perf_counter()
        while file.read(len(PORTION)) and time.perf_counter() - start < TEST_SECONDS:
            pass
        return write_speed, file.tell() / (time.perf_counter() - start)


def _free_files(folder: Path) -> int | None:
    """How many more files fit; None if the file system has no such limit or does not report it."""
    if not hasattr(os, "statvfs"):
        return None
    facts = os.statvfs(folder)
    return facts.f_favail if facts.f_files else None
