"""Suggests tags while a caption is typed, from those of the other images."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from modules.curation.TagList import folded
from modules.ui.models.TagSuggestions import Suggestions, TagSuggestions, TypedTag, typed_tag
from modules.ui.widgets.SuggestionList import SuggestionList

if TYPE_CHECKING:
    from modules.curation.TagIndex import TagCount
    from modules.ui.windows.CaptionPane import CaptionPane


class TagCompletion:
    """While the list is open, Tab and Return take the marked tag, arrows mark another, and Escape closes it.

    No tag is marked while what is typed is one already: then Tab and Return do what they always do. on_taken: called
    when a tag was put into the text.
    """

    def __init__(self, pane: CaptionPane, on_taken: Callable[[], None]):
        self._pane, self._on_taken = pane, on_taken
        self._box = pane.box._textbox
        self._tags: TagSuggestions | None = None
        self._found: Sequence[TagCount] = ()
        self._text = ""  # as it was when the last key was released
        self._is_finding = False
        self._missed = ""  # text for which tags were found, or could have been, while the focus was elsewhere
        self.list = SuggestionList(self._box, pane.app, self._take)
        for key, step in (("<Down>", 1), ("<Up>", -1)):
            self._box.bind(key, lambda event, step=step: self._move(step), add="+")
        for key in ("<Tab>", "<Return>", "<KP_Enter>"):
            self._box.bind(key, lambda event: self._take_marked(), add="+")
        self._box.bind("<Escape>", lambda event: self._close(), add="+")
        self._box.bind("<KeyRelease>", self._on_typed, add="+")
        self._box.bind("<FocusIn>", lambda event: self._prepare(), add="+")
        for event in ("<FocusOut>", "<Button>", "<MouseWheel>"):
            self._box.bind(event, lambda event: self.list.hide(), add="+")
        # The pane is laid out anew while somebody types, as for a longer note below the box.
        self._box.bind("<Configure>", lambda event: self.list.follow(), add="+")

    def use(self, tags: TagSuggestions | None) -> None:
        """Suggest the tags of these concepts; None: none."""
        self._tags = tags
        self.list.hide()

    def end(self) -> None:
        """Another text is shown."""
        self._text, self._missed = self._pane.text, ""
        self.list.hide()

    def _typed(self) -> TypedTag | None:
        item, work = self._pane.item, self._pane.work
        if item is None or work is None or not self._pane.can_edit or self._box.tag_ranges("sel"):
            return None
        before = self._box.get("1.0", "insert")
        return typed_tag(self._pane.text, len(before), work.concept(item.concept))

    def _prepare(self) -> None:
        """Index the tags, so that they are there when somebody types; suggest those for what was typed before."""
        self._text = self._pane.text
        is_typing, self._missed = self._missed == self._text, ""
        self._find(self._typed() if is_typing else None)

    def _on_typed(self, event: tk.Event) -> None:
        text, state = self._pane.text, event.state if isinstance(event.state, int) else 0
        is_same, self._text = text == self._text, text
        if is_same:
            if event.keysym in ("Left", "Right", "Home", "End", "Prior", "Next"):
                self.list.hide()
            return
        typed = None if state & 0x4 else self._typed()  # with Ctrl, as of undo
        if typed is None:
            self.list.hide()
        else:
            self._find(typed)

    def _find(self, typed: TypedTag | None) -> None:
        """Search in a thread. typed: None: only index."""
        tags, item = self._tags, self._pane.item
        if tags is None or item is None or self._is_finding:
            return
        self._is_finding = True
        items, text, number = list(self._pane.items()), self._pane.text, item.concept
        typed_text = typed.text if typed else ""
        rest = text[: typed.start] + text[typed.start + len(typed.text) :] if typed else text

        def take(found: Suggestions) -> None:
            self._is_finding = False
            if not self._pane.winfo_exists() or tags is not self._tags:
                return
            if self._pane.focus_get() is not self._box:
                self._missed = self._pane.text if typed is not None or text != self._pane.text else ""
            elif text != self._pane.text:  # typed meanwhile
                if (now := self._typed()) is not None:
                    self._find(now)
            elif typed is not None and typed == self._typed():
                self._found = found.tags
                rows = [(one.tag, one.count) for one in found.tags]
                self.list.show(rows, None if found.is_tag else 0)

        def fail(error: Exception) -> None:
            self._is_finding = False
            raise error

        self._pane.app.in_background(lambda: tags.find(items, number, rest, typed_text), take, fail)

    def _move(self, step: int) -> str | None:
        if not self.list.is_open:
            return None
        self.list.move(step)
        return "break"

    def _close(self) -> str | None:
        if not self.list.is_open:
            return None  # of the window
        self.list.hide()
        return "break"

    def _take_marked(self) -> str | None:
        if self.list.chosen is None:
            self.list.hide()
            return None
        self._take(self.list.chosen)
        return "break"

    def _take(self, number: int) -> None:
        """Put a tag in the place of what is typed of it, as one step of the text box's undo."""
        tag, typed = self._found[number].tag, self._typed()
        self.list.hide()
        if typed is None or folded(tag) == folded(typed.text):
            return
        self._box.edit_separator()
        self._box.replace(f"1.0+{typed.start}c", "insert", tag)
        self._box.mark_set("insert", f"1.0+{typed.start + len(tag)}c")
        self._box.edit_separator()
        self._box.see("insert")
        self._text = self._pane.text
        self._on_taken()
