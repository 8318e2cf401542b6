from __future__ import annotations

import time
from pathlib import Path

import pytest

from modules.machine.processor_time import displaced_seconds


@pytest.mark.skipif(not Path("/proc/thread-self/schedstat").exists(), reason="needs Linux's times of threads")
def test_time_without_a_processor_is_neither_computing_nor_waiting():
    started, computed, displaced = time.perf_counter(), time.thread_time(), displaced_seconds()
    while time.thread_time() - computed < 0.05:
        pass
    displaced = displaced_seconds() - displaced
    assert 0 <= displaced <= time.perf_counter() - started - 0.04  # the last 0.01 s: what the clocks differ by
