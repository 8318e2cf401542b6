"""The C library's heap, told that a training needs again in every step what it freed in the last."""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # from glibc's malloc.h
_NEVER_TRIM = -1
_LARGEST_HEAP_CHUNK = 32 * 2**20  # bytes; glibc's own upper limit


def keep_freed_memory() -> None:
    """Keeps freed memory in the process instead of giving it back to the system, where the C library is glibc.

    For trainings on the CPU: gradients and activations freed at a step's end were given back and came in again page by
    page, 40,000 page faults and 4 % of the time of a step (full training of 23 million parameters).
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library; TypeError on Windows
        return
    # both: setting the one switches off glibc's own adjustment of the other
    mallopt(_M_TRIM_THRESHOLD, _NEVER_TRIM)
    mallopt(_M_MMAP_THRESHOLD, _LARGEST_HEAP_CHUNK)
