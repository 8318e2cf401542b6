"""The communication test with real gloo ranks: what it measures, and which rank it blames."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from modules.config.errors import UserError
from modules.config.TrainConfig import TrainConfig
from modules.distributed import all_reduce_speed
from modules.distributed.all_reduce_speed import rounds_that_fit
from modules.engine import link_probe
from modules.engine.link_probe import bus_bandwidth, choose_ranks, join_words, main, probe, visible_devices
from modules.machine.Machine import Machine
from modules.ui.models.CommunicationTest import read_result
from modules.ui.models.DeviceModel import probe_command
from tests.support.fork_server import call_forked

SHORT = ["--megabytes", "1", "--seconds", "0.1"]
ROOT = Path(__file__).resolve().parents[2]
HIDDEN_GPUS = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
MEASURE = link_probe.measure_groups

forked = pytest.mark.skipif(os.name == "nt", reason="Windows does not fork")


@pytest.fixture(autouse=True)
def _no_gpus(monkeypatch):
    monkeypatch.setattr(link_probe, "_gpu_indexes", list)


@forked
def test_three_ranks_give_a_speed_for_each_pair_and_for_all(tmp_path):
    file = tmp_path / "probe.json"
    command = [*probe_command(sys.executable, TrainConfig(world_size=3), Machine(), file), *SHORT]  # of the window
    done = call_forked(_started, command)
    assert done.returncode == 0, done.stderr
    values = json.loads(done.stdout)
    assert values == json.loads(file.read_text())
    assert (values["backend"], values["devices"], values["bytes"]) == ("gloo", ["cpu"] * 3, 2**20)
    assert [pair["ranks"] for pair in values["pairs"]] == [[0, 1], [0, 2], [1, 2]]
    assert values["all"]["ranks"] == [0, 1, 2]
    assert all(speed["gb_per_s"] > 0 for speed in [*values["pairs"], values["all"]])
    assert values["failed"] is None
    shown = read_result(values)
    assert shown.pairs == {frozenset(pair["ranks"]): pair["gb_per_s"] for pair in values["pairs"]}
    assert not shown.failed
    assert shown.text.startswith(f"All 3 CPU ranks with gloo: {values['all']['gb_per_s']:.2f} GB/s (ranks 0-1 ")
    assert f"{values['pairs'][2]['gb_per_s']:.2f} GB/s" in done.stderr


def _started(command: list[str]) -> subprocess.CompletedProcess:
    return subprocess.run(command, cwd=ROOT, env=HIDDEN_GPUS, capture_output=True, encoding="utf-8")


@pytest.mark.parametrize(("once", "rounds"), [(10.0, 3), (0.25, 4), (1e-9, 1000)])
def test_the_number_of_rounds_is_always_a_float(once, rounds):
    assert rounds_that_fit(1.0, once) == rounds
    assert type(rounds_that_fit(1.0, once)) is float


@forked
def test_a_rank_that_hangs_is_named_instead_of_those_that_wait_for_it_and_earlier_pairs_are_kept():
    result = call_forked(_probe_with, _with_a_rank_2_that_hangs, 3)
    assert [pair.ranks for pair in result.pairs] == [(0, 1)]
    assert result.all is None
    assert result.failed.rank == 2
    assert result.failed.text.startswith(
        "All-reduce of 1 MiB between ranks 0 and 2 (devices cpu and cpu): Rank 2 has not moved for "
    )
    assert "may be the cause" not in result.failed.text


@forked
def test_ranks_that_wait_for_each_other_are_named_together():
    failed = call_forked(_probe_with, _with_a_link_that_is_stuck, 2).failed
    assert failed.rank in (0, 1)
    assert f"rank {1 - failed.rank} stopped within 1 s of it and may be the cause" in failed.text


@forked
def test_a_rank_that_raises_is_named_with_its_error():
    failed = call_forked(_probe_with, _with_wrong_sums, 2).failed
    assert failed.rank in (0, 1)
    assert "the link between their devices corrupts data" in failed.text


def _probe_with(program, num_ranks: int):
    link_probe._gpu_indexes = list
    link_probe.measure_groups = program
    return probe(world_size=num_ranks, megabytes=1, seconds=0.1, timeout_seconds=20)


def _with_a_rank_2_that_hangs(rank: int, world_size: int, *, groups, **arguments) -> None:
    MEASURE(rank, world_size, groups=_then_hanging(groups) if rank == 2 else groups, **arguments)


def _with_a_link_that_is_stuck(rank: int, world_size: int, **arguments) -> None:
    all_reduce_speed.seconds_of_all_reduce = lambda *arguments: time.sleep(600)
    MEASURE(rank, world_size, **arguments)


def _with_wrong_sums(rank: int, world_size: int, **arguments) -> None:
    import torch

    torch.all = lambda values: False
    MEASURE(rank, world_size, **arguments)


def _then_hanging(groups):
    yield groups[0]
    time.sleep(600)


def test_nccl_without_a_gpu_is_refused_in_one_sentence(capsys):
    assert main(["--backend", "nccl"]) == 2
    printed = capsys.readouterr()
    assert printed.err == "backend nccl: there is no NVIDIA GPU here; use gloo or auto.\n"
    assert printed.out == ""


@pytest.mark.parametrize(
    ("gpus", "devices", "backend", "world_size", "expected"),
    [
        ([], None, "auto", None, ("gloo", ["cpu", "cpu"])),
        ([], None, "gloo", 3, ("gloo", ["cpu"] * 3)),
        ([0, 1, 2], None, "nccl", None, ("nccl", [0, 1, 2])),
        ([0, 1, 2], [2, 0], "nccl", None, ("nccl", [2, 0])),
        ([0, 1, 2], None, "nccl", 2, ("nccl", [0, 1])),
        ([0], None, "gloo", 2, ("gloo", [0, 0])),
        ([0, 1], [1, 1, 0], "gloo", 3, ("gloo", [1, 0, 1])),
    ],
)
def test_each_rank_gets_a_device(gpus, devices, backend, world_size, expected):
    assert choose_ranks(gpus, devices, backend, world_size) == expected


@pytest.mark.parametrize(
    ("gpus", "devices", "backend", "world_size", "text"),
    [
        ([], [0, 1], "auto", None, "devices 0 and 1: there is no GPU here"),
        ([0, 1], [0, 2], "auto", None, "devices 0 and 2: there is only 0 and 1 here"),
        ([0, 1], None, "nccl", 3, "world_size 3 on devices 0 and 1: nccl needs a GPU of its own for each rank"),
        ([0, 1], [1, 1], "nccl", None, "nccl needs a GPU of its own"),
        ([0], None, "nccl", None, "world_size 1: the probe needs at least 2 ranks"),
        ([], None, "gloo", 0, "world_size 0: the probe needs at least 2 ranks"),
    ],
)
def test_arguments_that_do_not_fit_together_are_refused(gpus, devices, backend, world_size, text):
    with pytest.raises(UserError, match=text):
        choose_ranks(gpus, devices, backend, world_size)


@pytest.mark.parametrize("numbers", [{"megabytes": 0}, {"seconds": 0}, {"seconds": 5, "timeout_seconds": 5}])
def test_a_timeout_shorter_than_the_measurement_is_refused(numbers):
    with pytest.raises(UserError, match="timeout above seconds"):
        probe(**numbers)


def test_bus_bandwidth_equals_that_of_nccl_tests():
    """A ring moves 2 (n - 1) / n of the buffer over each link: 1 buffer for 2 ranks, 1.5 for 4."""
    assert bus_bandwidth(10**9, 0.5, num_ranks=2) == pytest.approx(2.0)
    assert bus_bandwidth(10**9, 0.5, num_ranks=4) == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("visible", "expected"), [(None, "2,0"), ("", "2,0"), ("4, 5,6", "6,4"), ("GPU-a,GPU-b,GPU-c", "GPU-c,GPU-a")]
)
def test_the_ranks_see_the_chosen_gpus_of_those_that_this_process_sees(visible, expected):
    assert visible_devices([2, 0], visible) == expected


def test_lists_are_joined():
    assert [join_words([1]), join_words([1, 2]), join_words([0, 1, 2])] == ["1", "1 and 2", "0, 1 and 2"]
