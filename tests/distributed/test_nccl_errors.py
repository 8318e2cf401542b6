"""NCCL errors are reported with their cause and remedy instead of torch's source location."""

from __future__ import annotations

import pytest
import torch.distributed as dist

from modules.distributed import setup_distributed as module
from modules.distributed.environments import SpawnEnvironment
from modules.distributed.errors import RanksError
from modules.distributed.nccl_errors import explain_nccl_error, has_known_cause, is_nccl_error


def nccl_error(kind: str, last: str = "") -> dist.DistBackendError:
    start = "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, unhandled error, NCCL version 2.27.7"
    end = f"Last error:\n{last}\nException raised from create at NCCLUtils.cpp:94" if last else ""
    return dist.DistBackendError(f"{start}\n{kind}: System call or external library call failed. \n{end}")


SMALL_SHM = nccl_error("ncclSystemError", "Error while creating shared memory segment /dev/shm/nccl-Le (size 9637888)")
DUPLICATE = nccl_error("ncclInvalidUsage", "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000")
NO_PEERS = nccl_error("ncclUnhandledCudaError", "Cuda failure 217 'peer access is not supported between two devices'")
GONE = nccl_error("ncclRemoteError", "socketProgress: Connection closed by remote peer node-b<51159>")
SILENT = nccl_error("ncclSystemError")


@pytest.mark.parametrize(
    ("error", "is_known", "words"),
    [
        (SMALL_SHM, True, r"\(Error while creating shared memory .* 9637888\)\): .* --shm-size=8g or --ipc=host"),
        (DUPLICATE, True, r"\(Duplicate GPU detected : rank 1 and rank 0 .*\): give each rank a GPU of its own"),
        (NO_PEERS, True, r"\(Cuda failure 217 'peer access is not supported .*\): set NCCL_P2P_DISABLE=1"),
        (GONE, False, r"closed by remote peer node-b<51159>\): set NCCL_DEBUG=INFO"),
        (SILENT, False, r"\(ncclSystemError: System call or external library call failed\): set NCCL_DEBUG=INFO"),
    ],
)
def test_cause_and_remedy_are_one_sentence(error, is_known, words):
    assert is_nccl_error(error)
    assert has_known_cause(error) is is_known
    text = explain_nccl_error(error)
    assert "\n" not in text
    with pytest.raises(RanksError, match=words):
        raise RanksError(text)


@pytest.mark.parametrize("error", [ValueError("NCCL error in: a prompt"), dist.DistStoreError("the store is gone")])
def test_other_errors_are_not_nccl_errors(error):
    assert not is_nccl_error(error)


def test_an_nccl_error_while_joining_does_not_blame_the_network():
    environment = SpawnEnvironment(1, 1, 2, 2, 0, 1, "127.0.0.1", 12355, "run", 0)
    words = r"^Rank 1: NCCL can't connect the GPUs \(Error while .*\): .*--shm-size=8g"
    with pytest.raises(RanksError, match=words), module._explained(environment):
        raise SMALL_SHM
