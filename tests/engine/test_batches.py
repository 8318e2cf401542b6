"""How many samples a batch has, whatever its form, and how its tensors come to the device."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from modules.engine.batches import num_samples, to_device

PACKED = pack_sequence([torch.zeros(7), torch.zeros(5), torch.zeros(2)])


@dataclass(frozen=True)
class Pair:
    text: str
    image: Any


@pytest.mark.parametrize(
    ("batch", "size"),
    [
        (torch.zeros(3, 2), 3),
        ((torch.zeros(4), torch.zeros(4)), 4),
        ({"text": ["a", "b"], "image": torch.zeros(2, 1)}, 2),
        ([["a"], torch.zeros(5)], 5),
        (Pair("a", torch.zeros(6)), 6),
        (PACKED, 3),
        ("text", 0),
    ],
)
def test_without_a_plan_the_first_tensor_tells_the_number_of_samples(batch, size):
    assert num_samples(batch) == size


@pytest.mark.parametrize(
    "batch",
    [
        (torch.zeros(20, 3, 8), torch.zeros(3)),  # time first
        (torch.zeros(20, 3, 8), torch.zeros(20, 3)),
        (PACKED, torch.zeros(3)),
        ([torch.zeros(3, 16, 16), torch.zeros(3, 24, 24), torch.zeros(3, 8, 8)], ["a", "b", "c"]),
        {"nodes": torch.zeros(40, 5), "edges": torch.zeros(2, 90), "graph": torch.zeros(3)},
        ["a", "b", "c"],
        "three sentences",
    ],
)
def test_what_the_loader_has_put_together_counts_in_any_form(batch):
    assert num_samples(batch, 3) == 3


def test_a_sample_that_collate_fn_leaves_out_is_not_counted():
    assert num_samples((torch.zeros(6, 4), torch.zeros(6)), 8) == 6


def test_all_tensors_of_a_batch_are_moved_to_the_device():
    shared = defaultdict(list, a=[torch.zeros(1)])
    batch = {
        "a": [torch.zeros(1), "text"],
        "b": (torch.ones(1), {"c": torch.ones(2)}),
        "pair": Pair("a", torch.ones(2)),
    }
    moved, group = to_device(batch, torch.device("meta")), to_device(shared, torch.device("meta"))
    assert moved["a"][0].is_meta
    assert moved["a"][1] == "text"
    assert moved["b"][1]["c"].is_meta
    assert moved["pair"].image.is_meta
    assert group["a"][0].is_meta
    assert group["new"] == []
    assert not batch["a"][0].is_meta
    assert not shared["a"][0].is_meta
