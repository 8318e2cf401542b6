"""What a person asks of a running training."""

import threading

COMMANDS = ("stop", "sample", "backup", "save")


class TrainCommands:
    """Requests from any thread, taken by the training between two steps."""

    def __init__(self) -> None:
        # reentrant: a signal handler asks for a stop while the same thread may be taking commands
        self._lock = threading.RLock()
        self._pending: set[str] = set()
        self.requeues = False  # whether the stop was asked for by `requeue`

    def stop(self) -> None:
        """End the training after the current step."""
        self._request("stop")

    def requeue(self) -> None:
        """End the training after the current step, with a backup that the same job will go on from."""
        self.requeues = True
        self.stop()

    def sample(self) -> None:
        """Make the samples now."""
        self._request("sample")

    def backup(self) -> None:
        """Write a backup now."""
        self._request("backup")

    def save(self) -> None:
        """Save the model now and go on."""
        self._request("save")

    def take(self) -> frozenset[str]:
        """The pending commands, which then are pending no more; only "stop" stays and is in every later answer."""
        with self._lock:
            taken = frozenset(self._pending)
            self._pending &= {"stop"}
        return taken

    @property
    def stopping(self) -> bool:
        """Whether a stop was asked for; a long phase such as caching looks here to end early."""
        with self._lock:
            return "stop" in self._pending

    def _request(self, command: str) -> None:
        with self._lock:
            self._pending.add(command)
