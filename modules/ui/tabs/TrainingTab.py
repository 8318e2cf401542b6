"""The training tab: method, loop, optimizer, noise and loss, and the multi-GPU switch."""

from __future__ import annotations

import tkinter
from typing import TYPE_CHECKING

import customtkinter as ctk

from modules.config.describe import settings_by_path
from modules.config.methods import METHODS
from modules.ui.cards.RunEstimate import RunEstimate
from modules.ui.cards.TimestepPlot import TimestepPlot
from modules.ui.models.noise_preview import timestep_bars, weight_bars
from modules.ui.widgets.dialogs import open_window
from modules.ui.widgets.form import CardSpec, SettingsPage
from modules.ui.widgets.PartList import PartList

if TYPE_CHECKING:
    from modules.ui.App import App


def paths_below(prefix: str) -> tuple[str, ...]:
    """The settings of a section, in the order of declaration."""
    return tuple(path for path in settings_by_path() if path.startswith(f"{prefix}.") and "[]" not in path)


LOOP = ("epochs", "max_steps", "batch_size", "batch_size_mode", "gradient_accumulation_steps")
MULTI_GPU = (
    "enable_multi_gpu",
    "distributed_data_loading",
    "distributed_backend",
    "use_torchrun",
    "world_size",
    "lr_scaling",
)
MULTI_GPU_LABELS = {
    "enable_multi_gpu": "Enable Multi-GPU Training",
    "distributed_data_loading": "Distributed data loading",
}


class TrainingTab(ctk.CTkFrame):
    def __init__(self, parent: tkinter.Misc, app: App):
        super().__init__(parent, fg_color="transparent")
        self.app = app
        footers = {
            "Multi-GPU": self._add_buttons,
            "Duration and batch": self._add_estimate,
            "Noise and timesteps": self._add_timesteps,
            "Loss": self._add_weights,
        }
        self.page = SettingsPage(self, app, cards(), footers)
        self.page.pack(fill="both", expand=True)
        self.page.add_card(self._make_embeddings, 2.5, lambda: app.settings.is_visible("embeddings"))

    def show_setting(self, path: str) -> None:
        """For "embeddings", focus the button that adds one; all other settings of the tab have a field."""
        if path == "embeddings":
            self.page.finish()
            self.embeddings.focus_add()

    def _make_embeddings(self) -> PartList:
        self.embeddings = PartList(self.page, self.app, "embeddings")
        return self.embeddings

    def _add_estimate(self, footer: ctk.CTkFrame) -> None:
        self.estimate = RunEstimate(footer, self.app)
        self.estimate.pack(fill="x")

    def _add_timesteps(self, footer: ctk.CTkFrame) -> None:
        title = "How often each timestep is trained"
        self.timesteps = TimestepPlot(footer, self.app, title, timestep_bars, lambda: self.page.arrange_soon())
        self.timesteps.pack(fill="x")

    def _add_weights(self, footer: ctk.CTkFrame) -> None:
        title = "How much each timestep counts"
        self.weights = TimestepPlot(footer, self.app, title, weight_bars, lambda: self.page.arrange_soon())
        self.weights.pack(fill="x")

    def _add_buttons(self, footer: ctk.CTkFrame) -> None:
        font = self.app.theme.font()
        configure = ctk.CTkButton(footer, text="Several machines…", font=font, command=self._configure_nodes)
        configure.pack(side="left")
        devices = ctk.CTkButton(
            footer, text="Devices…", width=80, font=font, command=lambda: self.app.open_tab("multi-GPU")
        )
        devices.pack(side="left", padx=(8, 0))

    def _configure_nodes(self) -> None:
        from modules.ui.windows.MultiNodeWindow import MultiNodeWindow

        open_window(self.app, MultiNodeWindow)


def cards() -> list[CardSpec]:
    """The cards of the tab, most frequently used first."""
    of_methods = dict.fromkeys(part for method in METHODS.values() for part in method.settings)
    return [
        CardSpec("Method", ("method", *(path for name in of_methods for path in paths_below(name)))),
        CardSpec("Duration and batch", LOOP),
        CardSpec("Multi-GPU", MULTI_GPU, MULTI_GPU_LABELS, all_importances=True),
        CardSpec("Optimizer", paths_below("optimizer")),
        CardSpec("Schedule", paths_below("schedule")),
        CardSpec("U-Net or transformer", paths_below("denoiser")),
        CardSpec("Text encoder", paths_below("text_encoder")),
        CardSpec("Noise and timesteps", paths_below("diffusion")),
        CardSpec("Loss", paths_below("loss")),
        CardSpec("EMA", paths_below("ema")),
        CardSpec("Validation", ("validation.unit", "validation.every", "validation.timesteps")),
    ]
