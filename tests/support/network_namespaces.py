"""Two hosts on one machine: network namespaces that are joined by a cable (veth) and reach nothing else.

Made as root or, where the kernel lets a user have namespaces, without it. They have no names, so that several test
runs don't meet, and the kernel removes them with their last process.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ADDRESSES = ("10.77.0.1", "10.77.0.2")
INTERFACE = "eth0"  # of each host, beside lo
TOOLS = ("ip", "nsenter", "unshare")
SET_UP_SECONDS = 60.0


class NamespacesNotAllowed(Exception):
    """str() is why this machine makes no hosts."""


class Host:
    """One of the two. address: as the other reaches it. interface: the one that has it. enter: what runs a command in
    it. holder: the process that keeps it."""

    def __init__(self, address: str, enter: Sequence[str], holder: subprocess.Popen):
        self.address = address
        self.interface = INTERFACE
        self._enter = list(enter)
        self._holder = holder
        self._started: list[subprocess.Popen] = []

    def command(self, argv: Sequence[str]) -> list[str]:
        """What runs `argv` on this host. It is replaced by `argv`, which so has its process ID."""
        return [*self._enter, *argv]

    def popen(
        self, argv: Sequence[str], env: Mapping[str, str] | None = None, cwd: str | Path | None = None, **options: Any
    ) -> subprocess.Popen:
        """subprocess.Popen on this host, with its options. env: None for that of this process."""
        process = subprocess.Popen(self.command(argv), env=env, cwd=cwd, **options)
        self._started.append(process)
        return process

    def run(
        self,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        timeout: float = 60.0,
        **options: Any,
    ) -> subprocess.CompletedProcess:
        """subprocess.run on this host; the output is captured as text."""
        options = {"capture_output": True, "text": True, **options}
        return subprocess.run(self.command(argv), env=env, cwd=cwd, timeout=timeout, **options)

    def pids(self) -> list[int]:
        """The processes that are on this host, whoever has started them."""
        network = os.readlink(f"/proc/{self._holder.pid}/ns/net")
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended just now, or is somebody else's
                if os.readlink(folder / "ns" / "net") == network and int(folder.name) != self._holder.pid:
                    found.append(int(folder.name))
        return found

    def end_all(self) -> None:
        """Ends every process on this host."""
        for process in self._started:  # one of them may not have come to the host yet
            process.kill()
            process.wait()
        while pids := self.pids():  # again, for what they have started meanwhile
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def make_two_hosts() -> Iterator[tuple[Host, Host]]:
    """Two hosts that reach each other; what runs on them ends with the block. Raises NamespacesNotAllowed."""
    if sys.platform != "linux":
        raise NamespacesNotAllowed("network namespaces are Linux's")
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        raise NamespacesNotAllowed(f"there is no {missing[0]} here")
    with contextlib.ExitStack() as stack:
        enter, first = _first_namespace(stack)
        second = _hold(stack, [*enter, "unshare", "-n"])
        enter_second = [part.replace(str(first.pid), str(second.pid)) for part in enter]
        _connect(enter, enter_second, second.pid)
        hosts = (Host(ADDRESSES[0], enter, first), Host(ADDRESSES[1], enter_second, second))
        for host in hosts:
            stack.callback(host.end_all)
        yield hosts


def _first_namespace(stack: contextlib.ExitStack) -> tuple[list[str], subprocess.Popen]:
    """What enters it, and what holds it: as root, else with a user namespace around both hosts."""
    enter = ["nsenter", "--target", "PID", "--net"]
    try:
        holder = _hold(stack, ["unshare", "-n"])
    except NamespacesNotAllowed:
        holder = _hold(stack, ["unshare", "-rn"])
        enter += ["--user", "--preserve-credentials"]
    return [str(holder.pid) if part == "PID" else part for part in enter], holder


def _hold(stack: contextlib.ExitStack, command: Sequence[str]) -> subprocess.Popen:
    """A process that does nothing in the namespace that `command` makes; it ends with this one, whatever happens."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    holder = subprocess.Popen([*command, "sh", "-c", "echo up; exec cat"], **pipes)
    stack.callback(_release, holder)
    if holder.stdout.readline() != b"up\n":
        reason = holder.stderr.read().decode(errors="replace").strip()
        raise NamespacesNotAllowed(f"network namespaces are not allowed here ({reason})")
    return holder


def _release(holder: subprocess.Popen) -> None:
    for pipe in (holder.stdin, holder.stdout, holder.stderr):
        pipe.close()
    holder.kill()
    holder.wait()


def _connect(enter: Sequence[str], enter_second: Sequence[str], second: int) -> None:
    other_end = ["peer", "name", INTERFACE, "netns", str(second)]
    commands = [[*enter, "ip", "link", "add", INTERFACE, "type", "veth", *other_end]]
    for inside, address in zip((enter, enter_second), ADDRESSES, strict=True):
        commands.append([*inside, "ip", "address", "add", f"{address}/24", "dev", INTERFACE])
        commands += [[*inside, "ip", "link", "set", name, "up"] for name in ("lo", INTERFACE)]
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SET_UP_SECONDS)
        if done.returncode:
            raise NamespacesNotAllowed(f"no cable between namespaces here ({done.stderr.strip()})")
