"""Check, start and stop a run from the window."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modules.config.errors import ConfigError, UserError
from modules.config.labels import with_labels
from modules.config.problems import warning
from modules.session.backups import newest_usable, state_to_resume
from modules.session.free_folders import next_free_folder
from modules.session.RunFolder import RunFolder
from modules.session.RunSummary import GPU_MEMORY, MEMORY, RunSummary
from modules.ui.models.ScriptRun import ScriptRun
from modules.ui.widgets.dialogs import ask, open_window
from modules.ui.windows.ProblemsWindow import lead_to
from modules.ui.windows.QueueEntryWindow import QueueEntryWindow

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig
    from modules.machine.devices import GpuUsage
    from modules.queue.QueueEntry import QueueEntry
    from modules.ui.App import App

REFUSED = 2  # exit code of scripts/train.py
CHECK_SECONDS = 600  # enough for many images on a slow disk
CANCEL_MS = 1000  # until a check can be cancelled, so that a double click does not cancel it


class RunControl:
    """on_change: called when the action of the large button may have changed."""

    def __init__(self, app: App):
        self.app = app
        self.on_change: Callable[[], None] = lambda: None
        self._check: ScriptRun | None = None  # the current one
        self._can_cancel = False
        self._told_in: tuple | None = None  # the run during which it was said when changed settings count
        self._unsubscribe = app.settings.subscribe(self._on_settings)

    @property
    def is_checking(self) -> bool:
        return self._check is not None

    def close(self) -> None:
        """Cancel a running check, and stop listening."""
        self._unsubscribe()
        self._cancel()

    def button(self) -> tuple[str, bool, bool]:
        """The text of the large button, whether it stops the run, and whether it is enabled."""
        state = self.app.run.state
        if state.is_running:
            return ("Force stop", True, True) if state.is_stopping else ("Stop", True, True)
        if self.is_checking:
            return ("Cancel check", False, True) if self._can_cancel else ("Checking…", False, False)
        return "Start training", False, True

    def start_or_stop(self) -> None:
        """Start a run, stop a running one, or force a stopping one to end. Cancels a running check."""
        state = self.app.run.state
        if not state.is_running:
            if self.is_checking:
                self.cancel_check()
            else:
                self.start()
            return
        try:
            if state.is_stopping:
                self._force()
            else:
                self.app.run.stop()
                text = "Stopping within two steps; a backup and the model will be saved. Press again to stop now."
                self.app.show_message(text, "info")
        except UserError as error:
            self.app.show_message(str(error), "error")

    def check(self) -> None:
        """Show what the run would do."""
        self._summarize(resume=False, then_start=False)

    def cancel_check(self) -> None:
        """Cancel the check at once, without waiting for its process to end."""
        self._cancel()
        self._set_check(None)
        self.app.show_message("The check was cancelled.", "info")

    def start(self) -> None:
        """Check everything and show a summary of the run, from which it can be started."""
        if self._is_active() or not self._is_ready():
            return
        if not self._goes_beside_queue():
            return
        choice = self._choose_folder()
        if choice is not None:
            self._summarize(resume=choice == "resume", then_start=True)

    def queue_run(self) -> None:
        """Add the settings to the queue, or save them to the entry that is being edited."""
        config = self.app.settings.config() if self._is_ready() else None
        if config is None:
            return
        editing = self.app.queue.editing
        if editing is None:
            open_window(self.app, QueueEntryWindow, config)
            return

        def told(entry: QueueEntry) -> None:
            self.app.queue.end_editing()
            self.app.show_message(f"Saved the settings to {entry.name} in the queue. Yours are back.", "info")

        self.app.queue.do(lambda queue: queue.edit(editing.id, config), told)

    def start_preset(self, name: str) -> None:
        """As `start`, with exactly the settings of a preset; undo brings the earlier ones back."""
        settings = self.app.settings
        if self._is_active():
            self.app.show_message("A run or a check is active: stop it first.", "warning", self._is_active)
            return
        is_changed = bool(settings.modified_paths()) or not settings.is_preset
        settings.load_preset(name, keeps_own=False)
        if is_changed:
            self.app.show_message(f"Loaded the settings of {name}. Undo restores yours.", "info")
        self.start()

    def resume(self) -> None:
        """As `start`, but resume the run in the run folder from its newest backup."""
        if not self.app.run.state.is_running:
            self._summarize(resume=True, then_start=True)

    def _is_active(self) -> bool:
        return self.is_checking or self.app.run.state.is_running

    def _cancel(self) -> None:
        if self._check is not None:
            self._check.cancel()

    def _on_settings(self, paths: set[str]) -> None:
        """Say once per run that it keeps the settings that it was started with."""
        if self.app.queue.editing is not None:  # these are of an entry of the queue
            return
        state = self.app.run.state
        run = (state.folder, state.started)
        if paths and state.is_running and state.folder is not None and run != self._told_in:
            self._told_in = run
            text = f"Changed settings count for the next run: {state.folder.name} keeps those that it was started with."
            self.app.show_message(text, "info")

    def _is_ready(self) -> bool:
        if blocking := self.app.problems.blocking():
            lead_to(self.app, blocking[0])  # its message is at the field, and goes once it is fixed
        return not blocking

    def _goes_beside_queue(self) -> bool:
        """While the queue trains, ask whether to start a run beside it, on GPUs that it may use, too."""
        if not (running := self.app.queue.view.running):
            return True
        text = f"The queue is training {running[0].name}. Add this run to the queue, or start it beside that one?"
        answer = ask(self.app, "Start training", text, ("Add to queue", "Start beside it", "Cancel"))
        if answer == "Add to queue":
            self.queue_run()
        return answer == "Start beside it"

    def _choose_folder(self) -> str | None:
        """If the run folder already holds a run, ask whether to resume it: "resume" or "new"; None: cancelled."""
        settings = self.app.settings
        try:
            folder = RunFolder(settings.get("workspace_dir"))
        except UserError as error:
            self._refuse(error)
            return None
        try:
            folder.refuse_earlier_run()
        except UserError:
            answer = self._ask_about(folder)
            if answer == "New folder":
                settings.set("workspace_dir", next_free_folder(settings.get("workspace_dir")))
                return "new"
            return "resume" if answer == "Resume" else None
        except OSError as error:
            self._refuse(UserError.at("workspace_dir", f"can't be read: {error.strerror}; choose another folder."))
            return None
        return "new"

    def _ask_about(self, folder: RunFolder) -> str | None:
        """Ask whether to resume the run in the output folder; the first answer is the one that has the focus."""
        shown = self.app.settings.get("workspace_dir")
        new = Path(next_free_folder(shown)).name
        backup = newest_usable(folder)
        if not folder.has_finished():
            resume = f"Resume it from step {backup.step:,}" if backup else "Resume it"
            text = f"{shown} holds a run already. {resume} or start a new run in {new}?"
            return ask(self.app, "Output folder", text, ("Resume", "New folder", "Cancel"))
        text = (
            f"{shown} holds a run that has finished. Start a new run in {new}? Resume "
            "trains the finished one on, if the settings now have more steps or epochs."
        )
        return ask(self.app, "Output folder", text, ("New folder", "Resume", "Cancel"))

    def _summarize(self, resume: bool, then_start: bool) -> None:
        if self.is_checking or not self._is_ready():
            return
        self.app.problems.forget_refusal()
        config = self.app.settings.config()
        if config is None:
            return
        check, read_usage = check_of(config, resume), self.app.devices.read_usage()
        self._set_check(check)
        if then_start:
            self.app.standby.hurry()
        self.app.after(CANCEL_MS, self._offer_cancel, check)

        def find() -> tuple[RunSummary, list[GpuUsage], dict[str, Any] | None]:
            summary = run_check(check)
            return summary, read_usage(), state_to_resume(RunFolder(config.workspace_dir)) if resume else None

        def show(found: tuple[RunSummary, list[GpuUsage], dict[str, Any] | None]) -> None:
            if check is self._check:  # not cancelled
                self._set_check(None)
                self._show_summary(*found, config, (lambda: self._start(config, resume)) if then_start else None)

        self.app.in_background(find, show, lambda error: self._fail(check, error))

    def _show_summary(
        self,
        summary: RunSummary,
        usage: list[GpuUsage],
        resumed: dict[str, Any] | None,
        config: TrainConfig,
        start: Callable[[], None] | None,
    ) -> None:
        """resumed: the state of the backup that the run resumes from."""
        from modules.ui.windows.RunSummaryWindow import RunSummaryWindow

        self.app.devices.take_usage(usage)
        self.app.checks.tell()
        devices = self.app.devices
        says_need = any(label in (GPU_MEMORY, MEMORY) for label, _ in summary.lines)
        memory = ("Available", devices.room_text(config)) if says_need else (MEMORY, devices.memory_text(config))
        estimates = (memory, ("Time", devices.time_text(config, resumed)))
        lines = [(label, with_labels(text)) for label, text in summary.lines]
        found = [with_labels(one.message, one.path) for one in summary.warnings]
        found += [one.message for one in self.app.problems.all()]
        shown = RunSummary(
            lines=(*lines, *(estimate for estimate in estimates if estimate[1])),
            warnings=tuple(map(warning, dict.fromkeys(found))),
        )
        open_window(self.app, RunSummaryWindow, shown.text(), start)

    def _start(self, config: TrainConfig, resume: bool) -> None:
        if self.app.settings.config() != config:  # the summary does not block the settings
            text = "The settings have changed since the check: press Start training again."
            self.app.show_message(text, "warning", lambda: not self._is_active())
            return
        if self.app.run.state.is_running:  # a run found or opened since the check
            text = "A run is active: stop it before you start another one."
            self.app.show_message(text, "warning", lambda: self.app.run.state.is_running)
            return
        try:
            self.app.run.start(config, resume)
        except UserError as error:
            self._refuse(error)
        else:
            self.app.open_tab("monitor")

    def _force(self) -> None:
        text = "Stop the run now? Progress since the last backup will be lost."
        if ask(self.app, "Force stop", text, ("Wait", "Force stop"), danger="Force stop") == "Force stop":
            self.app.run.force_stop()

    def _fail(self, check: ScriptRun, error: Exception) -> None:
        is_wanted = check is self._check
        if is_wanted:
            self._set_check(None)
        if not isinstance(error, UserError):
            raise error
        if is_wanted:
            self._refuse(error)

    def _refuse(self, error: UserError) -> None:
        """List why the run can't start, and lead to the first."""
        self.app.problems.take_refusal(error.problems)
        lead_to(self.app, self.app.problems.all()[0])

    def _set_check(self, check: ScriptRun | None) -> None:
        self._check, self._can_cancel = check, False
        self.on_change()

    def _offer_cancel(self, check: ScriptRun) -> None:
        if check is self._check:
            self._can_cancel = True
            self.on_change()


def check_of(config: TrainConfig, resume: bool = False) -> ScriptRun:
    """A dry run of `config` by scripts/train.py, as the window itself loads no model code.

    resume: the run resumes the one in its folder.
    """
    options = ["--dry-run", "--json", "--supervise", *(["--resume"] if resume else [])]
    return ScriptRun("train.py", config, options, (0, REFUSED), CHECK_SECONDS)


def run_check(check: ScriptRun) -> RunSummary:
    """What the run would do; nothing if the check was cancelled. Raises UserError if it would be refused."""
    output = check.run()
    summary = RunSummary() if output is None else RunSummary.from_json(output)
    if summary.problems:
        raise ConfigError(summary.problems)
    return summary
