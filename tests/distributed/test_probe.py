"""The communication probe with real gloo ranks: what it measures, and which rank it blames."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from modules.config.errors import UserError
from modules.distributed import ProbeRanks as ranks_module
from modules.distributed import probe as probe_module
from modules.distributed.probe import bus_bandwidth, choose_ranks, main, probe
from modules.distributed.probe_worker import rounds_that_fit
from modules.distributed.ProbeRanks import Failure, ProbeRanks, RankFailed, join_words
from tests.support.fork_server import call_forked
from tests.support.waiting import wait_until

SHORT = ["--megabytes", "1", "--seconds", "0.1"]
ROOT = Path(__file__).resolve().parents[2]

forked = pytest.mark.skipif(os.name == "nt", reason="Windows neither forks nor has signals")

STUCK_PROBE = """
from modules.distributed.ProbeRanks import ProbeRanks
with ProbeRanks("gloo", ["cpu", "cpu"], 1024, seconds=0.2, timeout_seconds=300) as ranks:
    ranks.join()
    print("joined", flush=True)
    ranks.seconds_of_all_reduce([0, 1])
"""


@pytest.fixture(autouse=True)
def _no_gpus(monkeypatch):
    monkeypatch.setattr(probe_module, "_gpu_indexes", list)


def test_three_ranks_give_a_speed_for_each_pair_and_for_all(tmp_path, capsys):
    file = tmp_path / "probe.json"
    assert main(["--world-size", "3", "--json", str(file), *SHORT]) == 0
    printed = capsys.readouterr()
    values = json.loads(printed.out)
    assert values == json.loads(file.read_text())
    assert (values["backend"], values["devices"], values["bytes"]) == ("gloo", ["cpu"] * 3, 2**20)
    assert [pair["ranks"] for pair in values["pairs"]] == [[0, 1], [0, 2], [1, 2]]
    assert values["all"]["ranks"] == [0, 1, 2]
    assert all(speed["gb_per_s"] > 0 for speed in [*values["pairs"], values["all"]])
    assert values["failed"] is None
    assert f"{values['pairs'][2]['gb_per_s']:.2f} GB/s" in printed.err


@pytest.mark.parametrize(("once", "rounds"), [(10.0, 3), (0.25, 4), (1e-9, 1000)])
def test_the_number_of_rounds_is_always_a_float(once, rounds):
    assert rounds_that_fit(1.0, once) == rounds
    assert type(rounds_that_fit(1.0, once)) is float


@forked
@pytest.mark.parametrize(
    ("fault", "rank", "text"),
    [
        pytest.param(
            "sleep@1", 1, "Rank 1 (device cpu) did not finish the all-reduce of ranks 0 and 1 within 3 s.", id="hang"
        ),
        pytest.param("kill@0", 0, "Rank 0 (device cpu) was killed by SIGKILL.", id="kill"),
        pytest.param("exit@1", 1, "Rank 1 (device cpu) ended with exit code 3.", id="exit"),
    ],
)
def test_the_rank_that_hangs_or_dies_is_named_instead_of_those_waiting_for_it(fault, rank, text):
    code, out, err = call_forked(_probe_with_fault, fault)
    assert code == 1
    values = json.loads(out)
    assert values["failed"] == {"rank": rank, "text": text}
    assert (values["pairs"], values["all"]) == ([], None)
    assert text in err


def _probe_with_fault(fault: str) -> tuple[int, str, str]:
    """The exit code and what was printed to stdout and stderr."""
    os.environ["CHORUS_PROBE_FAULT"] = fault
    probe_module._gpu_indexes = list
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = main([*SHORT, "--timeout", "3"])
    return code, out.getvalue(), err.getvalue()


@forked
def test_a_stopped_rank_is_named_if_both_are_in_the_same_collective():
    assert call_forked(_failure_of_long_rounds, 1.5, 2.0, _stop_rank_1).rank == 1  # in 2 s the other rank responds


def _stop_rank_1(ranks: ProbeRanks) -> None:
    threading.Timer(0.7, ranks._processes[1].send_signal, [signal.SIGSTOP]).start()


@forked
def test_ranks_waiting_for_each_other_are_named_together():
    failure = call_forked(_failure_of_long_rounds, 2, 60.0)  # ends with the second response
    assert failure.rank is None
    assert failure.text == (
        "Ranks 0 and 1 (devices cpu and cpu) did not finish the all-reduce of ranks 0 and 1 within 2 s: "
        "their link is stuck, or slow for 16 MiB."
    )


@forked
def test_a_rank_that_raises_is_named_with_its_error():
    failed = call_forked(_failure_of_a_petabyte)
    assert failed.rank in (0, 1)
    assert "failed: RuntimeError" in failed.text


def _failure_of_a_petabyte() -> Failure | None:
    probe_module._gpu_indexes = list
    return probe(world_size=2, megabytes=1e9, seconds=0.1).failed


@pytest.mark.skipif(sys.platform != "linux", reason="finds the ranks in /proc")
def test_ranks_inside_a_collective_end_with_their_parent_process():
    env = {**os.environ, "CHORUS_PROBE_FAULT": "sleep@1"}
    starter = subprocess.Popen([sys.executable, "-c", STUCK_PROBE], cwd=ROOT, env=env, stdout=subprocess.PIPE)
    assert starter.stdout.readline() == b"joined\n"
    ranks = _children(starter.pid)
    assert len(ranks) == 2
    starter.send_signal(signal.SIGKILL)
    starter.wait()
    starter.stdout.close()
    wait_until(lambda: not any(_alive(pid) for pid in ranks))


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


def test_the_parent_process_does_not_import_torch():
    code = "import sys, modules.distributed.probe; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_lists_are_joined():
    assert [join_words([1]), join_words([1, 2]), join_words([0, 1, 2])] == ["1", "1 and 2", "0, 1 and 2"]


def _failure_of_long_rounds(
    timeout_seconds: float, cause_seconds: float, after_joining: Callable[[ProbeRanks], None] | None = None
) -> Failure:
    """The failure of two ranks whose rounds take longer than `timeout_seconds`; for a process of its own."""
    ranks_module.CAUSE_SECONDS = cause_seconds
    try:
        with ProbeRanks("gloo", ["cpu", "cpu"], 16 * 2**20, seconds=60, timeout_seconds=timeout_seconds) as ranks:
            ranks.join()
            if after_joining:
                after_joining(ranks)
            ranks.seconds_of_all_reduce([0, 1])
    except RankFailed as error:
        return error.failure
    raise AssertionError("the rounds ended")


def _children(pid: int) -> list[int]:
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended meanwhile
        if int(fields[1]) == pid:
            found.append(int(status.parent.name))
    return found


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
