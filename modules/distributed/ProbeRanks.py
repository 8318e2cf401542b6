"""Starts the rank processes of a communication probe, sends them commands and collects their reports with time limits.

Commands and reports are JSON lines on stdin and stdout, so that only pipes have to work. When this process dies, the
end of its stdin ends a rank.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import IO, Any

from modules.config.installation import IMPORT_FOLDER, PACKAGE
from modules.distributed.probe_worker import RankTask

START_SECONDS = 180  # importing torch from a cold or network disk, and creating a CUDA context on each GPU
CAUSE_SECONDS = 1.0  # how long to look for the cause after a symptom; peers notice a dead rank within 0.4 s
END_SECONDS = 10


@dataclass(frozen=True)
class Failure:
    """rank: the rank that failed; None if several ranks are waiting for each other."""

    rank: int | None
    text: str


class RankFailed(Exception):
    """A rank died, raised or hung; `failure` says which."""

    def __init__(self, failure: Failure):
        super().__init__(failure.text)
        self.failure = failure


class ProbeRanks:
    """One process per device, for the duration of `with`. devices: for each rank, the index of its GPU or "cpu"."""

    def __init__(
        self, backend: str, devices: Sequence[int | str], num_bytes: int, seconds: float, timeout_seconds: float
    ):
        self._tasks = [
            RankTask(rank, len(devices), backend, device, num_bytes, seconds) for rank, device in enumerate(devices)
        ]
        self._timeout_seconds = timeout_seconds
        self._reports: queue.SimpleQueue[tuple[int, dict[str, Any]]] = queue.SimpleQueue()
        self._progress: Counter[int] = Counter()  # number of reports from each rank for the current command
        self._processes: list[subprocess.Popen] = []
        self._stack = contextlib.ExitStack()
        self._orders: list[IO[bytes]] = []  # the stdin of each rank
        self._logs: list[IO[str]] = []

    def __enter__(self) -> ProbeRanks:
        try:
            for task in self._tasks:
                self._start(task)
        except BaseException:
            self._end(seconds=0)
            raise
        return self

    def __exit__(self, error_type, *details) -> None:
        if error_type is None:
            self._order(range(len(self._processes)), {"end": True})
        self._end(seconds=END_SECONDS if error_type is None else 0)

    def join(self) -> None:
        """Makes all ranks join the process group. Raises RankFailed."""
        everyone = range(len(self._tasks))
        self._progress.clear()
        port = self._collect([0], "store", START_SECONDS, "start")[0]["port"]
        self._order(everyone[1:], {"port": port})
        self._collect(everyone, "joined", START_SECONDS, "join the others")

    def seconds_of_all_reduce(self, group: Sequence[int]) -> float:
        """The median duration of an all-reduce on the slowest rank of `group`. Raises RankFailed."""
        self._progress.clear()
        self._order(group, {"ranks": list(group)})
        doing = f"finish the all-reduce of ranks {join_words(group)}"
        reports = self._collect(group, "measured", self._timeout_seconds, doing)
        return max(report["seconds"] for report in reports.values())

    def _start(self, task: RankTask) -> None:
        log = self._stack.enter_context(_log())
        command = [sys.executable, "-m", f"{PACKAGE}.distributed.probe_worker", json.dumps(asdict(task))]
        env = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", **os.environ}  # so that both sides count GPUs in the same order
        process = subprocess.Popen(
            command, cwd=IMPORT_FOLDER, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, bufsize=0
        )
        assert process.stdin is not None  # a pipe, as stdout is
        assert process.stdout is not None
        self._processes.append(process)
        self._orders.append(process.stdin)
        self._logs.append(log)
        # threads, because Windows can't wait for several pipes at once
        threading.Thread(target=self._listen, args=(task.rank, process, process.stdout), daemon=True).start()

    def _listen(self, rank: int, process: subprocess.Popen, stdout: IO[bytes]) -> None:
        for line in stdout:
            self._reports.put((rank, json.loads(line)))
        self._reports.put((rank, {"event": "ended", "code": process.wait()}))

    def _order(self, ranks: Sequence[int], order: dict[str, Any]) -> None:
        for rank in ranks:
            with contextlib.suppress(OSError):  # it has ended, which its reports will show
                self._orders[rank].write(json.dumps(order).encode() + b"\n")

    def _collect(self, ranks: Sequence[int], event: str, limit: float, doing: str) -> dict[int, dict[str, Any]]:
        """Waits up to `limit` seconds for the report `event` of each of `ranks`. doing: for the error message."""
        deadline = time.monotonic() + limit
        found: dict[int, dict[str, Any]] = {}
        while len(found) < len(ranks):
            try:
                rank, report = self._reports.get(timeout=max(0, deadline - time.monotonic()))
            except queue.Empty:
                raise RankFailed(self._hung(set(ranks) - set(found), f"did not {doing} within {limit:g} s")) from None
            if report["event"] in ("ended", "failed"):
                raise RankFailed(self._cause(rank, report))
            self._progress[rank] += 1
            if report["event"] == event:
                found[rank] = report
        return found

    def _hung(self, late: set[int], what: str) -> Failure:
        """Finds the rank that is behind the others, which are waiting for it."""
        least = min(self._progress[rank] for rank in late)
        behind = [rank for rank in sorted(late) if self._progress[rank] == least]
        if len(behind) > 1:
            behind = self._silent(behind) or behind
        if len(behind) == 1:
            return Failure(behind[0], f"{self._name(behind[0])} {what}.")
        devices = join_words([self._tasks[rank].device for rank in behind])
        megabytes = self._tasks[0].num_bytes / 2**20
        text = (
            f"Ranks {join_words(behind)} (devices {devices}) {what}: their link is stuck, or slow for {megabytes:g} MiB"
        )
        if self._tasks[0].backend == "nccl":
            text += "; if NCCL_P2P_DISABLE=1 fixes it, the direct link between the GPUs does not work"
        return Failure(None, text + ".")

    def _silent(self, ranks: Sequence[int]) -> list[int]:
        """Those of `ranks` whose process does not respond at all: it was stopped, or is blocked in a driver."""
        self._order(ranks, {"ping": True})
        silent = set(ranks)
        deadline = time.monotonic() + CAUSE_SECONDS
        with contextlib.suppress(queue.Empty):
            while silent:
                rank, report = self._reports.get(timeout=max(0, deadline - time.monotonic()))
                if report["event"] == "alive":
                    silent.discard(rank)
        return sorted(silent)

    def _cause(self, rank: int, report: dict[str, Any]) -> Failure:
        """Finds the cause of a failure. A dead process takes precedence over errors, which it causes in its peers."""
        reports = [(rank, report)]
        deadline = time.monotonic() + CAUSE_SECONDS
        with contextlib.suppress(queue.Empty):
            while True:
                reports.append(self._reports.get(timeout=max(0, deadline - time.monotonic())))
        errors = {rank: report for rank, report in reports if report["event"] == "failed"}
        for rank, report in reports:
            if report["event"] == "ended" and rank not in errors:
                return Failure(rank, f"{self._name(rank)} {_ending(report['code'])}.{self._last_line(rank)}")
        rank, report = next(iter(errors.items()))
        return Failure(rank, f"{self._name(rank)} failed: {report['text']}")

    def _name(self, rank: int) -> str:
        return f"Rank {rank} (device {self._tasks[rank].device})"

    def _last_line(self, rank: int) -> str:
        self._logs[rank].seek(0)
        lines = self._logs[rank].read().strip().splitlines()
        return f" Its last output was: {lines[-1]}" if lines else ""

    def _end(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        for process, orders in zip(self._processes, self._orders, strict=True):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0, deadline - time.monotonic()))
            process.kill()
            process.wait()
            orders.close()
        self._stack.close()


def join_words(values: Sequence[int | str]) -> str:
    """Such as "0, 1 and 2"."""
    words = [str(value) for value in values]
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


def _log() -> IO[str]:
    return tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")


def _ending(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
