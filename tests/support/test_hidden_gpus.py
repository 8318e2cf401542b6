"""Tests that are not for a GPU run as on a machine without one."""

import os

import pytest

from tests.support.hidden_gpus import hide_gpus


def test_this_test_sees_no_gpu():
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""


@pytest.mark.parametrize(
    ("arguments", "environment", "visible"),
    [
        (["tests", "-n", "3"], {}, ""),
        (["-m", "not gpu"], {}, ""),
        (["-m", "proof", "-k", "gpu"], {}, ""),
        (["-m", "gpu", "-v"], {}, "0,1"),
        (["-mgpu or proof"], {}, "0,1"),
        (["-q"], {"PYTEST_ADDOPTS": "-m gpu"}, "0,1"),
        (["-c"], {"PYTEST_XDIST_WORKER": "gw0"}, "0,1"),  # as the process that started it has left them
    ],
)
def test_gpus_are_hidden_unless_their_tests_are_chosen(arguments, environment, visible):
    environment = {"CUDA_VISIBLE_DEVICES": "0,1", **environment}
    hide_gpus(arguments, environment)
    assert environment["CUDA_VISIBLE_DEVICES"] == visible
