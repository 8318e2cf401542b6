"""What surrounds the capture of a CUDA graph, with a graph that is not there."""

from __future__ import annotations

import contextlib
import warnings

import pytest
import torch

from modules.trainer.CudaCapture import CudaCapture
from modules.trainer.TrainingPass import TrainingPass

PASS = TrainingPass(torch.ones(1), 1, ())


class NoGraph:
    """In place of torch.cuda.CUDAGraph: its replay adds 1 to `sums`."""

    sums = torch.zeros(1)

    def replay(self) -> None:
        self.sums += 1


@pytest.fixture
def capture(monkeypatch) -> CudaCapture:
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", NoGraph)
    monkeypatch.setattr(torch.cuda, "graph", lambda *_args, **_options: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda mode: None)
    return CudaCapture(torch.device("cpu"))


def test_a_replay_copies_its_inputs_to_their_place_and_its_result_out_of_the_pool(capture):
    inputs = [torch.arange(3.0), torch.ones(2, 3).t()]
    seen = []

    def function(values):
        seen.extend(values)
        return NoGraph.sums

    replay = capture(function, inputs)
    others = [torch.full((3,), 7.0), torch.full((3, 2), 5.0)]
    first, second = replay(others), replay(others)
    assert [value.stride() for value in seen] == [value.stride() for value in inputs]
    assert all(torch.equal(own, value) for own, value in zip(seen, others, strict=True))
    assert (first.item(), second.item()) == (1, 2)


def test_a_wait_is_told_with_its_line_and_other_warnings_are_still_heard(capture):
    def run():
        warnings.warn_explicit("called a synchronizing CUDA operation", UserWarning, "/a/b/models/flux.py", 12)
        warnings.warn("another", UserWarning, stacklevel=1)
        return PASS

    with pytest.warns(UserWarning, match="another") as heard:
        result, waits = capture.watched(run)
    assert (result, waits, len(heard)) == (PASS, "b/models/flux.py:12", 1)


def test_a_pass_that_does_not_wait_is_not_suspected(capture):
    assert capture.watched(lambda: PASS) == (PASS, "")
