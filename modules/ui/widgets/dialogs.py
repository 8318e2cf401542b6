"""Dialogs, and the opening and placing of windows."""

from __future__ import annotations

import contextlib
import os
import re
import tkinter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from tkinter import filedialog
from typing import TYPE_CHECKING, Any, TypeVar, cast
from weakref import WeakKeyDictionary

import customtkinter as ctk

from modules.config.visible_text import visible_text
from modules.ui.models.path_picker import PathQuestion, pick, picker_command
from modules.ui.theme import Theme
from modules.ui.window_system import on_screens

if TYPE_CHECKING:
    from modules.ui.App import App

T = TypeVar("T")

TITLE_HEIGHT = 40  # screen pixels that a window manager needs above and below a window; Tk learns the number too late
NO_LIMIT = 1_000_000  # pixels: the value of CustomTkinter for a size without a limit
ROUNDED = 2  # screen pixels by which a size may differ from the one that was set
ANSWER_MS = 300  # until keys are accepted, so that a double press of the key that led here does not answer


class Question(ctk.CTkToplevel):
    """A question with a button for each answer. `answer` is the chosen one, None if the window was closed.

    answers: the first one is the safe one and has the focus. danger: the one shown in red.
    """

    def __init__(self, app: App, title: str, text: str, answers: Sequence[str], danger: str = ""):
        super().__init__(app.root)
        self.answer: str | None = None
        self.title(title)
        self.resizable(False, False)
        self.transient(app.root)
        width = min(440, self.winfo_screenwidth() / app.theme.scaled(100) * 100 - 80)
        font = app.theme.font(14)
        label = ctk.CTkLabel(self, text=visible_text(text), font=font, justify="left", wraplength=width)
        label.grid(row=0, column=0, padx=20, pady=(20, 12), sticky="w")
        bar = ctk.CTkFrame(self, fg_color="transparent")
        bar.grid(row=1, column=0, padx=20, pady=(0, 20), sticky="e")
        self.buttons = {answer: self._make_button(app, bar, answer, answer == danger) for answer in answers}
        for number, button in enumerate(self.buttons.values()):
            button.grid(row=0, column=number, padx=(8 if number else 0, 0))
        self.bind("<Escape>", lambda event: self.destroy())
        focus_soon(app, self.buttons[answers[0]]._canvas, ANSWER_MS)

    def choose(self, answer: str) -> None:
        self.answer = answer
        self.destroy()

    def _make_button(self, app: App, bar: tkinter.Misc, answer: str, is_danger: bool) -> ctk.CTkButton:
        colours = {"fg_color": Theme.stop, "hover_color": Theme.stop_hover, "text_color": Theme.on_accent}
        return ctk.CTkButton(
            bar,
            text=answer,
            width=90,
            font=app.theme.font(),
            command=lambda: self.choose(answer),
            **(colours if is_danger else {}),
        )


def ask(app: App, title: str, text: str, answers: Sequence[str], danger: str = "") -> str | None:
    """Ask a modal question and wait for the answer; None if it was closed, or if another question is already open."""

    def answer() -> str | None:
        question = Question(app, title, text, answers, danger)
        show_over(app, question)
        with contextlib.suppress(tkinter.TclError):  # closed before it was visible
            question.wait_visibility()
            question.grab_set()
        with contextlib.suppress(tkinter.TclError):  # the same
            question.wait_window()
        return question.answer

    return _one_at_a_time(app, answer)


def ask_path(app: App, question: PathQuestion, parent: tkinter.Misc | None = None) -> str:
    """Ask for a path with the desktop's dialog; "" if it was closed, or if another question is open.

    parent: the window that the dialog belongs to, if that is not the main one.
    """

    def answer() -> str:
        command = picker_command(question)
        chosen = None if command is None else _ask_program(app, command)
        if chosen is None:
            chosen = _ask_tk(question, parent or app.root)
        ending = os.path.splitext(question.name)[1]
        is_whole = question.kind != "new_file" or not chosen or os.path.splitext(chosen)[1]
        return chosen if is_whole else chosen + ending

    return _one_at_a_time(app, answer) or ""


