"""Somebody who sits at the window: sees what it shows, and uses a mouse and a keyboard."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from modules.ui.widgets.TabBar import tab_title
from tests.support import window_manager
from tests.support.StartedRun import MARK, find_processes
from tests.support.waiting import PATIENCE_SECONDS

WATCHED = Path(__file__).with_name("watched_window.py")
BLINK_SECONDS = 0.15
REST_SECONDS = 1.0  # between looks at what takes long: each takes the window 20 ms of processor time
PATIENT_AFTER_SECONDS = 3.0
# In a process of its own: Tk never lets go of a display, and ends its process when one is gone.
CLIPBOARD = """
import contextlib, tkinter
with contextlib.suppress(tkinter.TclError):  # there is nothing in it
    print(tkinter.Tk().clipboard_get(), end="")
"""


class Person:
    """At the screen `display`, before a window of the Chorus in the folder `chorus`, if one is open. errors: a file for
    what its windows write to stderr.

    What is done goes through the X server, as from a mouse and a keyboard; nothing else gets to the window. What is
    seen comes from `watched_window.look`. There is no window manager: whoever looks gives the newest window the keys.
    """

    def __init__(self, display: str, chorus: Path, errors: Path):
        self._chorus, self._errors, self._mark = chorus, errors, secrets.token_hex(8)
        self._environment = {**os.environ, "DISPLAY": display, "CUDA_VISIBLE_DEVICES": "", MARK: self._mark}
        self.window: subprocess.Popen | None = None
        self._has_keys = 0  # the number of a window

    # --- the window ---------------------------------------------------------------------------------------------------

    def open(self, *options: str) -> None:
        """Start the window, and wait until it is there."""
        with self._errors.open("a") as errors:
            self.window = subprocess.Popen(
                [sys.executable, str(WATCHED), str(self._chorus), *options],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=self._environment,
                cwd=self._chorus,
            )
        self.wait(lambda seen: reads(seen, "Check"))

    def start_beside(self, command: Sequence[str]) -> subprocess.Popen:
        """Start another program, as from a terminal."""
        return subprocess.Popen(command, env=self._environment, cwd=self._chorus, stdout=subprocess.DEVNULL)

    def see(self) -> dict[str, Any]:
        """What the window shows now. EOFError if it is closed, TimeoutError if it is stuck."""
        with contextlib.suppress(BrokenPipeError):
            self.window.stdin.write("?\n")
            self.window.stdin.flush()
        if not select.select([self.window.stdout], [], [], PATIENCE_SECONDS)[0]:
            raise TimeoutError(f"the window does not answer; it said:\n{self._errors.read_text()}")
        line = self.window.stdout.readline()
        if not line:
            raise EOFError(f"the window is closed; it said:\n{self._errors.read_text()}")
        seen = json.loads(line)
        # Before anything is done: with the keys nowhere Tk takes and leaves them with the mouse, later than they are
        # given here, and what is typed then is lost.
        if seen["windows"] and seen["windows"][-1] != self._has_keys:
            self._has_keys = seen["windows"][-1]
            window_manager.give_keys(self._environment["DISPLAY"], self._has_keys)
        return seen

    def kill_window(self) -> None:
        """The window dies at once, as in a crash; what it has started goes on."""
        self.window.kill()
        self._let_go()

    def wait_until_closed(self) -> int:
        """Returns the exit code of the window."""
        code = self.window.wait(PATIENCE_SECONDS)
        self._let_go()
        return code

    def leave(self) -> None:
        """Ends the window and all that it has started."""
        while pids := find_processes({MARK: self._mark}):  # again, for what they have started meanwhile
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if self.window is not None:
                self.window.wait()
        if self.window is not None:
            self._let_go()

    def _let_go(self) -> None:
        self.window.wait()
        self.window.stdin.close()
        self.window.stdout.close()
        self.window, self._has_keys = None, 0

    # --- eyes ---------------------------------------------------------------------------------------------------------

    def wait(self, condition: Callable[[dict[str, Any]], Any], seconds: float = PATIENCE_SECONDS) -> dict[str, Any]:
        """Look until the condition holds for what is seen; returns that."""
        begin = time.monotonic()
        while not condition(seen := self.see()):
            waited = time.monotonic() - begin
            assert waited < seconds, f"not seen in {seconds} s, but {describe(seen)}"
            time.sleep(BLINK_SECONDS if waited < PATIENT_AFTER_SECONDS else REST_SECONDS)
        return seen

    def wait_for(self, text: str, seconds: float = PATIENCE_SECONDS) -> dict[str, Any]:
        """Look until `text` is part of what is written somewhere."""
        return self.wait(lambda seen: reads(seen, text), seconds)

    # --- hands --------------------------------------------------------------------------------------------------------

    def click(self, text: str) -> None:
        """Wait for the button with this text, and click on it."""
        self.click_at(*self._place_of(text, "buttons"))

    def open_tab(self, name: str) -> None:
        """Click on a tab, and wait until it is in front."""
        self.click(tab_title(name))
        self.wait(lambda seen: seen["tab"] == name)

    def click_text(self, text: str) -> None:
        """Wait for a place where this is written, and click there."""
        self.click_at(*self._place_of(text, "words"))

    def click_field(self, path: str) -> None:
        """Click into the field of a setting, which is on the tab in front."""
        seen = self.wait(lambda seen: path in seen["fields"])
        self.click_at(*seen["fields"][path]["place"])

    def click_at(self, x: int, y: int) -> None:
        self._do("mousemove", str(x), str(y), "click", "1")

    def scroll_down(self, over: str) -> None:
        """Turn the wheel over this button, to the end of what it stands on."""
        x, y = self._place_of(over, "buttons")
        self._do("mousemove", str(x), str(y), "click", "--repeat", "60", "--delay", "5", "5")

    def press(self, *keys: str) -> None:
        """Press keys one after the other, such as "ctrl+f"."""
        self.see()
        self._do("key", "--delay", "20", *keys)

    def write(self, text: str) -> None:
        """Type a text where the cursor is."""
        self.see()
        self._do("type", "--delay", "8", text)

    def find_setting(self, path: str, name: str) -> dict[str, Any]:
        """Lead the keys to the field of the setting at `path`, by a search for `name`. Returns what is seen then."""
        self.press("ctrl+f")
        self.wait(lambda seen: seen["focus"] == "search")
        self.write(name)
        self.wait(lambda seen: any(word.startswith(f"  {name}   (") for word, _, _ in seen["words"]))
        self.press("Return")
        return self.wait(lambda seen: seen["focus"] == path)

    def set_value(self, path: str, name: str, value: str) -> None:
        """Type another value into the field of a setting."""
        self.find_setting(path, name)
        self.write(value)  # in place of the old one, which is marked
        self.wait(lambda seen: field(seen, path)["shows"] == value)

    def enlarge_window(self) -> None:
        """Draw the window that was opened last to a large part of the screen."""
        window_manager.resize(self._environment["DISPLAY"], self.see()["windows"][-1], 1200, 1150)

    def close_window(self) -> None:
        """As with the cross in the title bar."""
        window_manager.ask_to_close(self._environment["DISPLAY"], self.see()["windows"][-1])

    def read_clipboard(self) -> str:
        """The text in the clipboard; "" while there is none."""
        reader = subprocess.run(
            [sys.executable, "-c", CLIPBOARD], env=self._environment, capture_output=True, text=True, check=True
        )
        return reader.stdout

    def _place_of(self, text: str, kind: str) -> tuple[int, int]:
        """Where this is written, once it stands still: a window that opens moves to its place."""
        before = None
        while True:
            seen = self.wait(lambda seen: any(word == text for word, _, _ in seen[kind]))
            place = next((x, y) for word, x, y in seen[kind] if word == text)
            if place == before:
                return place
            before = place
            time.sleep(BLINK_SECONDS)

    def _do(self, *arguments: str) -> None:
        subprocess.run(["xdotool", *arguments], env=self._environment, check=True, timeout=PATIENCE_SECONDS)


def reads(seen: dict[str, Any], text: str) -> bool:
    """Whether `text` is part of what is written somewhere."""
    return any(text in word for word, _, _ in seen["words"])


def field(seen: dict[str, Any], path: str) -> dict[str, Any]:
    """What the field of a setting shows, and whether it is lit; of one that is not in sight, neither."""
    return seen["fields"].get(path, {"shows": None, "is_lit": False})


def describe(seen: dict[str, Any]) -> str:
    """In a few lines, for the message of a test that fails."""
    words = " | ".join(word.replace("\n", " / ") for word, _, _ in seen["words"] if word)
    fields = {path: one["shows"] for path, one in seen["fields"].items()}
    others = {name: seen[name] for name in ("titles", "tab", "focus", "curve", "pictures", "run")}
    return f"the window shows\n{words}\nfields: {fields}\n{others}"
