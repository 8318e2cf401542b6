"""The model tab: the base model, its parts and precision, and how the result is saved."""

from __future__ import annotations

import os
import threading
import tkinter
from pathlib import Path
from typing import TYPE_CHECKING

import customtkinter as ctk

from modules.config.counted import counted
from modules.config.families import FamilyInfo, model_of
from modules.ui.cards.RunEstimate import RunEstimate
from modules.ui.models.base_model import sha256_of
from modules.ui.theme import Theme
from modules.ui.widgets.dialogs import open_window
from modules.ui.widgets.fitting import wrap_to
from modules.ui.widgets.form import CardSpec, SettingsPage
from modules.ui.windows.BaseModelWindow import BaseModelWindow

if TYPE_CHECKING:
    from modules.ui.App import App

AUTO_V2_DIGITS = 10  # of the SHA-256: a short name of the file on sites of models

CARDS = (
    CardSpec(
        "Base model",
        (
            "family",
            "model.base",
            "model.config_folder",
            "model.vae",
            "model.denoiser",
            "model.denoiser_2",
            "model.text_encoders",
            "model.training_adapter",
            "model.prediction_type",
            "model.zero_terminal_snr",
            "model.clip_skip",
            "model.clip_skips",
            "model.text_chunks",
            "model.word_weights",
        ),
    ),
    CardSpec(
        "Precision and memory",
        (
            "model.weight_dtype",
            "model.denoiser_quantization",
            "model.text_encoder_quantization",
            "model.quantized_matmul",
            "model.quantized_matmul_size",
            "model.quantized_matmul_rotation",
            "model.mixed_precision",
            "model.tf32",
            "model.gradient_checkpointing",
            "model.activation_offloading",
            "model.blocks_to_swap",
            "model.compile",
            "model.compile_sizes",
            "model.cuda_graphs",
            "model.attention",
            "model.channels_last",
        ),
    ),
    CardSpec(
        "Output",
        (
            "output.name",
            "output.format",
            "output.dtype",
            "output.float8_denoiser",
            "output.save_ema",
            "output.unit",
            "output.every",
            "output.keep",
            "output.fallback_dir",
            "output.wait_minutes",
        ),
    ),
)


class ModelTab(ctk.CTkFrame):
    def __init__(self, parent: tkinter.Misc, app: App):
        super().__init__(parent, fg_color="transparent")
        self.app = app
        self._hashed: str | None = None  # the base model whose hash is shown or being computed
        self._hash = ""
        self._stop_hashing = threading.Event()
        footers = {"Base model": self._add_facts, "Precision and memory": self._add_estimate}
        self.page = SettingsPage(self, app, CARDS, footers)
        self.page.pack(fill="both", expand=True)
        self._ends = [app.settings.subscribe(self._changed), app.checks.subscribe(self._show_base)]

    def _add_facts(self, footer: ctk.CTkFrame) -> None:
        font = self.app.theme.font(12)
        self.parts, self.found = (
            ctk.CTkLabel(footer, text="", font=font, text_color=Theme.muted, anchor="w", justify="left")
            for _ in range(2)
        )
        for label in (self.parts, self.found):
            label.pack(fill="x", pady=(2, 0))
            wrap_to(footer, label, self.app.theme, taken=4)
        buttons = ctk.CTkFrame(footer, fg_color="transparent")
        buttons.pack(anchor="w", pady=(6, 0))
        find = ctk.CTkButton(buttons, text="Find a model…", width=20, height=26, font=font, command=self.find_model)
        find.pack(side="left")
        self.hash_button = ctk.CTkButton(buttons, text="", width=20, height=26, font=font, command=self.show_hash)
        self._changed({"family"})

    def _add_estimate(self, footer: ctk.CTkFrame) -> None:
        """What the settings above come to."""
        self.estimate = RunEstimate(footer, self.app, ("Memory",))
        self.estimate.pack(fill="x")

    def find_model(self) -> BaseModelWindow:
        """Open the window with recent models, those on this machine and those of the Hub."""
        return open_window(self.app, BaseModelWindow)

    def show_hash(self) -> None:
        """Compute the SHA-256 of the base model's file in the background and show it; copy it if it is shown."""
        if self._hash:
            self.app.root.clipboard_clear()
            self.app.root.clipboard_append(self._hash)
            self.app.show_message("Copied the SHA-256 of the base model.", "info")
            return
        stop = self._stop_hashing = threading.Event()
        path = Path(os.path.expanduser(self.app.settings.get("model.base")))
        self.hash_button.configure(state="disabled", text="Computing the hash…")

        def take(digest: str) -> None:
            if not stop.is_set():
                self._hash = digest
                self._show_base()
                self.hash_button.configure(state="normal", text="Copy the hash")

        def fail(error: Exception) -> None:
            if not stop.is_set():
                reason = error.strerror if isinstance(error, OSError) else str(error)
                self.app.show_message(f"Base model '{path}' can't be read: {reason}; choose another.", "error")
                self.hash_button.configure(state="normal", text="Show the hash")

        self.app.in_background(lambda: sha256_of(path, stop), take, fail)

    def destroy(self) -> None:
        self._stop_hashing.set()
        for end in self._ends:
            end()
        super().destroy()

    def _changed(self, paths: set[str]) -> None:
        if {"family", "model.base"} & paths and self.page.cards:  # the labels are created with the first card
            self.parts.configure(text=describe_parts(model_of(self.app.settings.in_effect)))
        base = self.app.settings.get("model.base")
        if self.page.cards and base != self._hashed:
            self._forget_hash(base)

    def _forget_hash(self, base: str) -> None:
        """Offer the hash of another base model, if it is a file."""
        self._stop_hashing.set()
        self._hashed, self._hash = base, ""
        self._show_base()
        self.hash_button.configure(state="normal", text="Show the hash")
        if base.lower().endswith(".safetensors"):
            self.hash_button.pack(side="left", padx=(8, 0))
        else:
            self.hash_button.pack_forget()

    def _show_base(self) -> None:
        if self.page.cards:
            digest = f"SHA-256 {self._hash}; AutoV2 {self._hash[:AUTO_V2_DIGITS]}." if self._hash else ""
            self.found.configure(text="\n".join(filter(None, (self.app.checks.base_text, digest))))


def describe_parts(family: FamilyInfo) -> str:
    """The components of the family's models, and their usual size."""
    encoders = counted(len(family.text_encoders), "text encoder")
    size = family.typical_bytes / 2**30
    return f"{family.label}: {', '.join(family.denoisers)}, {encoders}, autoencoder; usually {size:.0f} GiB in float32."