Window = TypeVar("Window", bound=tkinter.Toplevel)


def open_window(app: App, kind: Callable[..., Window], *arguments: Any) -> Window:
    """Open the window `kind(app, *arguments)`; if it is already open, bring it to the front.

    There is only one window of a kind: one with other arguments is closed.
    """
    for child in app.root.winfo_children():
        if type(child) is kind:
            window = cast("Window", child)
            if getattr(window, "opened_with", None) == arguments:
                app.views.resume(window)
                bring_up(window)
                window.focus_set()
                return window
            window.destroy()
    window = kind(app, *arguments)
    window.opened_with = arguments  # type: ignore[attr-defined] # an attribute of our own
    return window


def set_size(window: tkinter.Toplevel | tkinter.Tk, size: str, min_size: tuple[int, int]) -> tuple[int, int]:
    """Set the window's size, such as 1280x800, and its minimum size, in unscaled pixels, limited to the screen.

    If the main window has a position, as in 1280x800+20+40, it is moved there, as far as that is on the screens.
    Returns the size that it was given, in screen pixels.
    """
    scale = ctk.ScalingTracker.get_window_scaling(window)
    screen = int(window.winfo_screenwidth() / scale), int((window.winfo_screenheight() - TITLE_HEIGHT) / scale)
    size, *position = re.split(r"\+(?=-?\d)", size)
    try:
        width, height = (int(part) for part in size.split("x"))
    except ValueError:  # invalid text from a file
        width, height = screen
    least = min(min_size[0], screen[0]), min(min_size[1], screen[1])
    window.minsize(*least)
    width, height = max(least[0], min(width, screen[0])), max(least[1], min(height, screen[1]))
    window.geometry(f"{width}x{height}")
    given = round(width * scale), round(height * scale)
    _fits[window] = _Fit(size, min_size, _scale_and_screen(window), given)
    if len(position) == 2 and all(re.fullmatch(r"-?\d+", one) for one in position):
        place(window, int(position[0]), int(position[1]), given)
    return given


@dataclass(frozen=True)
class _Fit:
    """What `set_size` was called with last. given: the size that the window got, in screen pixels."""

    size: str
    min_size: tuple[int, int]
    scale_and_screen: tuple[float, int, int]
    given: tuple[int, int]


_fits: WeakKeyDictionary[tkinter.Misc, _Fit] = WeakKeyDictionary()


def _scale_and_screen(window: tkinter.Misc) -> tuple[float, int, int]:
    return ctk.ScalingTracker.get_window_scaling(window), window.winfo_screenwidth(), window.winfo_screenheight()


def fit_to_screen(window: tkinter.Toplevel) -> None:
    """Limit a window to the screen again once the scale or the screen has changed: CustomTkinter enlarges windows with
    the scale, also beyond the screen. A size that a person has given it is kept, as far as it fits."""
    fit = _fits.get(window)
    if fit is None or fit.scale_and_screen == _scale_and_screen(window):
        return
    size, now = fit.size, (window.winfo_width(), window.winfo_height())
    if now[0] > 1 and max(abs(one - given) for one, given in zip(now, fit.given, strict=True)) > ROUNDED:
        size = "x".join(str(round(pixels / fit.scale_and_screen[0])) for pixels in now)
    window.maxsize(NO_LIMIT, NO_LIMIT)  # else CustomTkinter would limit it for a second
    given = set_size(window, size, fit.min_size)
    if now[0] > 1:  # it was visible: a new one is placed when it is shown
        place(window, *position_of(window), given)


def fit_all_to_screen(root: tkinter.Tk) -> None:
    """Limit all windows of an application but the main one to the screen, hidden ones, too."""
    for window in list(_fits):
        if isinstance(window, tkinter.Toplevel) and window.tk is root.tk and window.winfo_exists():
            fit_to_screen(window)


def bring_up(window: tkinter.Toplevel) -> None:
    """Show a window again that was hidden or lies behind others, where it was, as far as that is on the screen."""
    fit_to_screen(window)
    window.deiconify()
    window.lift()


