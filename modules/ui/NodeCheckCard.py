"""The check of several machines: whether they reach each other, and agree in settings and versions."""

from __future__ import annotations

import time
import tkinter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from modules.config.errors import UserError
from modules.config.TrainConfig import TrainConfig
from modules.session.node_check import (
    Finding,
    NodeAnswerer,
    ask_node,
    check_own_address,
    compare_nodes,
    describe_node,
    next_free_port,
)
from modules.ui.Card import Card
from modules.ui.theme import Theme

if TYPE_CHECKING:
    from modules.ui.App import App

RETRY_MS = 1000  # between two attempts to reach machine 0
MARKS = {True: "✓", False: "✕", None: "-"}
HINT = (
    "Start the check in the window of every machine: machine 0 listens at the port, the others ask it and compare "
    "settings and versions."
)


@dataclass
class _Check:
    """A check that goes on. own: what this machine is like. answerer: on machine 0, the one that tells it."""

    config: TrainConfig
    started: float
    own: dict[str, Any] | None = None
    answerer: NodeAnswerer | None = None

    @property
    def place(self) -> str:
        return f"{self.config.master_addr}:{self.config.initial_port}"

    @property
    def seconds(self) -> int:
        return int(time.monotonic() - self.started)


class NodeCheckCard(Card):
    """findings: of the check that goes on, or of the last one."""

    def __init__(self, parent: tkinter.Misc, app: App):
        super().__init__(parent, app, "Check")
        self.findings: list[Finding] = []
        self._check: _Check | None = None
        self._waiting: str | None = None
        self.add_note(1).configure(text=HINT)
        self.note = self.add_note(2, Theme.text)
        [self.button] = self.add_buttons(3, ("Check nodes", self.toggle))

    @property
    def is_checking(self) -> bool:
        return self._check is not None

    def toggle(self) -> None:
        """Start a check, or stop the one that goes on."""
        if self._check is not None:
            self._end("Stopped.")
            return
        config = self.app.settings.config()
        self.findings = []
        if config is None:
            self._tell("A setting holds what it can't take: mend it first.")
            return
        check = self._check = _Check(config, time.monotonic())
        self.button.configure(text="Stop the check")
        self._tell("Reading versions ...")
        self._work(check, lambda: describe_node(config), self._begin)

    def destroy(self) -> None:
        self._close()
        super().destroy()

    def _begin(self, check: _Check, own: dict[str, Any]) -> None:
        check.own = own
        if check.config.node_rank > 0:
            self._ask(check)
            return
        check.answerer = NodeAnswerer(own, int(check.config.initial_port))
        self._work(check, lambda: _listen(check), self._listening)

    def _listening(self, check: _Check, findings: list[Finding]) -> None:
        self.findings = findings
        if any(finding.is_ok is False for finding in findings):
            self._end("")
        else:
            self._count(check)

    def _count(self, check: _Check) -> None:
        """Machine 0 waits until all others have asked."""
        asked, expected = sorted(set(check.answerer.asked)), check.config.num_nodes - 1
        if len(asked) < expected:
            self._tell(f"Waiting for the others ({len(asked)} of {expected}, {check.seconds} s)")
            self._later(lambda: self._count(check))
            return
        self.findings.append(Finding(f"All others have asked: {', '.join(asked) or 'there are none'}", True))
        self._end("What differs is shown on those machines.")

    def _ask(self, check: _Check) -> None:
        self._tell(f"Waiting for machine 0 at {check.place} ({check.seconds} s)")
        address, port = check.config.master_addr, int(check.config.initial_port)
        self._work(check, lambda: _ask(address, port), self._answered)

    def _answered(self, check: _Check, answer: dict[str, Any] | OSError | None) -> None:
        if isinstance(answer, OSError):  # it does not listen yet or can't be reached: from here it looks the same
            self._later(lambda: self._ask(check))
            return
        if answer is None:
            text = f"Something else answers at {check.place}: start the check on machine 0 too, before any training"
            self.findings = [Finding(text, False)]
        else:
            self.findings = [Finding(f"Machine 0 answers at {check.place}", True), *compare_nodes(check.own, answer)]
        self._end("")

    def _work(self, check: _Check, work: Callable[[], Any], then: Callable[[_Check, Any], None]) -> None:
        """In a thread; what comes after the check has ended is passed over."""

        def take(result: Any) -> None:
            if check is self._check:
                then(check, result)
            elif check.answerer is not None:
                check.answerer.close()

        def fail(error: Exception) -> None:
            if not isinstance(error, UserError):
                raise error
            if check is self._check:
                self.findings.append(Finding(str(error), False))
                self._end("")

        self.app.in_background(work, take, fail)

    def _later(self, job: Callable[[], None]) -> None:
        self._waiting = self.after(RETRY_MS, job)

    def _end(self, state: str) -> None:
        self._close()
        self.button.configure(text="Check nodes")
        self._tell(state)

    def _close(self) -> None:
        check, self._check = self._check, None
        if check is not None and check.answerer is not None:
            check.answerer.close()
        if self._waiting is not None:
            self.after_cancel(self._waiting)
            self._waiting = None

    def _tell(self, state: str) -> None:
        lines = [f"{MARKS[finding.is_ok]} {finding.text}" for finding in self.findings]
        is_bad = any(finding.is_ok is False for finding in self.findings)
        text = "\n".join([*lines, *([state] if state else [])])
        self.note.configure(text=text, text_color=Theme.error if is_bad else Theme.text)


def _listen(check: _Check) -> list[Finding]:
    port = int(check.config.initial_port)
    findings = [check_own_address(check.config.master_addr)]
    try:
        check.answerer.start()
    except UserError as error:
        free = next_free_port(port + 1)
        return [*findings, Finding(f"{error} Port {free} is free." if free else str(error), False)]
    return [*findings, Finding(f"Port {port}: free here", True)]


def _ask(address: str, port: int) -> dict[str, Any] | OSError | None:
    try:
        return ask_node(address, port)
    except OSError as error:
        return error
