"""Frozen norm layers without casts, beside those of PyTorch and diffusers."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from modules.layers.frozen_norms import fuse_norms
from modules.layers.training_passes import compared_prediction
from tests.support import frozen_norm_runs
from tests.support.frozen_norm_runs import KINDS, LEFT, given, norm_of, results
from tests.support.RankPool import RankPool

ROUNDING = 2**-8  # of bfloat16, relative


def fused(layer):
    fuse_norms(twin := copy.deepcopy(nn.Sequential(layer)))
    return twin[0]


@pytest.fixture(scope="module")
def gpu(tmp_path_factory):
    pool = RankPool(1, tmp_path_factory.mktemp("pretended_gpu"))
    yield pool
    pool.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", [1, 3])
def test_in_float32_they_compute_what_diffusers_does(kind, batch):
    layer = norm_of(kind, torch.float32)
    inputs = given(layer, batch, torch.float32)
    for one, other in zip(results(fused(layer), inputs), results(layer, inputs), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6 * float(other.abs().max()))


@pytest.mark.parametrize(
    ("kind", "batch"), [(kind, batch) for kind in KINDS for batch in ([1, 3] if "Ada" in kind else [1])]
)
def test_under_autocast_they_round_to_bfloat16_in_fewer_operations(kind, batch, gpu):
    (found,) = gpu.run(frozen_norm_runs.under_autocast, kind=kind, batch=batch)
    plain, fused = found["plain"], found["fused"]
    assert fused["operations"] < plain["operations"]
    assert fused["dtype"] == "torch.bfloat16"
    assert max(fused["errors"]) < 1.2 * ROUNDING


@pytest.mark.parametrize("case", LEFT)
def test_what_they_would_compute_worse_or_not_at_all_is_left_as_it_was(case, gpu):
    (found,) = gpu.run(frozen_norm_runs.left, case=case)
    assert found["fused"] == found["plain"]


@pytest.mark.parametrize("kind", KINDS)
def test_samples_are_computed_as_diffusers_does_and_compared_predictions_as_steps(kind):
    layer = norm_of(kind, torch.bfloat16)
    inputs = given(layer, 1, torch.bfloat16)
    twin = fused(layer)
    in_step = twin(*inputs)
    with torch.no_grad():
        assert torch.equal(twin(*inputs), layer(*inputs))
    with compared_prediction():
        assert torch.equal(twin(*inputs), in_step)
