"""Which of many items are selected, and how keys and clicks change that, as in a file manager. No Tk."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class Selection:
    """The selected items among those shown. Items are numbers, which stay the same when others are shown.

    current: the item that keys move from; it has the frame, and need not be selected. None without items.
    """

    def __init__(self):
        self.numbers: set[int] = set()
        self.current: int | None = None
        self._anchor: int | None = None  # where a range starts
        self._order: Sequence[int] = ()
        self._places: dict[int, int] = {}

    def show(self, order: Sequence[int]) -> None:
        """Show these items, in this order; those that are no longer shown are not selected any more."""
        place = None if self.current is None else self._places.get(self.current)
        self._order, self._places = order, {number: place for place, number in enumerate(order)}
        self.numbers &= self._places.keys()
        if self.current not in self._places:
            # the next one, so that leaving out or correcting one after the other goes on where it was
            self.current = order[min(place, len(order) - 1)] if order and place is not None else None
            self.numbers |= {self.current} if self.current is not None and not self.numbers else set()
        if self._anchor not in self._places:
            self._anchor = self.current

    def place_of(self, number: int) -> int | None:
        """Its place among those shown; None if it is not."""
        return self._places.get(number)

    @property
    def in_order(self) -> list[int]:
        """The selected items in the order in which they are shown."""
        return sorted(self.numbers, key=self._places.__getitem__)

    def choose(self, number: int | None) -> None:
        """Select this one alone; None: nothing."""
        self.numbers = set() if number is None else {number}
        self.current = self._anchor = number

    def move_to(self, number: int) -> None:
        """Make it the current one, and select nothing else than before."""
        self.current = self._anchor = number

    def toggle(self, number: int) -> None:
        """Select it beside the others, or no longer."""
        self.numbers ^= {number}
        self.current = self._anchor = number

    def extend_to(self, number: int, keeps: bool = False) -> None:
        """Select all from where the selection began up to this one. keeps: beside what is selected already."""
        first = self._places.get(number if self._anchor is None else self._anchor, 0)
        last = self._places[number]
        range_ = self._order[min(first, last) : max(first, last) + 1]
        self.numbers = (self.numbers if keeps else set()) | set(range_)
        self.current = number

    def take(self, numbers: Iterable[int]) -> None:
        """Select these alone, as far as they are shown."""
        self.numbers = self._places.keys() & set(numbers)

    def take_all(self) -> None:
        self.numbers = set(self._order)
