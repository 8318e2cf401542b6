"""A communication test in a separate process, so that a driver can't hang the window. No Tk."""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from modules.config.installation import IMPORT_FOLDER
from modules.config.TrainConfig import TrainConfig
from modules.machine.ChildProcess import ChildProcess
from modules.machine.Machine import Machine
from modules.ui.models.DeviceModel import probe_command


@dataclass(frozen=True)
class Measured:
    """The result of a test. pairs: the devices of two ranks -> GB/s. text: the result as a sentence. failed: whether a
    rank died or hung, or nothing could be measured.
    """

    pairs: dict[frozenset[int | str], float]
    text: str
    failed: bool = False


class CommunicationTest:
    """One test, from `start` to the end of `wait`; `cancel` ends it and all its ranks early."""

    def __init__(self) -> None:
        self._child = ChildProcess(IMPORT_FOLDER, own_session=True)

    def start(self, config: TrainConfig, machine: Machine, python: str = sys.executable) -> None:
        """Raises OSError if the process can't be started."""
        self._folder = tempfile.TemporaryDirectory()
        command = probe_command(python, config, machine, Path(self._folder.name) / "probe.json")
        self._child.start(command)

    def wait(self) -> Measured:
        """Wait for the result, in a thread. The ranks end with the process that started them."""
        done = self._child.wait()
        path = Path(self._folder.name) / "probe.json"
        try:
            result = json.loads(path.read_bytes())
        except (FileNotFoundError, ValueError):
            result = None
        self._folder.cleanup()
        if self._child.is_cancelled:
            return Measured({}, "Cancelled.", failed=True)
        if result is None:
            return Measured({}, _last_line(done.stderr) or "The test ended without a result.", failed=True)
        return read_result(result)

    def cancel(self) -> None:
        """End the test if it is running."""
        self._child.cancel()


def read_result(result: dict) -> Measured:
    """Parse the JSON of modules.distributed.probe."""
    devices = result["devices"]
    is_gpu = devices[0] != "cpu"
    pairs = {}
    for speed in result["pairs"]:
        first, second = speed["ranks"]
        pairs[frozenset((devices[first], devices[second]) if is_gpu else (first, second))] = speed["gb_per_s"]
    if result["failed"]:
        return Measured(pairs, result["failed"]["text"], failed=True)
    figures = ", ".join(f"{_spoken(pair, is_gpu)} {speed:.2f}" for pair, speed in pairs.items() if not is_gpu)
    overall = result["all"]["gb_per_s"]
    what = f"{len(devices)} {'GPUs' if is_gpu else 'CPU ranks'} with {result['backend']}"
    text = f"All {what}: {overall:.2f} GB/s" + (f" ({figures})." if figures and len(pairs) > 1 else ".")
    return Measured(pairs, text)


def _spoken(pair: frozenset[int | str], is_gpu: bool) -> str:
    first, second = sorted(pair)
    return f"{'GPUs' if is_gpu else 'ranks'} {first}-{second}"


def _last_line(text: bytes) -> str:
    lines = [line.strip() for line in text.decode("utf-8", "replace").splitlines() if line.strip()]
    return lines[-1] if lines else ""
