"""What becomes of an edit that could not be saved, when what it was typed or painted in shows something else by now."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from modules.curation.FileChanges import ChangedOutside
from modules.ui.widgets.dialogs import ask

if TYPE_CHECKING:
    from modules.ui.App import App

OVERWRITE, LEAVE = "Overwrite the file", "Leave the file"


def settle(app: App, error: Exception, keep: Callable[[], str], overwrite: Callable[[], object]) -> None:
    """Ask if another program has changed the file; without an answer, or for another reason, keep the edit beside it.

    keep: keeps it, in a thread, and returns a sentence that says where. overwrite: saves it nevertheless.
    """
    if isinstance(error, ChangedOutside):
        text = f"{error}\n\nWhat should become of it?"
        answer = ask(app, "Changed by another program", text, (LEAVE, OVERWRITE), danger=OVERWRITE)
        if answer == OVERWRITE:
            overwrite()
        if answer in (LEAVE, OVERWRITE):
            return
    app.in_background(keep, lambda kept: app.show_message(f"{error} {kept}", "error"))
