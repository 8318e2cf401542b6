"""A process that has imported its libraries before there is anything to do for it. No Tk."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from modules.config.installation import PACKAGE_FOLDER, ROOT
from modules.machine.devices import Gpu
from modules.machine.own_session import own_session

Kind = Literal["train", "sample"]

MAX_REQUEST_BYTES = 4000  # what fits into the pipe of Windows: a process that still imports reads nothing


@dataclass(frozen=True)
class StandbyPlan:
    """What a process of standby is for. kind: a run, or images. num_ranks: of the run on this machine.

    family: of the model; another one can be used, too, and makes no other plan. gpus: of this machine.
    """

    kind: Kind
    family: str = field(compare=False)
    num_ranks: int = 1
    gpus: tuple[Gpu, ...] = ()


class Standby:
    """A process of scripts/starting/standby.py, started at once. It ends with this process, unless it was taken.

    process: for those who look at it; `take` gives it to those who use it.
    """

    def __init__(self, plan: StandbyPlan):
        """Raises OSError if the system can't create a process."""
        self.plan = plan
        self._surroundings = _surroundings()
        options = ["--family", plan.family, *(["--ranks", str(plan.num_ranks)] if plan.kind == "train" else [])]
        is_run = plan.kind == "train"
        no_console = {"creationflags": getattr(subprocess, "CREATE_NO_WINDOW", 0)}
        apart: dict[str, Any] = own_session() if is_run else no_console
        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / "scripts" / "starting" / "standby.py"), plan.kind, *options],
            # each with the streams that it would have without standby; those of a run are replaced when it starts
            env={**os.environ, "PYTHONIOENCODING": "utf-8:backslashreplace" if is_run else "utf-8"},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL if is_run else subprocess.PIPE,
            stderr=subprocess.DEVNULL if is_run else subprocess.PIPE,
            **apart,
        )

    @property
    def is_waiting(self) -> bool:
        return self.process.poll() is None

    def fits(self) -> bool:
        """Whether it is as it would be if it were started now: same code, packages, environment and folder."""
        return self._surroundings == _surroundings()

    def take(
        self, script: str, arguments: Sequence[str], variables: Mapping[str, str] | None = None, log: Path | None = None
    ) -> subprocess.Popen[bytes] | None:
        """The process, which now runs a script; None if it can't, and has been ended. It can be taken once.

        variables: added to its environment; none that libraries read on import. log: where the output of a run goes.
        """
        request = {"script": script, "arguments": list(arguments), "variables": dict(variables or {}), "log": str(log)}
        line = json.dumps(request).encode() + b"\n"
        pipe = self.process.stdin
        assert pipe is not None
        if len(line) > MAX_REQUEST_BYTES or not self.is_waiting or not self.fits():
            self.end()
            return None
        try:
            pipe.write(line)
            pipe.close()
        except OSError:  # it has just ended
            self.end()
            return None
        self.process.stdin = None  # `communicate` would flush it
        return self.process

    def end(self) -> None:
        """End it, with all that it has started, unless it was taken. It has nothing to save."""
        self.process.kill()
        threading.Thread(target=self._reap, name="end of standby", daemon=True).start()

    def _reap(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):  # what was not written yet is not wanted any more
                    pipe.close()
        self.process.wait()


def _surroundings() -> tuple[object, ...]:
    """What a process takes over when it starts and imports: environment, folder, code and installed packages."""
    code = {path: stamp for folder in (PACKAGE_FOLDER, ROOT / "scripts") for path, stamp in _stamps(folder)}
    packages = {
        path: os.stat(path).st_mtime_ns  # it changes when a package is installed or removed
        for path in sys.path
        if Path(path).name in ("site-packages", "dist-packages") and os.path.isdir(path)
    }
    return dict(os.environ), os.getcwd(), code, packages


def _stamps(folder: Path) -> Iterator[tuple[str, tuple[int, int]]]:
    """(path, (time of the last change, size)) of each source file below `folder`."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:  # a file that is just being replaced
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _stamps(Path(entry.path))
            elif entry.name.endswith(".py"):
                found = entry.stat()
                yield entry.path, (found.st_mtime_ns, found.st_size)
