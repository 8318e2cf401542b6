"""Memory is given back on the device that it is on, whichever thread asks."""

from __future__ import annotations

import contextlib

import torch

from modules.layers.device_memory import free_memory


def test_memory_is_given_back_to_the_device_that_it_is_of_and_no_context_is_made_on_another(monkeypatch):
    @contextlib.contextmanager
    def device(wanted):
        current.append(wanted)
        yield
        current.pop()

    current, emptied = [torch.device("cuda", 0)], []
    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(current[-1]))
    free_memory(torch.device("cuda", 3))
    free_memory(torch.device("cpu"))
    assert emptied == [torch.device("cuda", 3)]