def place(window: tkinter.Toplevel | tkinter.Tk, x: int, y: int, size: tuple[int, int] | None = None) -> None:
    """Move the window's frame to x, y, or as near as it is entirely visible. size: in screen pixels, if it is new."""
    width, height = size or (window.winfo_width(), window.winfo_height())
    x, y = on_screens(window, x, y, (width, height + TITLE_HEIGHT))
    tkinter.Wm.wm_geometry(window, f"+{x}+{y}")  # CustomTkinter's would scale the position


def position_of(window: tkinter.Toplevel | tkinter.Tk) -> tuple[int, int]:
    """Where the frame of a visible window is."""
    x, y = (int(part) for part in re.findall(r"(?<=\+)-?\d+", window.wm_geometry()))
    inner_x, inner_y = window.winfo_rootx(), window.winfo_rooty()
    is_known = 0 <= inner_x - x <= TITLE_HEIGHT and 0 <= inner_y - y <= 2 * TITLE_HEIGHT
    # Some window managers don't tell Tk where they have put a window: then it says +0+0.
    return (x, y) if is_known else (inner_x, inner_y - TITLE_HEIGHT // 2)


def focus_soon(app: App, widget: tkinter.Misc, milliseconds: int = 60) -> None:
    """Focus a widget of a new window, once the window is visible."""
    app.after(milliseconds, lambda: widget.focus_set() if widget.winfo_exists() else None)


def show_over(app: App, window: tkinter.Toplevel) -> None:
    """Show a new window centred over the main one."""
    # Hidden until it is placed: it would first appear in a corner and might take the mouse and the keyboard focus
    # there. CustomTkinter's own withdraw would keep it hidden on Windows.
    tkinter.Toplevel.withdraw(window)
    window.update_idletasks()
    tkinter.Toplevel.geometry(window, "+0+0")  # a hidden window only takes its set size after this
    window.update_idletasks()
    # The requested size differs from the actual one if a size was set.
    width, height = (int(part) for part in tkinter.Toplevel.geometry(window).partition("+")[0].split("x"))
    width, height = (width, height) if width > 1 else (window.winfo_reqwidth(), window.winfo_reqheight())
    root = app.root
    x = root.winfo_rootx() + (root.winfo_width() - width) // 2
    y = root.winfo_rooty() + (root.winfo_height() - height) // 3
    place(window, x, y, (width, height))
    tkinter.Toplevel.deiconify(window)


def _ask_program(app: App, command: Sequence[str]) -> str | None:
    """Run a dialog in a process of its own, while the window is drawn but takes no input; None if that failed."""
    answers: list[str | None] = []
    is_done = tkinter.BooleanVar(app.root, False)

    def take(answer: str | None) -> None:
        answers.append(answer)
        is_done.set(True)

    app.root.tk.call("tk", "busy", "hold", app.root)
    try:
        app.in_background(lambda: pick(command), take)
        with contextlib.suppress(tkinter.TclError):  # the window was closed meanwhile
            app.root.wait_variable(is_done)
    finally:
        with contextlib.suppress(tkinter.TclError):  # the same
            app.root.tk.call("tk", "busy", "forget", app.root)
    return answers[0] if answers else ""


def _ask_tk(question: PathQuestion, parent: tkinter.Misc) -> str:
    options: dict[str, Any] = {"parent": parent, "title": question.title, "initialdir": question.start_folder}
    if question.kind == "folder":
        return str(filedialog.askdirectory(**options) or "")
    if question.types:
        options["filetypes"] = list(question.types)
    if question.kind == "file":
        return str(filedialog.askopenfilename(**options) or "")
    ending = os.path.splitext(question.name)[1]
    return str(filedialog.asksaveasfilename(initialfile=question.name, defaultextension=ending, **options) or "")


def _one_at_a_time(app: App, question: Callable[[], T]) -> T | None:
    """Ask a question; None if another one is open. Prevents a double press from asking twice, as the window is not yet
    blocked before the question is visible."""
    if app.is_asking:
        return None
    app.is_asking = True
    try:
        return question()
    finally:
        app.is_asking = False
