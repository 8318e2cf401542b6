"""Requests to a running training."""

import threading

COMMANDS = ("stop", "sample", "backup", "save")


class TrainCommands:
    """Requests from any thread, which the training takes between two steps."""

    def __init__(self) -> None:
        # reentrant: a signal handler may request a stop while its own thread is taking commands
        self._lock = threading.RLock()
        self._pending: set[str] = set()
        self.requeues = False  # whether the stop was requested by `requeue`

    def stop(self) -> None:
        """End the training within two steps."""
        self._request("stop")

    def requeue(self) -> None:
        """End the training within two steps, with a backup from which the requeued job will resume."""
        self.requeues = True
        self.stop()

    def sample(self) -> None:
        """Make the samples now."""
        self._request("sample")

    def backup(self) -> None:
        """Write a backup now."""
        self._request("backup")

    def save(self) -> None:
        """Save the model now and continue."""
        self._request("save")

    def take(self) -> frozenset[str]:
        """Return and clear the pending commands; only "stop" stays and is returned by every later call."""
        if not self._pending:  # as in nearly all steps
            return frozenset()
        with self._lock:
            taken = frozenset(self._pending)
            self._pending &= {"stop"}
        return taken

    @property
    def stopping(self) -> bool:
        """Whether a stop was requested; a long phase such as caching checks it to end early."""
        with self._lock:
            return "stop" in self._pending

    def _request(self, command: str) -> None:
        with self._lock:
            self._pending.add(command)
