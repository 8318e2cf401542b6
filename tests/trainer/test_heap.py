"""Freed memory stays in the process; measured by the page faults of a separate process."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import resource, sys
import numpy as np
from modules.trainer.heap import keep_freed_memory

if sys.argv[1] == "keep":
    keep_freed_memory()

def page_faults_of_a_round():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    arrays = [np.ones(2 * 2**20) for _ in range(8)]  # 8 x 16 MiB
    del arrays
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

print([page_faults_of_a_round() for _ in range(4)][-1])
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's heap can be told")
def test_memory_freed_in_one_step_is_there_in_the_next():
    def faults(how: str) -> int:
        command = [sys.executable, "-c", PROGRAM, how]
        return int(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout)

    assert faults("keep") < faults("leave") / 10
