"""Files and folders that are dropped on the window from a file manager.

Tk itself takes none; the package tkinterdnd2 brings the extension tkdnd, which does. Without the package, or where the
extension can't be loaded, nothing can be dropped, and all else works.
"""

from __future__ import annotations

import importlib
import os
import tkinter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from modules.ui.App import App

_FILES = "DND_Files"  # what tkdnd calls dropped files on every system


@runtime_checkable
class TakesFolders(Protocol):
    """A tab on which folders of images can be dropped."""

    def add_folder(self, path: str) -> None: ...


def accept_drops(window: tkinter.Tk | tkinter.Toplevel, take: Callable[[list[str]], object]) -> bool:
    """Call `take` with the paths of what is dropped anywhere on the window. Returns False if that can't be had."""
    try:
        importlib.import_module("tkinterdnd2.TkinterDnD")._require(window)
    except (ImportError, RuntimeError, OSError, tkinter.TclError):  # also of the extension's library, on odd systems
        return False

    def drop(data: str) -> str:
        paths = dropped_paths(window, data)
        window.after_idle(lambda: take(paths))  # until this returns, the program that files are dragged from waits
        return "copy"

    window.tk.call("tkdnd::drop_target", "register", window, _FILES)
    # tkdnd runs the bound script itself, with the data in place of %D and the action as its result
    window.tk.call("bind", window, "<<Drop>>", f"{window.register(drop)} %D")
    return True


def dropped_paths(window: tkinter.Misc, data: str) -> list[str]:
    """The paths in a Tcl list, in which those with spaces have braces: "{C:/my cats} /tmp/a.json"."""
    try:
        paths = window.tk.splitlist(data)
    except tkinter.TclError:  # a single path with a brace in it
        paths = (data,)
    return [os.path.normpath(str(path)) for path in paths if str(path).strip()]


def add_dropped_folders(app: App, paths: Sequence[str], show: Callable[[int], object]) -> None:
    """Add folders of images as concepts, and show the last one, by its number. Files are refused in a sentence."""
    if app.is_asking:
        return
    folders = [path for path in paths if os.path.isdir(path)]
    if len(folders) < len(paths):
        app.show_message(
            "Only folders of images can be dropped here: drop the folder that the files are in.", "warning"
        )
    if added := [app.settings.add("concepts", {"path": folder}) for folder in folders]:
        show(added[-1])


def take_drop(app: App, paths: Sequence[str]) -> None:
    """Open a settings file of any program as *Open* does; add folders of images to a tab that takes them."""
    if app.is_asking:
        return
    folders = [path for path in paths if os.path.isdir(path)]
    files = [path for path in paths if path not in folders]
    tab = app.open_tab(app.preferences.tab)
    if folders and isinstance(tab, TakesFolders):
        for folder in folders:
            tab.add_folder(folder)
    elif folders:
        app.show_message("To train the images in a folder, drop it on the Dataset tab.", "info")
    if len(files) > 1:
        what = "their folder on the Dataset tab to train images, or one settings file at a time"
        app.show_message(f"{len(files)} files were dropped: drop {what}.", "warning")
    elif files:
        app.open_settings(files[0])
