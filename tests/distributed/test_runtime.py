from __future__ import annotations

import pytest
import torch
from torch import nn

from modules.config.errors import UserError
from modules.distributed.Runtime import Runtime, default_device


def test_on_one_rank_every_operation_is_the_identity():
    runtime = Runtime(torch.device("cpu"))
    module, values, plain = nn.Linear(2, 2), torch.tensor([1.0, 2.0]), {"a": [1]}
    assert runtime.prepare(module) is module
    norm = torch.tensor(3.0)
    assert all(got is given for got, given in zip(runtime.sum(values, norm), (values, norm), strict=True))
    assert runtime.broadcast(plain, "asking") is plain
    assert runtime.gather(plain, "asking") == [plain]
    assert runtime.begin()
    assert runtime.gradient_scale == 1.0
    assert (runtime.rank, runtime.local_rank, runtime.world_size, runtime.is_main) == (0, 0, 1, True)
    runtime.barrier("nothing to wait for")


def test_on_several_machines_the_device_label_has_the_node_rank():
    runtime = Runtime(torch.device("cpu"))
    assert runtime.device_label == "cpu"
    runtime.num_nodes, runtime.node_rank = 2, 1
    assert runtime.device_label == "1:cpu"


def test_its_context_managers_run_once_and_propagate_errors():
    runtime = Runtime(torch.device("cpu"))
    done = []
    with runtime.accumulate(last=False), runtime.loading_turn():
        done.append(1)
    assert done == [1]
    with pytest.raises(RuntimeError, match="inside"), runtime.loading_turn():
        raise RuntimeError("inside")


def test_the_default_device_is_the_first_chosen_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert default_device() == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert default_device() == torch.device("cuda", 0)
    assert default_device([2, 1]) == torch.device("cuda", 2)


@pytest.mark.parametrize(("count", "there"), [(0, "there is no GPU here"), (2, "only 0 to 1 exist")])
def test_a_chosen_gpu_that_does_not_exist_is_refused(count, there, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    with pytest.raises(UserError, match=rf"device_indexes \[3\]: {there}"):
        default_device([3])
