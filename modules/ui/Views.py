"""What shows settings, and what keeps it equal to them."""

from __future__ import annotations

import tkinter
import weakref
from collections.abc import Callable

from modules.ui.models.SettingsModel import SettingsModel

Refresh = Callable[[set[str] | None], object]


class View:
    """One thing that shows settings, made by `Views.add`."""

    def __init__(self, views: Views, widget: tkinter.Misc, refresh: Refresh):
        self._views, self._widget, self._refresh = views, widget, refresh
        self._missed: set[str] | None = set()
        self._is_stale = False

    def invalidate(self, paths: set[str] | None = None) -> None:
        """The settings have changed, those at `paths` in value; None: anything may be shown differently now."""
        self._missed = None if paths is None or self._missed is None else self._missed | paths
        self._is_stale = True
        self.update()

    def update(self) -> None:
        """Refresh a stale view, unless its page is hidden."""
        if self._is_stale and not self._views.is_suspended(self._widget):
            missed, self._missed, self._is_stale = self._missed, set(), False
            self._refresh(missed)

    def end(self) -> None:
        """Refresh the view no more."""
        self._views.remove(self)


class Views:
    """Keeps everything that shows settings equal to them. Each view is on a page: a tab, or a window of its own.

    While its page is shown, a view is refreshed within the call that changes a setting. While the page is hidden, the
    view is only marked as stale; `resume` refreshes it and must be called before the page is shown again.

    Whether a page is hidden is recorded here and never asked of Tk. A page on a Canvas gets its <Map> event as soon as
    its size changes, even while the tab around it is hidden, and none when that tab is opened.
    """

    def __init__(self, settings: SettingsModel):
        self._settings = settings
        self._ends: dict[View, Callable[[], None]] = {}  # in the order in which they were added
        self._hidden: weakref.WeakSet[tkinter.Misc] = weakref.WeakSet()

    def add(self, widget: tkinter.Misc, refresh: Refresh) -> View:
        """Have `widget` show the settings as they are.

        refresh: called with the paths of the settings whose values have changed since the last call, or None if all
        may have. Errors and visibility of other settings may have changed too.

        Views are refreshed in the order in which they were added, so one that adds and ends others comes before them.
        """
        view = View(self, widget, refresh)
        self._ends[view] = self._settings.subscribe(view.invalidate)
        return view

    def remove(self, view: View) -> None:
        if view in self._ends:
            self._ends.pop(view)()

    def suspend(self, page: tkinter.Misc) -> None:
        """The tab or window `page` is about to be hidden."""
        self._hidden.add(page)

    def resume(self, page: tkinter.Misc) -> None:
        """The tab or window `page` is about to be shown: refresh what has become stale on it."""
        self._hidden.discard(page)
        self._tell_all(View.update)

    def invalidate(self) -> None:
        """Anything may be shown differently now, though no setting has changed."""
        self._tell_all(View.invalidate)

    def is_suspended(self, widget: tkinter.Misc) -> bool:
        """Whether the page that holds `widget` is hidden."""
        while widget is not None and widget not in self._hidden:
            if isinstance(widget, tkinter.Toplevel):  # its master may be on a hidden tab
                return False
            widget = widget.master
        return widget is not None

    def _tell_all(self, tell: Callable[[View], None]) -> None:
        for view in list(self._ends):
            if view in self._ends:  # another view may have ended it
                tell(view)
