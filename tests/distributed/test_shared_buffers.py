from __future__ import annotations

from tests.support import buffer_scenarios


def test_buffers_that_ranks_change_differently_get_rank_0s_values_after_every_step(two_ranks):
    (start, *first), (other_start, *second) = two_ranks.run(buffer_scenarios.train_counting, steps=9)
    assert start == other_start  # each rank had initialized it differently
    for step, (own, other) in enumerate(zip(first, second, strict=True), start=1):
        assert own.pop("scratch") != other.pop("scratch")  # not persistent, so not part of the model's state
        if step < 8:  # it differs from step 6 on, which the comparison after step 8 finds
            del own["late"], other["late"]
        assert own == other
        assert own["seen"][0] == step
        assert own["broadcast"] == (2 if step < 8 else 3)  # buffers that are equal on all ranks are not sent
