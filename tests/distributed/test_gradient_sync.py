from __future__ import annotations

import pytest
import torch

from tests.support import rank_scenarios

EXACT = 1 + 2 / 3  # 1/3 on rank 0 and 4/3 on rank 1


@pytest.fixture(params=[False, True], ids=["in the last pass", "after it"])
def after(request) -> bool:
    return request.param


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_gradients_are_summed_in_the_requested_precision(two_ranks, precision, after):
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    # as transferred: half of each rank's value
    expected = 2 * sum(torch.tensor((rank + 1 / 3) / 2).to(dtype) for rank in range(2)).float().item()
    first, second = two_ranks.run(rank_scenarios.reduce_gradients, reduce_precision=precision, exchanges_after=after)
    assert first == second == [expected]
    assert expected == pytest.approx(EXACT, rel=torch.finfo(dtype).eps)
    assert precision == "fp32" or expected != pytest.approx(EXACT, rel=1e-6)  # lower precision than fp32


def test_fp16_does_not_overflow_with_many_ranks(two_ranks, after):
    options = {"value": torch.finfo(torch.float16).max, "exchanges_after": after}
    first, second = two_ranks.run(rank_scenarios.reduce_gradients, reduce_precision="fp16", **options)
    assert first == second == [2 * options["value"]]
