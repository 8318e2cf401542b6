"""The predicted time of a step on several GPUs, in cases that can be counted by hand."""

import pytest

from modules.machine.scaling import BUCKET_BYTES, Fabric, Work, ddp_seconds, efficiency, fsdp_seconds, linked

SPEED = 4.0  # bytes per second of a link, such that the numbers are simple


def fabric(reduce: float = 0.0, gather: float = 0.0, scatter: float = 0.0, overlaps: bool = True) -> Fabric:
    """Collectives that take so long whatever their size."""
    return Fabric(lambda size: reduce, lambda size: gather, lambda size: scatter, overlaps)


def test_a_ring_sends_each_byte_twice_in_an_all_reduce_and_once_otherwise():
    links = linked(4, SPEED, 0.5)
    assert links.all_gather(16) == links.reduce_scatter(16) == 3 * (4 / SPEED + 0.5)
    assert links.all_reduce(16) == 2 * links.all_gather(16)
    assert linked(1, SPEED, 0.5).all_reduce(16) == 0


def test_a_tree_has_fewer_hops_than_a_ring_of_many_ranks():
    links = linked(64, SPEED, 0.5)
    assert links.all_gather(0) == 63 * 0.5
    assert links.all_reduce(0) == 2 * 6 * 0.5
    assert links.all_reduce(1e6) == pytest.approx(2 * links.all_gather(1e6))  # large ones take the ring


@pytest.mark.parametrize(
    ("reduce", "expected"),
    [
        (0.0, 9.0),
        (1.0, 10.0),  # only the last bucket is not hidden: the backward pass of a bucket takes 2 s
        (2.0, 11.0),
        (5.0, 3 + 2 + 3 * 5.0),  # from the first bucket on, the link is busy
    ],
)
def test_ddp_hides_all_but_the_last_bucket_behind_the_backward_pass(reduce, expected):
    work = Work(seconds=9.0, gradient_bytes=3 * BUCKET_BYTES, weight_bytes=0, num_blocks=3)
    assert ddp_seconds(work, fabric(reduce)) == pytest.approx(expected)
    assert ddp_seconds(work, fabric(reduce, overlaps=False)) == pytest.approx(9 + 3 * reduce)


@pytest.mark.parametrize(
    ("gather", "scatter", "expected"),
    [
        (0.0, 0.0, 9.0),
        (0.5, 0.0, 10.0),  # the first block of each pass
        (0.0, 0.5, 9.5),  # the last gradients
        (1.0, 1.0, 12.0),  # the backward pass of a block, 2 s, hides the next gather and a scatter
        (4.0, 0.0, 3 * 4 + 1 + 3 * 4 + 2),  # the link is busy but for a block at the end of each pass
    ],
)
def test_fsdp_hides_all_but_the_first_gather_of_a_pass_and_the_last_gradients(gather, scatter, expected):
    work = Work(seconds=9.0, gradient_bytes=3, weight_bytes=3, num_blocks=3)
    assert fsdp_seconds(work, fabric(gather=gather, scatter=scatter)) == pytest.approx(expected)
    without = fsdp_seconds(work, fabric(gather=gather, scatter=scatter, overlaps=False))
    assert without == pytest.approx(9 + 3 * (2 * gather + scatter))


def test_efficiency_falls_with_ranks_and_rises_with_links():
    work = Work(seconds=1.0, gradient_bytes=5e9, weight_bytes=5e9, num_blocks=20)
    for step in (ddp_seconds, fsdp_seconds):
        by_ranks = [efficiency(step, work, linked(count, 10e9, 1e-5)) for count in (1, 2, 8, 64)]
        assert by_ranks == sorted(by_ranks, reverse=True)
        assert by_ranks[0] == pytest.approx(1)
        by_links = [efficiency(step, work, linked(8, speed, 1e-5)) for speed in (3e9, 25e9, 300e9)]
        assert by_links == sorted(by_links)
        assert by_links[-1] > 0.95
