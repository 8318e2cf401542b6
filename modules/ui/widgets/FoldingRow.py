"""A toolbar in one row: what does not fit into it is in a menu at its end, so that it takes no height from images."""

from __future__ import annotations

import tkinter
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

import customtkinter as ctk

from modules.ui.widgets.Tooltip import Tooltip

if TYPE_CHECKING:
    from modules.ui.App import App

MORE, MENU_NAME = "More", "folded"


class FoldingRow:
    """Arranges the buttons in `frame`, whose children they are, side by side.

    The frame must have no other children, and its width has to be set from outside (sticky="ew"). kept: gives those
    that are always shown; of the others, as many as fit are, in their order.
    """

    def __init__(
        self,
        frame: ctk.CTkFrame,
        widgets: Sequence[Any],
        app: App,
        kept: Callable[[], Collection[Any]] = tuple,
        gap: int = 6,
    ):
        self._frame, self._widgets, self._app, self._kept, self._gap = frame, list(widgets), app, kept, gap
        self._laid: object = None  # what the present places were computed from
        last = self._widgets[-1]
        self.more = ctk.CTkButton(
            frame, text=MORE, width=44, height=last.cget("height"), font=last.cget("font"), command=self.open_menu,
            corner_radius=last.cget("corner_radius"),
        )  # fmt: skip
        Tooltip(self.more, app.theme, lambda: ", ".join(str(one.cget("text")) for one in self.folded))
        height = max(widget.winfo_reqheight() for widget in self._widgets)
        frame.configure(width=1, height=height / app.theme.scaled(100) * 100)
        for widget in (frame, *self._widgets):
            widget._canvas.bind("<Configure>", lambda event: self.arrange(), add="+")

    @property
    def folded(self) -> list[Any]:
        """The buttons that are in the menu."""
        return [widget for widget in self._widgets if not widget.winfo_manager()]

    def arrange(self) -> None:
        """Show what fits, as after a change of what is kept."""
        width, gap, kept = self._frame.winfo_width(), self._app.theme.scaled(self._gap), self._kept()
        sizes = [(widget.winfo_reqwidth(), widget.winfo_reqheight()) for widget in (*self._widgets, self.more)]
        state = width, gap, sizes, [widget in kept for widget in self._widgets]
        if width <= 1 or self._laid == state:
            return
        self._laid = state
        shown = self._shown(width, gap, [own_width for own_width, _ in sizes], kept)
        x = 0
        for widget, (own_width, _) in zip((*self._widgets, self.more), sizes, strict=True):
            if widget in shown:
                # CustomTkinter's own would scale the pixels again.
                tkinter.Place.place_configure(widget, x=x, y=0)
                x += own_width + gap
            else:
                widget.place_forget()
        self._frame.configure(height=max(height for _, height in sizes) / self._app.theme.scaled(100) * 100)

    def _shown(self, width: int, gap: int, widths: Sequence[int], kept: Collection[Any]) -> list[Any]:
        """The widgets for which there is room, with that of the menu if it is needed."""
        if sum(widths[:-1]) + gap * (len(self._widgets) - 1) <= width:
            return self._widgets
        own = dict(zip(self._widgets, widths, strict=False))
        shown = [widget for widget in self._widgets if widget in kept]
        room = width - widths[-1] - sum(own[widget] + gap for widget in shown)
        for widget in self._widgets:
            if widget not in shown:
                room -= own[widget] + gap
                if room < 0:
                    break
                shown.append(widget)
        return [*shown, self.more]

    def open_menu(self) -> None:
        menu = self.make_menu()
        menu.tk_popup(self.more.winfo_rootx(), self.more.winfo_rooty() + self.more.winfo_height())

    def make_menu(self) -> tkinter.Menu:
        """The menu of what does not fit."""
        # The name replaces the last menu: only X11 reports when a menu is closed.
        menu = tkinter.Menu(self._app.root, name=MENU_NAME)
        self._app.theme.style_menu(menu)
        for widget in self.folded:
            menu.add_command(label=widget.cget("text"), command=widget.invoke, state=widget.cget("state"))
        return menu
