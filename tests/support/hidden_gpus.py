"""Hides the GPUs of this machine from all tests but those that are for one."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import MutableMapping, Sequence

WORKER = "PYTEST_XDIST_WORKER"  # set in the processes that pytest-xdist starts, which inherit the environment


def hide_gpus(arguments: Sequence[str], environment: MutableMapping[str, str]) -> None:
    """Empties CUDA_VISIBLE_DEVICES in the environment of pytest, unless its arguments choose the tests for a GPU.

    On a GPU, results that are compared bit for bit would differ. Nor could processes be forked that use CUDA: diffusers
    asks CUDA for its devices when it is imported. Call this before, since CUDA reads the variable once.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-m", default="")
    given, _ = parser.parse_known_args([*shlex.split(environment.get("PYTEST_ADDOPTS", "")), *arguments])
    if WORKER not in environment and not re.search(r"(?<!not )\bgpu\b", given.m):
        environment["CUDA_VISIBLE_DEVICES"] = ""
