"""The web page of the runs, which a process serves as long as the window is open. No Tk."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from modules.config.errors import UserError
from modules.config.installation import ROOT
from modules.machine.ChildProcess import ChildProcess
from modules.machine.ports import next_free_port
from modules.page.access import new_token
from modules.page.kept_token import kept_token, renew_token
from modules.ui.models.Listeners import Listeners
from modules.ui.models.RunsModel import output_folders

if TYPE_CHECKING:
    from modules.ui.models.Scheduler import Scheduler

COMMAND = (sys.executable, str(ROOT / "scripts" / "page.py"))
PORT = 8420  # or the next free one, so that the address stays the same from one start to the next
POLL_SECONDS = 0.2
LOOK_SECONDS = 2.0  # between two looks for folders
TOKEN_VARIABLE = "CHORUS_PAGE_TOKEN"


class RunPage:
    """Serves the page from `start` on, until `stop`, `close` or the end of the window, however that comes.

    workspace_dir, runs: a run folder and those shown last: the runs beside them are on the page. `runs` is asked again
    and again, as further ones come; `workspace_dir` only at the start, as a person may be typing it. token_path: where
    the token is kept; None: a new one for each window. tell: is told why the page has ended by itself. command: starts
    scripts/page.py.

    link: the address to open, with its token; "" as long as there is none. error: why the page has ended by itself; ""
    if it has not. folders: those whose runs are shown, as far as they are there.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        workspace_dir: Callable[[], str],
        runs: Callable[[], Sequence[str]],
        token_path: Path | None,
        tell: Callable[[str], object],
        command: Sequence[str] = COMMAND,
    ):
        self.is_on = False
        self.link = self.error = ""
        self.folders: tuple[Path, ...] = ()
        self._scheduler, self._tell = scheduler, tell
        self._workspace_dir, self._runs, self._first = workspace_dir, runs, ""
        self._command, self._token_path, self._token = tuple(command), token_path, ""
        self._address = ""
        self._serving: _Serving | None = None
        self._is_looking, self._looked = False, 0.0  # when, by the monotonic clock
        self._end_polls: Callable[[], None] | None = None
        self._listeners: Listeners[[]] = Listeners()

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` when anything of it has changed. Returns a function that unsubscribes."""
        return self._listeners.add(changed)

    def start(self, address: str) -> None:
        """Serve the page at an address of this machine, now or as soon as there is a folder with runs; also anew."""
        self.stop()
        self.is_on, self._address, self._first = True, address, self._workspace_dir()
        self._looked = 0.0
        self._end_polls = self._scheduler.every(POLL_SECONDS, self._poll)
        self._listeners.tell()

    def stop(self) -> None:
        self.is_on = False
        self.link = self.error = ""
        self.folders = ()
        self.close()
        self._listeners.tell()

    def close(self) -> None:
        """End the process, without waiting for it."""
        if self._end_polls is not None:
            self._end_polls()
            self._end_polls = None
        if self._serving is not None:
            self._serving.child.cancel()

    def renew_token(self) -> None:
        """From now on, former addresses no longer open the page. Raises UserError."""
        self._token = new_token() if self._token_path is None else renew_token(self._token_path)
        if self.is_on:
            self.start(self._address)

    def _poll(self) -> None:
        serving = self._serving
        if serving is not None and not serving.child.is_cancelled and serving.link != self.link:
            self.link = serving.link
            self._listeners.tell()
        if not self._is_looking and not self.error and time.monotonic() - self._looked >= LOOK_SECONDS:
            self._is_looking = True
            # the former ones first: the addresses of runs have their numbers
            folders = dict.fromkeys((*self.folders, *output_folders(self._first, self._runs())))
            self._scheduler.in_background(lambda: tuple(folder for folder in folders if folder.is_dir()), self._take)

    def _take(self, folders: tuple[Path, ...]) -> None:
        self._is_looking, self._looked = False, time.monotonic()
        if self.is_on and not self.error and folders != self.folders:
            self.folders = folders
            self._serve()

    def _serve(self) -> None:
        before, self._serving, self.link = self._serving, None, ""
        if before is not None:
            before.child.cancel()
        try:
            self._token = self._token or (kept_token(self._token_path) if self._token_path else new_token())
        except UserError as error:
            self._end(str(error))
            return
        if self.folders:
            options = ["--address", self._address, "--until-stdin-ends"]
            command = [*self._command, *map(str, self.folders), *options]
            serving = self._serving = _Serving(command, self._token, before)
            self._scheduler.in_background(serving.run, lambda reason: self._ended(serving, reason))
        self._listeners.tell()

    def _ended(self, serving: _Serving, reason: str) -> None:
        if serving is self._serving and not serving.child.is_cancelled:
            self._serving = None
            self._end(reason)

    def _end(self, reason: str) -> None:
        self.link, self.error = "", reason
        self._listeners.tell()
        self._tell(f"The web page of the runs has ended: {reason} It can be started again on the General tab.")


class _Serving:
    """One process. before: the one in whose place it comes."""

    def __init__(self, command: Sequence[str], token: str, before: _Serving | None):
        self.child = ChildProcess(variables={TOKEN_VARIABLE: token}, takes_lines=True)
        self.link = ""
        self._command = list(command)
        self._before = None if before is None else before.child

    def run(self) -> str:
        """Serve, until it ends. Returns why it has, which says nothing if it was cancelled."""
        if self._before is not None:
            self._before.end()  # so that the port is free again
            self._before = None
        port = next_free_port(PORT) or 0
        try:
            if not self.child.start([*self._command, "--port", str(port)]):
                return ""
        except OSError as error:
            return f"it could not be started ({error.strerror})."
        done = self.child.wait(heard=self._hear)
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else f"{_how_it_ended(done.returncode)}."

    def _hear(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace").strip()
        if not self.link and text.startswith("http://"):
            self.link = text


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"its process has ended with exit code {code}"
    try:
        return f"its process was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"its process was ended by signal {-code}"
