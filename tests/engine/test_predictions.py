"""What ranks exchange when they predict; the ranks are those of one process here."""

from __future__ import annotations

import pickle

import pytest
import torch

from modules.config.errors import UserError
from modules.distributed.errors import RanksError
from modules.distributed.Runtime import Runtime
from modules.engine.predictions import gather_predictions
from modules.weights.safe import tensors_to_bytes

DTYPES = ["bool", "uint8", "int16", "int64", "float16", "bfloat16", "float32", "float64", "complex64", "complex128"]


class Echo(Runtime):
    """The first of two ranks; the other one answers with `answer`, or what this one sends."""

    world_size = 2

    def __init__(self, answer: bytes | None = None):
        super().__init__(torch.device("cpu"))
        self._answer = answer

    def gather_bytes(self, data: bytes) -> list[bytes]:
        return [data, data if self._answer is None else self._answer]


class Bomb:
    def __reduce__(self):
        return pytest.fail, ("a pickle from another rank ran",)


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_of_every_kind_arrive_as_they_are(dtype):
    whole = torch.arange(24).reshape(2, 3, 4).to(getattr(torch, dtype))
    own = [whole, None, whole[:, :, 1:], whole[:0], whole[0, 0, 0], whole.conj(), whole.transpose(0, 1), whole]
    for found in gather_predictions(own, Echo()):
        for expected, part in zip(own, found, strict=True):
            assert part is None if expected is None else (part.dtype == whole.dtype and torch.equal(part, expected))


def test_a_rank_without_any_predictions_sends_none():
    assert gather_predictions([None, None], Echo()) == [[None, None]] * 2


def test_a_tensor_that_can_not_be_sent_is_refused_by_its_kind():
    with pytest.raises(UserError, match="returns a sparse_coo tensor, which ranks can't exchange; return a dense one"):
        gather_predictions([torch.eye(3).to_sparse()], Echo())


@pytest.mark.parametrize(
    "answer", [b"", pickle.dumps(Bomb()), b"\xff" * 100, tensors_to_bytes({"0": torch.ones(3)})[:-1]]
)
def test_what_another_rank_can_not_have_sent_runs_no_code_and_is_refused(answer):
    with pytest.raises(RanksError, match="What rank 1 sends is not its predictions"):
        gather_predictions([torch.ones(1)], Echo(answer))
