"""Messages about a run to a chat or a phone, while it trains and at its end."""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from modules.config.errors import UserError
from modules.config.files import load_config
from modules.config.TrainConfig import TrainConfig
from modules.config.WebhookConfig import SERVICES
from modules.loggers.Logger import CLOSE_SECONDS, LoggedRun, Logger
from modules.loggers.webhook_address import Address, address_error, read_address
from modules.loggers.webhook_messages import Message
from modules.loggers.webhook_sending import PAUSES, NotSentError, deliver, deliver_within
from modules.session.printing import print_line
from modules.session.RunFolder import RunFolder
from modules.session.StepInfo import StepInfo

MAX_WAITING = 20  # messages; more are left out
LAST_SECONDS = 3.0  # for those that wait when the training ends
END_SECONDS = {"finished": 10.0, "failed": 10.0, "stopped": 5.0}  # who stops a run may not give it long


class WebhookLogger(Logger):
    """Sends a message at the start and every so many steps. A thread of its own sends them: no step waits for it.

    A message is tried three times. The first that can't be sent is told by a warning, and training continues.
    `tell_end` sends how the run ended, from the process that knows it.
    """

    title = "Webhook"

    def __init__(self, service: str, address: Address, on_start: bool = True, every_steps: int = 0):
        """every_steps: 0 for no messages in between."""
        super().__init__(every_steps or 1)
        self._service, self._address = service, address
        self._on_start, self._in_between = on_start, every_steps > 0
        self._messages: queue.Queue[Message | None] = queue.Queue(MAX_WAITING)
        self._closing = threading.Event()
        self._failures: queue.SimpleQueue[str] = queue.SimpleQueue()  # told by the thread of the training only
        self._has_warned = False
        self._thread: threading.Thread | None = None

    def start(self, run: LoggedRun) -> None:
        self._run = run
        self._thread = threading.Thread(target=self._send_all, name=self.title, daemon=True)
        self._thread.start()
        if self._on_start:
            self._put(Message(run.folder.name, "resumed" if run.resumes else "started", time=time.time()))

    def on_step(self, info: StepInfo) -> None:
        self._warn_once()
        if self._in_between and info.step % self._every_steps == 0 and info.step != info.steps_total:
            loss = info.loss if info.smooth_loss is None else info.smooth_loss
            self._put(Message(self._run.folder.name, "progress", "", info.step, info.steps_total, loss, time.time()))

    def log_figures(self, figures: Mapping[str, float], step: int) -> None:
        """Messages have the loss of a step only."""

    def end(self) -> None:
        if self._thread is not None and not self._closing.is_set():
            self._closing.set()
            self._put(None)

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        self.end()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(min(seconds, LAST_SECONDS))
            self._warn_once()

    def _put(self, message: Message | None) -> None:
        try:
            self._messages.put_nowait(message)
        except queue.Full:  # it has failed for long, which was told
            if message is None:
                self._messages.get()
                self._messages.put_nowait(None)

    def _send_all(self) -> None:
        while (message := self._messages.get()) is not None:
            try:
                deliver(self._service, self._address, message, PAUSES, pause=self._closing.wait)
            except NotSentError as error:
                self._failures.put(str(error))

    def _warn_once(self) -> None:
        if not self._has_warned and not self._failures.empty():
            self._has_warned = True
            name, reason = SERVICES[self._service], self._failures.get()
            self._run.warn(f"{name} webhook: a message could not be sent ({reason}); training continues.")


def webhook_logger(config: TrainConfig) -> WebhookLogger:
    """That of the settings. Raises UserError if there is no address."""
    service, address = config.webhook.service, read_address()
    if (error := address_error(service)) or address is None:
        raise UserError.at("webhook.service", f"{service}: {error}.")
    return WebhookLogger(service, address, config.webhook.on_start, config.webhook.every_steps)


def tell_end(
    folder: RunFolder, config: TrainConfig | None = None, since: float = 0.0, most_seconds: float = 10.0
) -> None:
    """Send how the run ended, as its exit.json says: the last act of the process that has written it.

    config: None: that of the run folder. since: an older record, in Unix seconds, is of an earlier run. most_seconds:
    that it may take; less if the run was stopped. What can't be sent is printed.
    """
    try:
        record = folder.read_exit()
        config = load_config(folder.config_path) if config is None else config
    except (OSError, UserError):  # there is nothing to tell, or nobody who wants it
        return
    if config.webhook.service == "off" or not record or record.get("time", 0.0) < since:
        return
    status = record.get("status")
    if status not in END_SECONDS:
        return
    seconds = min(most_seconds, END_SECONDS[status])
    reason, address = "no address is saved on this machine", read_address()
    if address is not None:
        reason = deliver_within(seconds, config.webhook.service, address, _last_message(folder, record))
    if reason:
        print_line(f"{SERVICES[config.webhook.service]} webhook: the end was not told ({reason}).", sys.stderr)


def _last_message(folder: RunFolder, record: Mapping[str, Any]) -> Message:
    from modules.session.following import run_info

    info = run_info(folder.path)
    step, total, loss = (0, 0, None) if info is None else (info.step, info.total, info.loss)
    when, text = float(record.get("time", 0.0)), str(record.get("text") or "")
    return Message(folder.path.name, record["status"], text, step, total, loss, when)
