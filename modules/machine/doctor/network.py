"""Checks what ranks need in order to find each other: a port, loopback, name resolution and a clock."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable

from modules.machine.doctor.CheckResult import CheckResult
from modules.machine.ports import LOOPBACK, PORTS_TO_TRY, next_free_port

NOT_BEFORE = 1_767_225_600  # 2026-01-01 UTC: Chorus is younger
CONNECT_SECONDS = 5


def check_port(port: int, num_nodes: int = 1, node_rank: int = 0) -> CheckResult:
    """Check `initial_port`, where the ranks meet: on machine 0 of several it has to be free."""
    free = next_free_port(port, LOOPBACK if num_nodes == 1 else "")
    values = {"port": port, "next_free": free}
    if free is None:
        remedy = "Set another initial_port, such as 29500, and see whether anything may listen here at all."
        text = f"{port} and the next {PORTS_TO_TRY} are busy or forbidden"
        return CheckResult("port", "fails", text, remedy, values=values)
    if free == port or node_rank > 0:
        text = f"{port} is free" if free == port else f"{port} is busy, which does not matter on machine {node_rank}"
        return CheckResult("port", "ok", text, values=values)
    if num_nodes > 1:
        remedy = f"End what uses it, or set initial_port to {free} on every machine."
        text = f"{port} is busy, and all machines have to meet there"
        return CheckResult("port", "fails", text, remedy, values=values)
    remedy = f"Nothing: runs on this machine alone take the next free one, {free}."
    return CheckResult("port", "warning", f"{port} is busy", remedy, values=values)


def check_loopback() -> CheckResult:
    """Check that processes of this machine can connect to each other by TCP, as ranks do."""
    try:
        with socket.create_server((LOOPBACK, 0)) as server:
            server.settimeout(CONNECT_SECONDS)
            with socket.create_connection(server.getsockname(), CONNECT_SECONDS), server.accept()[0]:
                return CheckResult("loopback", "ok", f"programs reach each other at {LOOPBACK}")
    except OSError as error:
        text = f"programs can't reach each other at {LOOPBACK} ({error.strerror or error})"
        return CheckResult("loopback", "fails", text, "Bring the interface lo up, and allow it in the firewall.")


def own_addresses(resolve: Callable[[str], tuple] = socket.gethostbyname_ex) -> list[str]:
    """The addresses that this machine's name resolves to, as libraries look it up; empty if none."""
    with contextlib.suppress(OSError, UnicodeError):
        return list(resolve(socket.gethostname())[2])
    return []


def check_clock(now: Callable[[], float] = time.time) -> CheckResult:
    seconds = now()
    text = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))
    if seconds >= NOT_BEFORE:
        return CheckResult("clock", "ok", text, values={"unix_time": seconds})
    remedy = "Set the clock: backups, logs and certificates of downloads go by it."
    return CheckResult("clock", "warning", f"{text}, which is past", remedy, values={"unix_time": seconds})
