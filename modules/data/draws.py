"""Counter-based randomness: every draw is a hash of its purpose, so that no generator state has to be kept.

A draw names its parts, as in `uniform(seed, epoch, sample_id, repeat, "timestep")`. It is the same on every rank,
platform and numpy version, and for a single sample or an array of samples, so resuming needs no generator state.
"""

import operator
from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b
from typing import SupportsIndex

import numpy as np

MASK = 0xFFFF_FFFF_FFFF_FFFF
GAMMA = 0x9E37_79B9_7F4A_7C15  # 2**64 / golden ratio, splitmix64's increment

Part = SupportsIndex | str


def hash64(*parts: Part) -> int:
    """Hashes `parts`, in order, to 64 bits: an int in [0, 2**64).

    parts: integers (taken modulo 2**64) and strings.
    Raises TypeError for other types: floats are not the same on all platforms.
    Source: Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators" (splitmix64).
    """
    return int(_hash(parts))


def hash64_array(*parts: Part | np.ndarray) -> np.ndarray:
    """The `hash64` of each element, as uint64. parts: also integer arrays, which broadcast against each other."""
    return np.asarray(_hash(parts), np.uint64)


def uniform(*parts: Part) -> float:
    """A number in [0, 1) with 53 random bits."""
    return (hash64(*parts) >> 11) * 2.0**-53


def uniform_array(*parts: Part | np.ndarray) -> np.ndarray:
    """The `uniform` of each element, as float64; parts as of `hash64_array`."""
    return (hash64_array(*parts) >> 11) * 2.0**-53


def torch_seed(*parts: Part) -> int:
    """A seed in [0, 2**63) for `torch.Generator.manual_seed`."""
    return hash64(*parts) >> 1


def _hash(parts: Iterable[Part | np.ndarray]) -> int | np.ndarray:
    """The same arithmetic for ints and arrays, so that a sample draws alike alone and among others."""
    state: int | np.ndarray = 0
    for part in parts:
        bits = part & MASK if type(part) is int else _as_bits(part)
        state = _mix(((state ^ bits) + GAMMA) & MASK)
    return state


def _mix(x: int | np.ndarray) -> int | np.ndarray:
    """splitmix64's finalizer, a bijection of 64 bits, for ints and uint64 arrays (which wrap on overflow)."""
    x = ((x ^ (x >> 30)) * 0xBF58_476D_1CE4_E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D0_49BB_1331_11EB) & MASK
    return x ^ (x >> 31)


def _as_bits(part: Part | np.ndarray) -> int | np.ndarray:
    """`part` as an int in [0, 2**64) or a uint64 array."""
    if isinstance(part, str):
        return _string_bits(part)
    if isinstance(part, np.ndarray) and part.ndim:
        if part.dtype.kind not in "iu":
            raise TypeError(f"a draw takes integers and strings, not an array of {part.dtype}")
        return part.astype(np.uint64)
    return operator.index(part) & MASK


@lru_cache(maxsize=1024)
def _string_bits(text: str) -> int:
    # file names need not be UTF-8; Python represents the invalid bytes as surrogates
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")
