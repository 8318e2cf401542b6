"""Captions that go from one image of the dataset window to others: by the clipboard, or from the image before."""

from __future__ import annotations

import os
import tkinter as tk
from collections.abc import Sequence
from typing import TYPE_CHECKING

from modules.config.counted import counted

if TYPE_CHECKING:
    from modules.ui.models.DatasetView import DatasetItem
    from modules.ui.windows.CaptionPane import CaptionPane


def copy_caption(pane: CaptionPane) -> None:
    """Copy the caption that is shown to the clipboard, as it is typed."""
    if pane.item is not None and pane.text:
        pane.clipboard_clear()
        pane.clipboard_append(pane.text)
        pane.tell_done(f"The caption of {os.path.basename(pane.item.path)} is copied.")


def paste_caption(pane: CaptionPane) -> None:
    """Give all selected images the text of the clipboard as their caption, as one step of each folder."""
    try:
        text = pane.clipboard_get().strip()
    except tk.TclError:  # it is empty, or holds no text
        text = ""
    if not text:
        pane.tell_done("Nothing is pasted: the clipboard holds no text.")
        return
    items = pane.selected()
    _write(pane, items, text, f"Paste the caption of {counted(len(items), 'image')}")


def take_caption_of(pane: CaptionPane, former: DatasetItem | None) -> None:
    """Give the image that is shown the caption of the one before it; None: there is none."""
    if former is None or pane.item is None or pane.work is None:
        pane.tell_done("This is the first image: none comes before it.")
        return
    text = pane.work.read(former).text
    if text:
        _write(pane, [pane.item], text, f"Caption of {os.path.basename(former.path)} for the next image")
    else:
        pane.tell_done(f"{os.path.basename(former.path)} has no caption.")


def _write(pane: CaptionPane, items: Sequence[DatasetItem], text: str, label: str) -> None:
    pane.save()
    texts: dict[int, dict[str, str]] = {}
    for item in items:
        texts.setdefault(item.concept, {})[item.path] = text
    pane.write_many(label, texts, {})
