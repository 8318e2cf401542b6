"""Samples of a run that has ended, made on request with the model that it has saved."""

from __future__ import annotations

import tkinter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from modules.config.counted import counted
from modules.config.errors import UserError
from modules.ui.cards.Card import Card
from modules.ui.cards.SamplesCard import SampleStrip
from modules.ui.models.trained_images import newest_model, read_paths, run_samples_script
from modules.ui.models.typed_text import WRONG_SETTING
from modules.ui.theme import Theme

if TYPE_CHECKING:
    from modules.config.SampleConfig import SampleConfig
    from modules.ui.App import App
    from modules.ui.models.RunState import RunState
    from modules.ui.models.ScriptRun import ScriptRun

STRIP_HEIGHT = 150


class SampleNowCard(Card):
    """Shows the samples made last, or why there are none. on_change: called when making them begins and ends."""

    def __init__(self, parent: tkinter.Misc, app: App, on_change: Callable[[], object]):
        super().__init__(parent, app, "Samples of the finished run")
        self._on_change = on_change
        self._script: ScriptRun | None = None
        self._note = self.add_note(1)
        self.strip = SampleStrip(self, app)
        self.strip.nothing = ""
        self.strip.configure(height=STRIP_HEIGHT)
        self.strip.grid_propagate(False)  # its scrollbar comes and goes
        self.strip.grid(row=2, column=0, sticky="ew", padx=8)

    def destroy(self) -> None:
        self.cancel()
        super().destroy()

    @property
    def is_generating(self) -> bool:
        return self._script is not None

    @staticmethod
    def can_sample(state: RunState) -> bool:
        """Whether there is an ended run with a saved model."""
        return not state.is_running and state.exit is not None and bool(newest_model(state.saved))

    def generate(self, state: RunState) -> None:
        """Make the samples of the window's settings with the model of an ended run."""
        samples = self._enabled_samples()
        if not samples:
            message = "There is no enabled prompt: add one, or enable one."
            self.app.show_message(message, "error", lambda: not self._enabled_samples())
            return
        config = self.app.settings.config()
        if config is None:
            self.app.show_message(WRONG_SETTING, "error", lambda: bool(self.app.settings.refused_input()))
            return
        assert state.folder is not None  # it has ended
        model = newest_model(state.saved)
        script = self._script = run_samples_script(
            state.folder, model, state.saved[-1].step, config, self.app.standby.take
        )
        self.show_title(f"Samples of {state.folder.name}, step {state.saved[-1].step:,}")
        self._tell(f"Generating {counted(sum(sample.count for sample in samples), 'sample')}…")
        self.strip.show([])
        self._on_change()
        self.app.in_background(
            script.run, lambda output: self._take(script, output), lambda error: self._fail(script, error)
        )

    def _enabled_samples(self) -> list[SampleConfig]:
        return [sample for sample in self.app.settings.get("sampling.samples") if sample.enabled]

    def cancel(self) -> None:
        if self._script is not None:
            self._script.cancel()

    def _take(self, script: ScriptRun, output: bytes | None) -> None:
        if not self._ends(script):
            return
        paths = read_paths(output)
        self._tell(f"Saved in {paths[0].parent}" if paths else "Cancelled.")
        self.strip.show([(_title(path), str(path)) for path in paths])
        self._on_change()

    def _fail(self, script: ScriptRun, error: Exception) -> None:
        is_shown = self._ends(script)
        if not isinstance(error, UserError):
            raise error
        if is_shown:
            self._tell(str(error), Theme.error)
            self._on_change()

    def _ends(self, script: ScriptRun) -> bool:
        """Whether the window still shows this script's samples."""
        if script is not self._script or not self.winfo_exists():
            return False
        self._script = None
        return True

    def _tell(self, text: str, colour: tuple[str, str] = Theme.muted) -> None:
        self._note.configure(text=text, text_color=colour)


def _title(path: Path) -> str:
    """The prompt and seed in the name of a sample's file, such as 003_a red fox_seed42.png."""
    return path.stem.partition("_")[2]
