"""Finds duplicates for the dataset window: a search in the background, and what is shown of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import customtkinter as ctk

from modules.config.counted import counted
from modules.config.errors import UserError
from modules.ui.models.DatasetView import DatasetItem, DatasetView
from modules.ui.models.DuplicateSearch import DuplicateSearch, Searched

if TYPE_CHECKING:
    from modules.config.ConceptConfig import ConceptConfig
    from modules.ui.App import App

FIND, COMPARE = "Find duplicates", "Duplicates…"


class DuplicateFinder:
    """button: starts and cancels the search, and compares what it has found. on_found: called with the numbers of the
    worse images of all groups, and whether there are any. on_note: called with a sentence on the outcome. on_state:
    called when `state` has changed.
    """

    def __init__(
        self,
        app: App,
        view: DatasetView,
        button: ctk.CTkButton,
        on_found: Callable[[Sequence[int], bool], None],
        on_note: Callable[[str], None],
        on_state: Callable[[], None],
    ):
        self._app, self._view, self._button = app, view, button
        self._on_found, self._on_note, self._on_state = on_found, on_note, on_state
        self._search: DuplicateSearch | None = None

    @property
    def state(self) -> str:
        """How far a search is, in words; "" without one."""
        search = self._search
        return "" if search is None else f"; looking for duplicates, {search.num_done:,} of {search.num_images:,}"

    def toggle(self, concepts: Sequence[ConceptConfig], is_read: bool) -> None:
        """Search for images that look alike, or cancel that. is_read: whether all that is known of the items is."""
        if self._search is not None:
            self.cancel()
            return
        if not self._view.items or not is_read:
            self._on_note("Sizes and captions are still being read: search for duplicates once they are.")
            return
        of_folder: dict[str, list[DatasetItem]] = {}
        for item in self._view.items:
            of_folder.setdefault(concepts[item.concept].path, []).append(item)
        search = self._search = DuplicateSearch(of_folder)
        self._button.configure(text="Cancel")
        self._app.in_background(
            search.run, lambda found: self._take(search, found), lambda error: self._fail(search, error)
        )

    def cancel(self) -> None:
        if self._search is not None:
            self._search.cancel()
            self._search = None
            self.show_button()
            self._on_state()

    def show_button(self) -> None:
        """Let the button say what it does now: once images that look alike are known, it compares them."""
        if self._search is None:
            self._button.configure(text=COMPARE if self._view.alike else FIND)

    def _take(self, search: DuplicateSearch, found: Searched | None) -> None:
        if search is not self._search or found is None:
            return
        self.cancel()
        groups = found.groups
        self._view.take_measured(found.blurred, found.noisy)
        self._on_found(self._view.take_groups(groups), bool(groups))
        self.show_button()
        text = f"{counted(len(groups), 'group')} of images that look alike; the worse ones are selected: Delete leaves "
        kinds = ((found.blurred, "blurred"), (found.noisy, "noisy"))
        others = [f"{len(paths):,} {kind}" for paths, kind in kinds if paths]
        also = f" {' and '.join(others)}: their filters show them." if others else ""
        self._on_note((f"{text}them out, D compares them." if groups else "No images look alike.") + also)

    def _fail(self, search: DuplicateSearch, error: Exception) -> None:
        if not isinstance(error, UserError):
            raise error
        if search is self._search:
            self.cancel()
            self._on_note(str(error))
