"""NCCL is used if available, otherwise Gloo, with a warning."""

from __future__ import annotations

import pytest

from modules.machine.backend import backend_warning, choose_backend


@pytest.mark.parametrize(
    ("wanted", "has_gpu", "has_nccl", "chosen", "warning"),
    [
        ("auto", True, True, "nccl", ""),
        ("auto", True, False, "gloo", ""),
        ("auto", False, True, "gloo", ""),
        ("gloo", True, True, "gloo", ""),
        ("gloo", False, False, "gloo", ""),
        ("nccl", True, True, "nccl", ""),
        ("nccl", False, True, "gloo", "there is no NVIDIA GPU here"),
        ("nccl", False, False, "gloo", "there is no NVIDIA GPU here"),
        ("nccl", True, False, "gloo", "PyTorch has no NCCL here"),
    ],
)
def test_the_backend_is_nccl_where_it_can_be_had_and_who_asked_for_it_is_told(
    wanted, has_gpu, has_nccl, chosen, warning
):
    backend, reason = choose_backend(wanted, has_gpu, has_nccl)
    assert backend == chosen
    sentence = f"distributed_backend nccl: {warning}, so the ranks use gloo; set it to auto or gloo."
    assert backend_warning(wanted, backend, reason) == (sentence if warning else "")
