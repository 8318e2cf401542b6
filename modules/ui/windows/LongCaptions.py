"""Counts the tokens of the captions that the dataset window shows, to find those that are too long."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from modules.curation.TokenCounts import TokenCounts
from modules.ui.models.CaptionWork import too_long
from modules.ui.models.DatasetView import DatasetItem, Trait

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig
    from modules.ui.App import App

COUNTED = 1000  # images whose captions' tokens are counted at once


class LongCaptions:
    """counts: of the base model in use; None while no images are shown. on_found: called with the numbers of items of
    which it is known whether their captions are too long."""

    def __init__(self, app: App, on_found: Callable[[range], None]):
        self._app, self._on_found = app, on_found
        self.counts: TokenCounts | None = None

    def use(self, config: TrainConfig) -> None:
        """Count by the tokenizer of these settings' base model from now on."""
        self.close()
        self.counts = TokenCounts(config.family, config.model)

    def find(self, items: Sequence[DatasetItem], first: int = 0) -> None:
        """Find the captions that are too long, a part of the items at a time, in a thread."""
        part, counts = items[first : first + COUNTED], self.counts
        if not part or counts is None or counts.note:
            return

        def take(found: Sequence[bool]) -> None:
            if counts is not self.counts:
                return
            for item, is_long in zip(part, found, strict=True):
                item.set_trait(Trait.LONG, is_long)
            self._on_found(range(first, first + len(part)))
            self.find(items, first + COUNTED)

        self._app.in_background(lambda: too_long(part, counts), take)

    def close(self) -> None:
        if self.counts is not None:
            self.counts.close()
            self.counts = None
