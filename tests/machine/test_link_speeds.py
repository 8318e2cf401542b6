from __future__ import annotations

import sys

import pytest

from modules.machine.devices import driver_versions, link_matrix, list_gpus
from modules.machine.link_speeds import describe_links, link_speeds
from tests.support.fake_nvml import FakeNvml, eight_gpus, real


def speeds_of(monkeypatch, fake: FakeNvml):
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    gpus = list_gpus({})
    speeds = link_speeds(gpus, link_matrix(gpus))
    assert fake.times_open == 0, "NVML was left open"
    return speeds


def test_nvlink_counts_the_links_between_the_two_and_pcie_the_lanes(monkeypatch):
    speeds = speeds_of(monkeypatch, eight_gpus())
    assert speeds[0][1] == speeds[1][0] == 100  # four links of 25 GB/s
    assert speeds[0][2] == pytest.approx(16 * 1.969)  # 16 lanes of generation 4
    assert speeds[0][4] is None  # no direct link
    assert speeds[0][0] is None


def test_a_switch_reaches_everyone_with_all_links(monkeypatch):
    fake = eight_gpus()
    fake.links |= {frozenset((0, 2)): "nvlink"}
    switch = real.NVML_NVLINK_DEVICE_TYPE_SWITCH
    monkeypatch.setattr(fake, "nvmlDeviceGetNvLinkRemoteDeviceType", lambda *arguments: switch)
    assert speeds_of(monkeypatch, fake)[0][1] == 200


def test_what_the_driver_does_not_say_is_not_made_up(monkeypatch):
    fake = eight_gpus()
    fake.gpus[0].refused = frozenset(("nvmlDeviceGetFieldValues", "nvmlDeviceGetMaxPcieLinkWidth"))
    speeds = speeds_of(monkeypatch, fake)
    assert speeds[0][1] is None
    assert speeds[0][2] is None
    assert speeds[2][3] == 100


def test_without_a_driver_nothing_is_known(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(init_error=real.NVML_ERROR_LIBRARY_NOT_FOUND))
    assert link_speeds([], []) == []
    assert driver_versions() is None


def test_the_driver_says_its_version_and_that_of_cuda(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(driver="560.35.03", cuda=12060))
    assert driver_versions() == ("560.35.03", (12, 6))


@pytest.mark.parametrize(
    ("indexes", "words"),
    [
        ([0, 1], "NVLink (100 GB/s)"),
        ([0, 1, 1], "NVLink (100 GB/s)"),
        ([0, 2], "PCIe (31.5 GB/s)"),
        ([0, 1, 2, 3], "NVLink (2 pairs, 100 GB/s), PCIe (4 pairs, 31.5 GB/s)"),
        ([4, 5], "no direct link"),
        ([0, 1, 4], "NVLink (1 pair, 100 GB/s), no direct link (2 pairs)"),
        ([0], None),
    ],
)
def test_the_links_of_the_gpus_that_train_in_words(monkeypatch, indexes, words):
    monkeypatch.setitem(sys.modules, "pynvml", eight_gpus())
    gpus = list_gpus({})
    assert describe_links([gpus[index] for index in indexes]) == words


def test_nothing_is_said_of_links_where_the_driver_does_not_answer(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", eight_gpus())
    gpus = list_gpus({})
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(init_error=real.NVML_ERROR_DRIVER_NOT_LOADED))
    assert describe_links(gpus[:2]) is None
