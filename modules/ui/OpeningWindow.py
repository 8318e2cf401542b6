"""The main window before the settings are imported: its frame, on the screen half a second before the rest.

It imports nothing of the settings, which take longer than all of this; TrainUI takes it over.
"""

from __future__ import annotations

import contextlib
import time
import tkinter
from pathlib import Path

import customtkinter as ctk

from modules.config.errors import UserError
from modules.session.RunLock import RunLock
from modules.ui.models.Preferences import Preferences
from modules.ui.RootWindow import RootWindow
from modules.ui.theme import Theme
from modules.ui.widgets.dialogs import NO_LIMIT, ROUNDED, fit_all_to_screen, place, position_of, set_size
from modules.ui.widgets.TabBar import TabBar
from modules.ui.widgets.Tooltip import Tooltip

TABS = {
    "home": "HomeTab",
    "general": "GeneralTab",
    "model": "ModelTab",
    "dataset": "DatasetTab",
    "training": "TrainingTab",
    "multi-GPU": "MultiGpuTab",
    "sampling": "SamplingTab",
    "backup": "BackupTab",
    "tools": "ToolsTab",
    "queue": "QueueTab",
    "monitor": "MonitorTab",
}
FORMER_TABS = {"data": "dataset", "concepts": "dataset"}  # names that may still be in the preferences
MIN_SIZE = (860, 540)
AGAIN_MS = 100
DRAWN_SECONDS = 1.0  # a window that starts minimized is never drawn
TOP_HEIGHT, BOTTOM_HEIGHT = 48, 71  # unscaled pixels, of the bars that take the place of the empty ones


