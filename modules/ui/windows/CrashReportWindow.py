"""The window with a run's crash report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from modules.config.labels import with_labels
from modules.config.visible_text import visible_line
from modules.session.crash_report import crash_report, suggestion
from modules.session.RunFolder import RunFolder
from modules.ui.windows.TextWindow import TextWindow

if TYPE_CHECKING:
    from modules.ui.App import App


class CrashReportWindow(TextWindow):
    """The report of the run in `folder`, without names, addresses and secrets, so that it can be passed on."""

    def __init__(self, app: App, folder: Path):
        super().__init__(app, "Crash report", "Reading the run's records…", "", size="860x600")
        self.add_button("Copy", self.copy)
        self.add_button("Close", self.destroy, is_main=True)
        app.in_background(lambda: read_report(folder), self._show, self._fail)

    def _show(self, found: tuple[str, str]) -> None:
        if self.winfo_exists():
            heading, text = found
            self.heading.configure(text=with_labels(heading))
            self.show_text(text)

    def _fail(self, error: Exception) -> None:
        if not isinstance(error, OSError):
            raise error
        if self.winfo_exists():
            self.heading.configure(text=f"The run folder can't be read ({error.strerror}).")


def read_report(folder: Path) -> tuple[str, str]:
    """A summary of what happened and what to do, and the full report."""
    run = RunFolder(folder)
    record = run.read_exit() or {}
    happened = visible_line(str(record.get("text") or "There is no record of how the run ended.").split("\n")[0])
    if record.get("status") in ("finished", "stopped"):
        happened = f"The run is {record['status']}; there is nothing to fix."
    advice = suggestion(record, run) if record.get("status") == "failed" else ""
    return f"{happened}\n{advice}".strip(), crash_report(folder)
