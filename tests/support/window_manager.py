"""What a window manager does, for a screen that has none: it gives windows the keys and a size, and closes them."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator

CLIENT_MESSAGE = 33
REVERT_TO_PARENT = 2
CURRENT_TIME = 0

_ErrorHandler = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_ignore_error = _ErrorHandler(lambda display, error: 0)


class _ClientMessage(ctypes.Structure):
    """XClientMessageEvent, with the room of an XEvent."""

    _fields_ = [
        ("type", ctypes.c_int),
        ("serial", ctypes.c_ulong),
        ("send_event", ctypes.c_int),
        ("display", ctypes.c_void_p),
        ("window", ctypes.c_ulong),
        ("message_type", ctypes.c_ulong),
        ("format", ctypes.c_int),
        ("data", ctypes.c_long * 5),
        ("rest", ctypes.c_long * 24),
    ]


def give_keys(screen: str, window: int) -> None:
    """What is typed goes to this window of Tk, by its winfo_id, from now on."""
    with _opened(screen) as (x11, display):
        x11.XSetInputFocus(display, _wrapper(x11, display, window), REVERT_TO_PARENT, CURRENT_TIME)


def resize(screen: str, window: int, width: int, height: int) -> None:
    """As by its corner."""
    with _opened(screen) as (x11, display):
        x11.XResizeWindow(display, _wrapper(x11, display, window), width, height)


def ask_to_close(screen: str, window: int) -> None:
    """As the cross in the title bar does: WM_DELETE_WINDOW.

    Source: Inter-Client Communication Conventions Manual, 4.2.8.1.
    """
    with _opened(screen) as (x11, display):
        protocols, delete = (x11.XInternAtom(display, name, 0) for name in (b"WM_PROTOCOLS", b"WM_DELETE_WINDOW"))
        wrapper = _wrapper(x11, display, window)
        message = _ClientMessage(CLIENT_MESSAGE, window=wrapper, message_type=protocols, format=32)
        message.data[0] = delete
        x11.XSendEvent(display, wrapper, 0, ctypes.c_long(0), ctypes.byref(message))


@contextlib.contextmanager
def _opened(screen: str) -> Iterator[tuple[ctypes.CDLL, ctypes.c_void_p]]:
    """What is asked for a window that has closed meanwhile comes to nothing."""
    x11 = ctypes.CDLL("libX11.so.6")
    x11.XSetErrorHandler.restype = ctypes.c_void_p
    x11.XOpenDisplay.restype = ctypes.c_void_p
    x11.XInternAtom.restype = ctypes.c_ulong
    display = ctypes.c_void_p(x11.XOpenDisplay(screen.encode()))
    before = ctypes.c_void_p(x11.XSetErrorHandler(_ignore_error))  # Xlib's own ends the process
    try:
        yield x11, display
    finally:
        x11.XCloseDisplay(display)  # which sends what was asked for, and waits for the answers
        x11.XSetErrorHandler(before)


def _wrapper(x11: ctypes.CDLL, display: ctypes.c_void_p, window: int) -> ctypes.c_ulong:
    """The window that Tk puts around its own, for the window manager."""
    root, parent, count = ctypes.c_ulong(), ctypes.c_ulong(), ctypes.c_uint()
    children = ctypes.c_void_p()
    found = (ctypes.byref(value) for value in (root, parent, children, count))
    x11.XQueryTree(display, ctypes.c_ulong(window), *found)
    x11.XFree(children)
    return parent
