"""Forms generated from the declarations of the settings.

A form is built in slices, follows the settings model and shows only relevant settings: those used by the family and
method, and advanced ones only if the user wants to see all, or if they differ from the default.
"""

from __future__ import annotations

import tkinter
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import customtkinter as ctk

from modules.ui.theme import Theme
from modules.ui.widgets.Field import LABEL_WIDTH, ROWS, Field
from modules.ui.widgets.make_field import make_field
from modules.ui.widgets.Page import Page

if TYPE_CHECKING:
    from modules.ui.App import App

COLUMN_WIDTH = 370
MAX_COLUMNS = 3
TITLE_ROWS = 1.5


class SettingsForm(ctk.CTkFrame):
    """A column of fields.

    paths: of settings, such as "optimizer.beta1" or "sampling.samples.0.seed"; lists of parts have no field.
    labels: path -> label that replaces the setting's own.
    all_importances: always show advanced settings. always: the advanced settings to show always, if not all.
    on_change: called with the number of visible fields, whenever it changes.
    """

    def __init__(
        self,
        parent: tkinter.Misc,
        app: App,
        paths: Sequence[str],
        labels: Mapping[str, str] | None = None,
        all_importances: bool = False,
        on_change: Callable[[int], None] | None = None,
        always: Collection[str] = (),
    ):
        super().__init__(parent, fg_color="transparent")
        self.app = app
        self.paths = list(paths)
        self.fields: dict[str, Field] = {}
        self._labels = dict(labels or {})
        self._always = self.paths if all_importances else always
        self._on_change = on_change
        self._num_shown = -1
        self.grid_columnconfigure(0, minsize=app.theme.scaled(20))
        self.grid_columnconfigure(1, minsize=app.theme.scaled(LABEL_WIDTH + 8))
        self.grid_columnconfigure(2, weight=1)
        self._view = app.views.add(self, self.refresh)
        self._stop_rescaling = app.theme.on_change(self._rescale)
        self._steps = self._build()
        app.in_slices(self._steps)

    def finish(self) -> None:
        """Build the rest of the form now."""
        for _ in self._steps:
            pass

    def refresh(self, paths: set[str] | None = None) -> None:
        """Update the fields. paths: of settings whose values have changed; None: all may have."""
        for path, one in self.fields.items():
            one.set_shown(self.is_field_shown(path))
            one.refresh(with_value=paths is None or path in paths)
        self._count()

    def is_field_shown(self, path: str) -> bool:
        """Whether the field of a setting should be visible; also that of one which is refused here."""
        settings = self.app.settings
        if not settings.is_visible(path):
            return bool(self.app.problems.at(path))
        if path in self._always or self.app.preferences.show_all or settings.info(path).importance == "basic":
            return True
        if path in self.app.revealed:
            return True
        return settings.differs_from_default(path) or self.app.problems.error(path) is not None

    def num_shown(self) -> int:
        """The number of fields that should be visible, including those not built yet."""
        return sum(self.is_field_shown(path) for path in self.paths)

    def destroy(self) -> None:
        self._view.end()
        self._stop_rescaling()
        self._steps.close()
        super().destroy()

    def _build(self) -> Generator[None, None, None]:
        for number, path in enumerate(self.paths):
            self.fields[path] = make_field(self, self.app, path, ROWS * number, self._labels.get(path, ""))
            self.fields[path].set_shown(self.is_field_shown(path))
            yield
        self._count()

    def _count(self) -> None:
        shown = self.num_shown()
        if shown != self._num_shown:
            self._num_shown = shown
            if self._on_change is not None:
                self._on_change(shown)

    def _rescale(self) -> None:
        self.grid_columnconfigure(0, minsize=self.app.theme.scaled(20))
        self.grid_columnconfigure(1, minsize=self.app.theme.scaled(LABEL_WIDTH + 8))


@dataclass(frozen=True)
class CardSpec:
    """A card of a page: its title and settings. labels, all_importances: as in SettingsForm."""

    title: str
    paths: Sequence[str]
    labels: Mapping[str, str] = field(default_factory=dict)
    all_importances: bool = False


class SettingsCard(ctk.CTkFrame):
    """A titled form on a card, with an optional `footer`."""

    def __init__(self, parent: tkinter.Misc, app: App, spec: CardSpec, on_change: Callable[[], None]):
        super().__init__(parent, fg_color=Theme.card, corner_radius=8)
        self.grid_columnconfigure(0, weight=1)
        title = ctk.CTkLabel(self, text=spec.title, font=app.theme.font(15, "bold"), anchor="w")
        title.grid(row=0, column=0, sticky="ew", padx=12, pady=(8, 2))
        self.form = SettingsForm(
            self, app, spec.paths, spec.labels, spec.all_importances, on_change=lambda shown: on_change()
        )
        self.form.grid(row=1, column=0, sticky="ew", padx=(0, 2), pady=(0, 8))
        self.title = spec.title
        self.footer = ctk.CTkFrame(self, fg_color="transparent", height=0)
        self.footer.grid(row=2, column=0, sticky="ew", padx=12, pady=(0, 10))
        self.footer.grid_remove()

    def has_content(self) -> bool:
        """Whether anything on the card would be visible."""
        return bool(self.form.num_shown())