class OpeningWindow(RootWindow):
    """The window with its tabs, in the size and place in which it was left.

    state_dir: as in TrainUI. first_notice: why nothing is kept there; empty if it is.
    """

    def __init__(self, state_dir: Path | None = None):
        self._lock = contextlib.ExitStack()
        self.state_dir, self.first_notice = state_dir, ""
        self._take_state()
        super().__init__(Preferences.load(self.state_dir / "window.json" if self.state_dir else None))
        self.title("Chorus")
        self._empty: list[tkinter.Misc] = []
        self._build_frame()

    def show(self) -> bool:
        """Draw the window with empty bars and an empty page; whether it is still open.

        From then on, nothing is taken from the queue of Tk's events until TrainUI has filled the window, so that keys
        and clicks reach what is there then.
        """
        self.is_opening = True
        self._show_empty()
        self.tab_bar.select(self.first_tab)
        is_open = True

        def close() -> None:
            nonlocal is_open
            is_open = False

        self.protocol("WM_DELETE_WINDOW", close)
        end = time.monotonic() + DRAWN_SECONDS
        self.after(int(1000 * DRAWN_SECONDS), lambda: None)  # an event that ends the last wait
        while is_open and not self.is_drawn and time.monotonic() < end:
            self.tk.dooneevent(0)
        self.update_idletasks()
        self.winfo_pointerx()  # an answer of the display comes after all that it was given to draw
        if not is_open:
            self.destroy()
        return is_open

    def end_opening(self) -> None:
        """The bars and the page are made: what was in their place goes."""
        self.is_opening = False
        for widget in self._empty:
            widget.destroy()
        self._empty = []

    @property
    def first_tab(self) -> str:
        """The tab that is in front at first: the last one, or the one chosen since."""
        last = FORMER_TABS.get(self.preferences.tab, self.preferences.tab)
        return last if last in TABS else "home"

    def open_tab(self, name: str) -> ctk.CTkFrame | None:
        """Open a tab once the settings are there."""
        self.preferences.tab = name
        self.tab_bar.select(name)
        return None

    def show_help(self) -> None:
        """Open the page of the documentation about the tab in front: here, once there is one."""
        self.after(AGAIN_MS, lambda: self.show_help())

    def set_show_all(self, show_all: bool) -> None:
        """Show all settings, or only the basic ones."""
        self.preferences.show_all = show_all
        self.filter.set("All" if show_all else "Basic")

    def destroy(self) -> None:
        self._lock.close()
        super().destroy()

    def _take_state(self) -> None:
        """Lock the folder of the state, or do without."""
        if self.state_dir is None:
            return
        try:
            self.state_dir.mkdir(parents=True, exist_ok=True)
            self._lock.enter_context(RunLock(self.state_dir / "window.lock"))
        except UserError:
            self.first_notice = "Another window of Chorus is open here: the settings of this one are not kept."
            self.state_dir = None
        except OSError as error:
            reason = f"{self.state_dir} can't be written ({error.strerror})"
            self.first_notice = f"{reason}: settings are not kept for next time."
            self.state_dir = None

    def _build_frame(self) -> None:
        self.maxsize(NO_LIMIT, NO_LIMIT)  # else CustomTkinter would limit its size for a second after the scale is set
        self._given_size = (0, 0)  # in screen pixels
        self._fit_to_screen(self.preferences.geometry)
        self._wanted_size = self._given_size  # that of a person, which a larger scale may not allow
        self._fitted_scale = self.theme.scaled(100)
        self.theme.on_change(self._fit_again)
        self.grid_columnconfigure(0, weight=1)
        self.grid_rowconfigure(2, weight=1)
        row = ctk.CTkFrame(self, fg_color="transparent")
        row.grid(row=1, column=0, sticky="ew", padx=14, pady=(10, 4))
        row.grid_columnconfigure(0, weight=1)
        # by their names: TrainUI has methods of its own for them
        self.tab_bar = TabBar(row, self, list(TABS), lambda name: self.open_tab(name))
        self.tab_bar.grid(row=0, column=0, sticky="w")
        self.filter = ctk.CTkSegmentedButton(
            row, values=["Basic", "All"], font=self.theme.font(), command=lambda name: self.set_show_all(name == "All")
        )
        self.filter.set("All" if self.preferences.show_all else "Basic")
        self.filter.grid(row=0, column=1, sticky="e", padx=(8, 0))
        self.help_button = ctk.CTkButton(
            row, text="Help", width=20, height=28, font=self.theme.font(), command=lambda: self.show_help()
        )
        self.help_button.grid(row=0, column=2, sticky="e", padx=(8, 0))
        Tooltip(self.help_button, self.theme, lambda: "Open the page of the documentation about this tab (F1).")
        row._canvas.bind("<Configure>", lambda event: self._fit_tabs(event.width), add="+")
        self.content = ctk.CTkFrame(self, fg_color="transparent")
        self.content.grid(row=2, column=0, sticky="nsew", padx=8)
        self.content.grid_columnconfigure(0, weight=1)
        self.content.grid_rowconfigure(0, weight=1)

    def _show_empty(self) -> None:
        """Bars and a page without anything in them that could be clicked."""
        for row, height in ((0, TOP_HEIGHT), (3, BOTTOM_HEIGHT)):
            bar = tkinter.Frame(self, height=self.theme.scaled(height), bg=self.theme.now(Theme.bar))
            bar.grid(row=row, column=0, sticky="ew")
            self._empty.append(bar)
        title = ctk.CTkLabel(self._empty[0], text="Chorus", font=self.theme.font(19, "bold"), bg_color=Theme.bar)
        title.place(x=14, rely=0.5, anchor="w")
        label = ctk.CTkLabel(self.content, text="Loading the settings…", text_color=Theme.muted, font=self.theme.font())
        label.grid(row=0, column=0)
        self._empty.append(label)

    def _fit_tabs(self, width: int) -> None:
        beside = self.filter.winfo_reqwidth() + self.help_button.winfo_reqwidth()
        self.tab_bar.fit(width - beside - self.theme.scaled(16))

    def _fit_to_screen(self, geometry: str) -> None:
        """Set the size and position in `geometry`, and a minimum size, all limited by the screen.

        Also after a change of the scale: CustomTkinter would enlarge the window beyond the screen.
        """
        if geometry.partition("+")[0] != "1x1":  # the window already has a size
            self._given_size = set_size(self, geometry, MIN_SIZE)

    def _fit_again(self) -> None:
        """After a change of the scale: window managers that have placed the window themselves may move it to a corner
        when its size is set."""
        if self.theme.scaled(100) == self._fitted_scale:
            return
        self._fitted_scale = self.theme.scaled(100)
        position = position_of(self) if self.winfo_viewable() else None
        size, scale = (self.winfo_width(), self.winfo_height()), ctk.ScalingTracker.get_window_scaling(self)
        if size[0] > 1 and max(abs(now - given) for now, given in zip(size, self._given_size, strict=True)) > ROUNDED:
            self._wanted_size = size  # it has been resized since
        self._fit_to_screen("x".join(str(round(pixels / scale)) for pixels in self._wanted_size))
        if position is not None:
            place(self, *position)
        fit_all_to_screen(self)
