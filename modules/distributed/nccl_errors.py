"""Explains NCCL errors, whose cause is in their last lines, after "Last error:"."""

from __future__ import annotations

# Text of an NCCL error whose cause is on this machine -> its remedy.
_REMEDIES = {
    "shared memory": "give the container more shared memory with --shm-size=8g or --ipc=host",
    "Duplicate GPU": "give each rank a GPU of its own, or set distributed_backend to gloo",
    "Cuda failure": "set NCCL_P2P_DISABLE=1 to avoid direct links between GPUs, or update the driver",
}
_OTHER_REMEDY = "set NCCL_DEBUG=INFO to see where, try NCCL_P2P_DISABLE=1, or set distributed_backend to gloo"


def is_nccl_error(error: BaseException) -> bool:
    return isinstance(error, RuntimeError) and "NCCL error in" in str(error)


def has_known_cause(error: BaseException) -> bool:
    """Whether the cause is on this machine; otherwise, the error may result from the failure of another rank."""
    return any(sign in _cause(error) for sign in _REMEDIES)


def explain_nccl_error(error: BaseException) -> str:
    """One sentence with the cause and the remedy."""
    cause = _cause(error)
    remedy = next((remedy for sign, remedy in _REMEDIES.items() if sign in cause), _OTHER_REMEDY)
    return f"NCCL can't connect the GPUs ({cause}): {remedy}."


def _cause(error: BaseException) -> str:
    """NCCL's last error; without one, the kind of error."""
    text, _, last = str(error).partition("Last error:")
    lines = [line.strip() for line in last.splitlines() if line.strip()] or text.strip().splitlines()[-1:]
    return lines[0].rstrip(".")
