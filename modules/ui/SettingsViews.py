"""Keeps the widgets that show settings up to date."""

from __future__ import annotations

import tkinter
import weakref
from collections.abc import Callable

from modules.ui.models.SettingsModel import SettingsModel

Refresh = Callable[[set[str] | None], object]


class SettingsView:
    """A widget that shows settings, registered by `SettingsViews.add`."""

    def __init__(self, views: SettingsViews, widget: tkinter.Misc, refresh: Refresh):
        self._views, self._widget, self._refresh = views, widget, refresh
        self._missed: set[str] | None = set()
        self._is_stale = False

    def invalidate(self, paths: set[str] | None = None) -> None:
        """Mark the view as stale; refresh it if it is visible. paths: the settings whose values changed; None: all."""
        self._missed = None if paths is None or self._missed is None else self._missed | paths
        self._is_stale = True
        self.update()

    def update(self) -> None:
        """Refresh a stale view, unless its page is hidden."""
        if self._is_stale and not self._views.is_suspended(self._widget):
            missed, self._missed, self._is_stale = self._missed, set(), False
            self._refresh(missed)

    def end(self) -> None:
        """Stop refreshing the view."""
        self._views.remove(self)


class SettingsViews:
    """Refreshes every view of the settings when they change. A view belongs to a page: a tab or a separate window.

    A view on a visible page is refreshed within the call that changes a setting. A view on a hidden page is only
    marked as stale; `resume` refreshes it and must be called before the page is shown again.

    Page visibility is recorded here rather than asked of Tk: a page on a Canvas gets its <Map> event as soon as its
    size changes, even while its tab is hidden, and gets none when that tab is opened.
    """

    def __init__(self, settings: SettingsModel):
        self._settings = settings
        self._ends: dict[SettingsView, Callable[[], None]] = {}  # in the order in which they were added
        self._hidden: weakref.WeakSet[tkinter.Misc] = weakref.WeakSet()

    def add(self, widget: tkinter.Misc, refresh: Refresh) -> SettingsView:
        """Register `widget` as a view and return it.

        refresh: called with the paths of the settings whose values have changed since the last call, or None if all
        may have. The errors and visibility of other settings may have changed too.

        Views are refreshed in the order in which they were added, so a view that creates others comes before them.
        """
        view = SettingsView(self, widget, refresh)
        self._ends[view] = self._settings.subscribe(view.invalidate)
        return view

    def remove(self, view: SettingsView) -> None:
        if view in self._ends:
            self._ends.pop(view)()

    def suspend(self, page: tkinter.Misc) -> None:
        """Call before hiding the tab or window `page`."""
        self._hidden.add(page)

    def resume(self, page: tkinter.Misc) -> None:
        """Call before showing the tab or window `page`: refreshes its stale views."""
        self._hidden.discard(page)
        self._tell_all(SettingsView.update)

    def invalidate(self) -> None:
        """Refresh all views although no setting has changed, for example after a change of what is shown."""
        self._tell_all(SettingsView.invalidate)

    def is_suspended(self, widget: tkinter.Misc) -> bool:
        """Whether the page that holds `widget` is hidden."""
        holder: tkinter.Misc | None = widget
        while holder is not None and holder not in self._hidden:
            if isinstance(holder, tkinter.Toplevel):  # its master may be on a hidden tab
                return False
            holder = holder.master
        return holder is not None

    def _tell_all(self, tell: Callable[[SettingsView], None]) -> None:
        for view in list(self._ends):
            if view in self._ends:  # another view may have ended it
                tell(view)
