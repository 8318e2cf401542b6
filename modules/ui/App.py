"""What a tab, card, window or widget may ask of the main window."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, Protocol

from modules.ui.models.Scheduler import Scheduler

if TYPE_CHECKING:
    import tkinter

    from modules.ui.models.BackgroundChecks import BackgroundChecks
    from modules.ui.models.DeviceModel import DeviceModel
    from modules.ui.models.LaunchModel import LaunchModel
    from modules.ui.models.Preferences import Preferences
    from modules.ui.models.ProblemList import ProblemList
    from modules.ui.models.QueueModel import QueueModel
    from modules.ui.models.RunModel import RunModel
    from modules.ui.models.RunPage import RunPage
    from modules.ui.models.SettingsModel import SettingsModel
    from modules.ui.models.StandbyKeeper import StandbyKeeper
    from modules.ui.SettingsViews import SettingsViews
    from modules.ui.theme import Theme

MessageKind = Literal["info", "warning", "error"]


class App(Scheduler, Protocol):
    """The main window as its parts see it: shared models, timers and threads, messages and navigation.

    It gives no access to other parts of the window: they communicate through the models alone. TrainUI fulfils it.
    """

    settings: SettingsModel
    """The settings of the next run."""
    problems: ProblemList
    """Everything that would stop or spoil the next run."""
    views: SettingsViews
    """Refreshes what shows settings."""
    run: RunModel
    """The run that the window follows."""
    queue: QueueModel
    """The queue of runs, which goes on without the window."""
    page: RunPage
    """The web page of the runs, if it is switched on."""
    standby: StandbyKeeper
    """The processes that wait for a start, so that it takes less time."""
    devices: DeviceModel
    """The GPUs of this machine and the shape of the next run on them."""
    launch: LaunchModel
    """The commands that start the next run from terminals."""
    checks: BackgroundChecks
    """Checks machine, base model, images, folder and port while the user edits."""
    preferences: Preferences
    """The appearance and state of the window, kept between sessions."""
    theme: Theme
    """Colours, fonts and scaling."""
    root: tkinter.Tk
    """The main window as a Tk widget: the parent of other windows, and for the focus and the clipboard."""
    log_rank: int | None
    """The rank whose lines the log shows; None: all ranks."""
    revealed: set[str]
    """Advanced settings that are shown because the user was led to them."""
    is_asking: bool
    """Whether a modal question is open."""
    before_closing: list[Callable[[Callable[[], object]], bool]]
    """Called before the window closes, with what closes it: each returns whether it has to wait, and then calls it."""

    def show_message(self, text: str, kind: MessageKind = "info", holds: Callable[[], bool] | None = None) -> None:
        """Show a message over the page. holds: whether it is still true; it goes by itself once it is not."""
        ...

    def open_tab(self, name: str) -> object:
        """Bring a tab to the front. Raises KeyError if there is no tab of that name."""
        ...

    def flash(self, path: str) -> None:
        """Bring the field of the setting at `path` to the front, focus it and flash it."""
        ...

    def start_run(self) -> None:
        """Check the settings, then show a summary of the run, from which it can be started."""
        ...

    def start_preset(self, name: str) -> None:
        """As `start_run`, with exactly the settings of a preset."""
        ...

    def open_settings(self, path: str) -> None:
        """Load the settings of a file; a message says why if it can't be used."""
        ...

    def resume_run(self) -> None:
        """Check the settings, then offer to resume the run in their run folder."""
        ...

    def bind_settings_keys(self, window: tkinter.Toplevel) -> None:
        """Make the keys for undo, redo and save work in another window that edits the settings."""
        ...
