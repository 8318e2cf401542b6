"""The checks of scripts/gpu_tests.py as tests, and a run of every family, on an NVIDIA GPU."""

from __future__ import annotations

import pytest
import torch

from modules.families.registry import FAMILIES
from scripts.gpu.cases import NotHere, measure_cases
from scripts.gpu.families import train_family
from scripts.gpu.parts import RIGHT, parts_of

pytestmark = pytest.mark.gpu

GPU = "cuda:0"
# families: below, in two precisions; pytest: this very run; memory: the presets take as long as they are given
LEFT_OUT = ("families", "pytest", "memory")
CHECKS = [check for part in parts_of(RIGHT) if part.name not in LEFT_OUT for check in part.checks]


@pytest.mark.parametrize("check", [*CHECKS, "runs:bitsandbytes"])
def test_a_check_finds_nothing_wrong(check):
    results = list(measure_cases(check, GPU))
    assert [result for result in results if result["ok"] is False] == []
    if all(result["ok"] is None for result in results):
        pytest.skip(results[0]["text"])


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_run_trains_validates_samples_and_saves(family, precision):
    if precision == "bf16" and not torch.cuda.is_bf16_supported(including_emulation=False):
        pytest.skip("this GPU does not compute in bfloat16")
    try:
        found = train_family(family, GPU, precision)
    except NotHere as reason:
        pytest.skip(str(reason))
    assert found["problems"] == []
