from __future__ import annotations

from tests.support import buffer_scenarios


def test_buffers_that_ranks_change_differently_get_rank_0s_values_after_every_step(two_ranks):
    (start, *first), (other_start, *second) = two_ranks.run(buffer_scenarios.train_counting, steps=9)
    assert start == other_start  # each rank had drawn its own
    for step, (own, other) in enumerate(zip(first, second, strict=True), start=1):
        assert own.pop("scratch") != other.pop("scratch")  # not in the state dict: no part of the model's state
        if step < 8:  # it differs from step 6 on, which ranks notice when they compare after step 8
            del own["late"], other["late"]
        assert own == other
        assert own["seen"][0] == step
        assert own["broadcast"] == (2 if step < 8 else 3)  # what stays or changes alike is not sent
