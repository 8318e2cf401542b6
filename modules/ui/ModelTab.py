"""Which model is trained, its parts and precisions, and how the result is written."""

from __future__ import annotations

import json
import re
import tkinter
from pathlib import Path
from typing import TYPE_CHECKING

import customtkinter as ctk

from modules.config.validation import Problem
from modules.ui.families import FamilyInfo, load_families
from modules.ui.form import CardSpec, SettingsPage
from modules.ui.theme import Theme

if TYPE_CHECKING:
    from modules.ui.App import App

CARDS = (
    CardSpec(
        "Base model",
        ("family", "model.base", "model.config_folder", "model.prediction_type", "model.zero_terminal_snr"),
    ),
    CardSpec(
        "Precision and memory",
        (
            "model.weight_dtype",
            "model.mixed_precision",
            "model.gradient_checkpointing",
            "model.compile",
            "model.channels_last",
        ),
    ),
    CardSpec(
        "Output",
        ("output.name", "output.format", "output.dtype", "output.save_ema", "output.unit", "output.every"),
        {"output.unit": "Save while training"},
    ),
)
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
MAX_INDEX_BYTES = 1 << 20


class ModelTab(ctk.CTkFrame):
    def __init__(self, parent: tkinter.Misc, app: App):
        super().__init__(parent, fg_color="transparent")
        self.app = app
        self.page = SettingsPage(self, app, CARDS, {"Base model": self._add_facts})
        self.page.pack(fill="both", expand=True)
        self._unsubscribe = app.settings.subscribe(self._changed)

    def _add_facts(self, footer: ctk.CTkFrame) -> None:
        font = self.app.theme.font(12)
        self.parts, self.found = (
            ctk.CTkLabel(footer, text="", font=font, text_color=Theme.muted, anchor="w", justify="left", wraplength=330)
            for _ in range(2)
        )
        for label in (self.parts, self.found):
            label.pack(fill="x", pady=(2, 0))
        self._changed({"family", "model.base"})

    def destroy(self) -> None:
        self._unsubscribe()
        super().destroy()

    def _changed(self, paths: set[str]) -> None:
        if not self.page.cards:
            return  # the labels are made with the first card
        if "family" in paths:
            self.parts.configure(text=describe_parts(load_families()[self.app.settings.get("family")]))
        if "model.base" in paths:
            base = self.app.settings.get("model.base")
            self.app.in_background(lambda: look_at_base(base), lambda found: self._show_base(base, *found))

    def _show_base(self, base: str, text: str, is_wrong: bool) -> None:
        if self.winfo_exists() and base == self.app.settings.get("model.base"):
            self.found.configure(text="" if is_wrong else text)
            self.app.settings.report("model", [Problem("model.base", text)] if is_wrong else [])


def describe_parts(family: FamilyInfo) -> str:
    """What a model of the family is made of, and about how large it is."""
    encoders = f"{len(family.text_encoders)} text encoder" + ("s" if len(family.text_encoders) > 1 else "")
    size = family.typical_bytes / 2**30
    return f"{family.label}: {', '.join(family.denoisers)}, {encoders}, autoencoder; about {size:.0f} GiB in float32."


def look_at_base(base: str) -> tuple[str, bool]:
    """What there is at a base model's path or name, in a sentence, and whether no run can start from it."""
    if not base.strip():
        return "", False  # the settings' own checks say so
    path = Path(base).expanduser()
    try:
        if path.is_dir():
            return _look_at_folder(path)
        if path.is_file():
            if path.suffix.lower() != ".safetensors":
                return f"model.base {base!r} is not a .safetensors file: choose one, or a diffusers folder.", True
            return f"A file of {path.stat().st_size / 2**30:.1f} GiB.", False
    except OSError as error:
        return f"model.base {base!r} can't be read: {error.strerror}; choose another.", True
    if HUB_ID.fullmatch(base):
        return "A model of the Hugging Face Hub: it is fetched when the run starts, if it is not there yet.", False
    return f"model.base {base!r} is no folder, no file and no name on the Hub: choose another.", True


def _look_at_folder(path: Path) -> tuple[str, bool]:
    index = path / "model_index.json"
    if not index.is_file():
        return f"model.base '{path}' has no model_index.json: choose the folder that holds it.", True
    with index.open("rb") as file:
        try:
            name = json.loads(file.read(MAX_INDEX_BYTES)).get("_class_name", "unknown pipeline")
        except (ValueError, AttributeError):
            return f"model.base '{path}' has a damaged model_index.json: fetch the model again.", True
    return f"A diffusers folder: {name}.", False