@dataclass(frozen=True)
class _Place:
    """A card of a page. rows: its height for the choice of a column, the same whatever is visible on it."""

    card: ctk.CTkFrame
    rows: float
    has_content: Callable[[], bool]


class SettingsPage(Page):
    """Cards in as many columns as fit, built in slices. Only the number of columns decides in which of them a card is.

    footers: title of a card -> function that fills the footer frame below its form.
    """

    def __init__(
        self,
        parent: tkinter.Misc,
        app: App,
        specs: Sequence[CardSpec],
        footers: Mapping[str, Callable[[ctk.CTkFrame], None]] | None = None,
    ):
        super().__init__(parent)
        self.app = app
        self._layout: list[list[ctk.CTkFrame]] = []
        self._places: list[_Place] = []
        self._first: list[Callable[[], _Place]] = []
        self._further: list[Callable[[], _Place]] = []
        self._is_due = False
        # Created before the cards, so that cards packed into them are stacked above.
        self._columns = [ctk.CTkFrame(self, fg_color="transparent") for _ in range(MAX_COLUMNS)]
        self.cards: dict[str, SettingsCard] = {}  # by title
        self._parent_canvas.bind("<Configure>", lambda event: self.arrange_soon(), add="+")
        self._steps = self._build(specs, footers or {})
        app.in_slices(self._steps)

    def finish(self) -> None:
        """Build the remaining cards now; their forms are still built in slices."""
        for _ in self._steps:
            pass

    def add_card(
        self,
        make: Callable[[], ctk.CTkFrame],
        rows: float,
        has_content: Callable[[], bool] = lambda: True,
        is_first: bool = False,
    ) -> None:
        """Add a custom card created by `make`, a child of this page, at the end. rows: its usual height. has_content:
        whether it is to be shown. is_first: add it before the cards of settings."""
        (self._first if is_first else self._further).append(lambda: _Place(make(), rows, has_content))

    def destroy(self) -> None:
        self._steps.close()
        super().destroy()

    def _build(
        self, specs: Sequence[CardSpec], footers: Mapping[str, Callable[[ctk.CTkFrame], None]]
    ) -> Generator[None, None, None]:
        for make in self._first:
            self._places.append(make())
            yield
        for spec in specs:
            card = SettingsCard(self, self.app, spec, self.arrange_soon)
            self.cards[spec.title] = card
            self._places.append(_Place(card, usual_rows(self.app, spec), card.has_content))
            if spec.title in footers:
                footers[spec.title](card.footer)
                card.footer.grid()
            yield
        for make in self._further:
            self._places.append(make())
            yield
        self.arrange_soon()

    def arrange_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self.app.after_idle(self.arrange)

    def arrange(self) -> None:
        """Distribute the cards, each to the shortest column."""
        self._is_due = False
        if not self.winfo_exists():
            return
        width = self._parent_canvas.winfo_width()
        count = max(1, min(MAX_COLUMNS, width // self.app.theme.scaled(COLUMN_WIDTH))) if width > 1 else MAX_COLUMNS
        columns: list[list[ctk.CTkFrame]] = [[] for _ in range(count)]
        lengths = [0.0] * count
        for place in self._places:
            shortest = lengths.index(min(lengths))
            lengths[shortest] += place.rows
            if place.has_content():
                columns[shortest].append(place.card)
        if columns != self._layout:
            self._show(columns)

    def _show(self, columns: list[list[ctk.CTkFrame]]) -> None:
        for place in self._places:
            place.card.pack_forget()
        for number, column in enumerate(self._columns):
            used = number < len(columns)
            self.grid_columnconfigure(number, weight=1 if used else 0, uniform="columns" if used else "")
            if not used:
                column.grid_remove()
                continue
            column.grid(row=1, column=number, sticky="new")
            for card in columns[number]:
                card.pack(in_=column, fill="x", padx=6, pady=6)
        self._layout = columns


def usual_rows(app: App, spec: CardSpec) -> float:
    """The height of a card in rows, whatever filter, family and method are chosen: a third of its advanced settings
    are usually visible."""
    basic = [path for path in spec.paths if spec.all_importances or app.settings.info(path).importance == "basic"]
    return TITLE_ROWS + len(basic) + (len(spec.paths) - len(basic)) / 3


def find_field(widget: tkinter.Misc, path: str) -> Field | None:
    """Find the field of a setting inside a widget; the form that contains it is completely built."""
    if isinstance(widget, SettingsPage):
        widget.finish()
    for child in widget.winfo_children():
        if isinstance(child, SettingsForm) and path in child.paths:
            child.finish()
            return child.fields[path]
        found = find_field(child, path)
        if found is not None:
            return found
    return None
