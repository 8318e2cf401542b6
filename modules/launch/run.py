"""The life of one rank: its listeners, its trainer, its signals and its outcome."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal, TextIO

from modules.config.errors import UserError
from modules.config.files import to_values
from modules.config.visible_text import visible_text
from modules.distributed.environments import FAULT_VARIABLE
from modules.distributed.errors import RankLostError
from modules.distributed.nccl_errors import explain_nccl_error, has_known_cause, is_nccl_error
from modules.launch.Supervisor import FAILED, FINISHED, STOPPED
from modules.layers.quiet_imports import quiet_libraries
from modules.loggers.Logger import LoggedRun, Logger, close_loggers
from modules.loggers.run_loggers import run_loggers
from modules.loggers.WebhookLogger import tell_end
from modules.machine.keep_awake import kept_awake
from modules.session.backups import stopped_at_once
from modules.session.EventCallbacks import EventCallbacks
from modules.session.events import EventWriter
from modules.session.FolderCommands import FolderCommands
from modules.session.log_file import log_file
from modules.session.OtherRankCallbacks import OtherRankCallbacks
from modules.session.out_of_memory import ADVICE, memory_advice
from modules.session.printing import print_line, print_text
from modules.session.RunFolder import RunFolder
from modules.session.signals import signals_answered, signals_remembered, stop_message, stop_signals
from modules.session.slurm import REQUEUED, requeue, requeue_signals
from modules.session.TerminalCallbacks import TerminalCallbacks
from modules.session.TrainCallbacks import CallbackList, TrainCallbacks
from modules.session.TrainCommands import TrainCommands
from modules.trainer.heap import keep_freed_memory
from modules.trainer.TrainingError import StopRequested
from modules.weights.libraries import gc_paused, import_pipeline

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig
    from modules.launch.plan import HerePlan
    from modules.trainer.checks import CheckedStart
    from modules.trainer.GenericTrainer import GenericTrainer

# to send the rest at the end; who stops a run, such as SLURM, may not give it long
SECONDS_FOR_LOGGERS = {"finished": 120.0, "stopped": 10.0, "failed": 10.0}

MakeTrainer = Callable[[TrainCallbacks, TrainCommands], "GenericTrainer"]


@dataclass(frozen=True)
class Outcome:
    """How a rank ended. step: optimizer steps done. text: why it failed, one sentence.

    is_user_error: the user has to fix it, so a restart would not help, and there is no traceback. is_symptom: the cause
    is probably another rank's end. at_once: ended by a second Ctrl-C, which the other ranks may not know about.
    requeues: whether this rank asks SLURM to run the job again.
    """

    status: Literal["finished", "stopped", "failed"]
    step: int = 0
    text: str = ""
    traceback: str = ""
    is_user_error: bool = False
    is_symptom: bool = False
    requeues: bool = False
    at_once: bool = False
    error: Exception | None = None

    @property
    def exit_code(self) -> int:
        stopped = REQUEUED if self.requeues else STOPPED
        return {"finished": FINISHED, "stopped": stopped, "failed": FAILED}[self.status]


def run_training(plan: HerePlan, checked: CheckedStart | None = None) -> int:
    """Train on one device in this process and return the exit code, as in `Outcome`.

    checked: as for `prepare_run`.

    Raises UserError if the run folder can't be used; any later error is recorded there.
    """
    started = time.time()
    signals = (*plan.stop_signals, *plan.requeue_signals)
    config, folder = plan.config, RunFolder(plan.config.workspace_dir)

    def make_trainer(callbacks: TrainCallbacks, commands: TrainCommands) -> GenericTrainer:
        if commands.stopping:  # the imports below take long
            raise StopRequested
        from modules.families.registry import FAMILIES
        from modules.trainer.GenericTrainer import GenericTrainer

        trainer = GenericTrainer(config, callbacks, commands, resume=plan.resume, checked=checked)
        import_pipeline(FAMILIES[config.family].pipeline)  # with the other libraries, while nothing looks for garbage
        return trainer

    with signals_remembered(signals):  # a signal before or after the training must not prevent its end being recorded
        if not plan.resume:
            folder.refuse_earlier_run()  # before exit.json of the earlier run is touched
        folder.create()
        with folder.held():
            outcome = train_rank(
                folder,
                make_trainer,
                started=started,
                config=config,
                resumes=plan.resume,
                signals=signals,
                keeps_awake=config.keep_awake,
            )
            record_end(folder, outcome)
    if not outcome.at_once:
        tell_end(folder, config, since=started)
    return outcome.exit_code


def record_end(folder: RunFolder, outcome: Outcome) -> None:
    """Write exit.json and requeue the job if needed: the last act of rank 0 where there is no supervisor."""
    text = outcome.text
    if outcome.requeues:
        # SLURM sends them when it requeues the job: exit.json has to be written first
        for number in (*stop_signals(), *requeue_signals()):
            signal.signal(number, signal.SIG_IGN)
        text = requeue()
        print_line(text, sys.stderr)
    with contextlib.suppress(OSError):  # on a full disk the message in the terminal has to do
        kind = {"kind": "out_of_memory"} if text in ADVICE else {}
        folder.write_exit(outcome.status, rank=0, **kind, **({"text": text} if text else {}))


def train_rank(
    folder: RunFolder,
    make_trainer: MakeTrainer,
    *,
    started: float,
    config: TrainConfig | None = None,
    resumes: bool = False,
    rank: int = 0,
    tells_failure: bool = True,
    signals: tuple[int, ...] = (),
    keeps_awake: bool = False,
    node: int = 0,
    node_ranks: int = 1,
) -> Outcome:
    """Train as one rank, from creating its trainer to the end, and return the outcome.

    started: Unix time at which the run was started; older commands are ignored. config: has the loggers of rank 0;
    None: there are none. resumes: whether their logs continue. tells_failure: whether to print a failure here.
    signals: the first one stops within two steps, backs up and saves; a second SIGINT ends at once; one of
    `requeue_signals` only backs up, because the job continues later. keeps_awake: whether this process, rather than one
    above it, keeps the machine from going to sleep. node: number of the node if this is the first of its `node_ranks`
    ranks, whose start and end it prints; 0 for the others, and on node 0, where rank 0 prints everything.
    """
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(log_file(folder.log_path(rank)))
        other = OtherRankCallbacks(rank, sys.stderr, node, node_ranks) if rank > 0 else None
        callbacks = CallbackList(_listeners(folder, rank, log, tells_failure, other, stack))
        callbacks.on_started(started)
        commands = FolderCommands(folder, callbacks, run_started=started) if rank == 0 else TrainCommands()
        stack.enter_context(stop_on(signals, commands, callbacks))
        if keeps_awake:
            stack.enter_context(kept_awake(callbacks.on_status))
        loggers: list[Logger] = []
        try:
            if config is not None and rank == 0:
                loggers = _start_loggers(config, folder, resumes, callbacks, stack)
            outcome = _train(make_trainer, callbacks, commands)
        except (StopRequested, KeyboardInterrupt) as end:
            if rank == 0:
                callbacks.on_status(stopped_at_once(folder))
            at_once = isinstance(end, KeyboardInterrupt)
            close_loggers(loggers, 0 if at_once else SECONDS_FOR_LOGGERS["stopped"])
            return Outcome("stopped", requeues=commands.requeues and rank == 0, at_once=at_once)
        except Exception as error:
            outcome = failure_outcome(error)
            _tell_failure(outcome, (sys.stderr, log) if tells_failure else (log,), callbacks)
        close_loggers(loggers, SECONDS_FOR_LOGGERS[outcome.status])
        return outcome


def _tell_failure(outcome: Outcome, streams: Sequence[TextIO], callbacks: TrainCallbacks) -> None:
    if not outcome.is_user_error:
        for stream in streams:
            with contextlib.suppress(OSError):
                print_text(outcome.traceback, stream)
    callbacks.on_failed(outcome.text)


def _train(make_trainer: MakeTrainer, callbacks: TrainCallbacks, commands: TrainCommands) -> Outcome:
    callbacks.on_status("Loading libraries")
    quiet_libraries()
    with gc_paused(for_good=True):
        trainer = make_trainer(callbacks, commands)
    if trainer.runtime.device.type == "cpu":
        keep_freed_memory()
    with contextlib.closing(trainer.backups):
        trainer.start()
        if fault := os.environ.get(FAULT_VARIABLE):
            from modules.trainer.faults import inject_fault

            inject_fault(trainer.loop, fault)
        trainer.train()
        trainer.end()
    callbacks.on_finished(trainer.step)
    return Outcome("stopped" if trainer.stopped else "finished", trainer.step, requeues=trainer.requeues)


def failure_outcome(error: Exception) -> Outcome:
    """How a rank ended that raised `error`."""
    trace = visible_text("".join(traceback.format_exception(error)))
    failed = partial(Outcome, "failed", traceback=trace, error=error)
    if isinstance(error, RankLostError):
        return failed(text=str(error), is_symptom=True)
    if isinstance(error, UserError):
        return failed(text=str(error), is_user_error=True, traceback="")
    if advice := memory_advice(error, has_gpu=_trains_on_gpu()):
        return failed(text=advice)
    if is_nccl_error(error) and has_known_cause(error):
        return failed(text=explain_nccl_error(error))
    return failed(text=visible_text(f"{type(error).__name__}: {error}"), is_symptom=_is_symptom(error))


def _trains_on_gpu() -> bool:
    torch = sys.modules.get("torch")  # without it, it was its import that failed
    return torch is not None and hasattr(torch, "accelerator") and torch.accelerator.is_available()


def _is_symptom(error: Exception) -> bool:
    """Whether a collective failed, as it does on every other rank when one of them ends."""
    if any(kind.__name__ == "DistError" for kind in type(error).__mro__):
        return True
    # gloo's errors are plain RuntimeErrors
    signs = ("Connection closed by peer", "Connection reset by peer", "gloo", "NCCL", "Broken pipe")
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in signs)


def _listeners(
    folder: RunFolder,
    rank: int,
    log: TextIO,
    tells_failure: bool,
    other: OtherRankCallbacks | None,
    stack: contextlib.ExitStack,
) -> Iterator[TrainCallbacks]:
    """The listeners of the run: terminal, log, events. `stack` closes them."""
    for stream in (sys.stderr, log) if rank == 0 else (log,):
        terminal = TerminalCallbacks(stream, tells_failure or stream is log)
        stack.callback(terminal.close)
        yield terminal
    if other is not None:
        yield other
    yield EventCallbacks(stack.enter_context(EventWriter(folder.event_path(rank), rank)))


def _start_loggers(
    config: TrainConfig, folder: RunFolder, resumes: bool, callbacks: CallbackList, stack: contextlib.ExitStack
) -> list[Logger]:
    """Add the loggers of the settings to `callbacks`. `stack` closes them."""
    run = LoggedRun(folder.path, to_values(config), resumes, callbacks.on_warning, callbacks.on_status)
    loggers = list(run_loggers(config, folder))
    for logger in loggers:
        logger.start(run)
    stack.callback(close_loggers, loggers)
    callbacks.listeners += loggers
    return loggers


@contextlib.contextmanager
def stop_on(signals: tuple[int, ...], commands: TrainCommands, callbacks: TrainCallbacks) -> Iterator[None]:
    """Within the block, the first of `signals` requests a stop; a second Ctrl-C ends at once."""

    def stop(number, frame) -> None:
        if number in requeue_signals():
            if not commands.requeues:  # it may arrive twice, from SLURM and from the process above
                tell("The job's time is nearly over: backing up within two steps")
            commands.requeue()
            return
        commands.stop()
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            tell("Stopping within two steps; press Ctrl-C again to stop at once without saving")
        else:
            tell(stop_message(number))

    with _status_from_handlers(callbacks) as tell, signals_answered(dict.fromkeys(signals, stop)):
        yield


@contextlib.contextmanager
def _status_from_handlers(callbacks: TrainCallbacks) -> Iterator[Callable[[str], None]]:
    """A function by which a signal handler can pass a status to `callbacks`; all are delivered by the end of the block.

    A thread delivers them: the code that a signal interrupts may be writing to the same stream, which is not reentrant.
    """
    texts: queue.SimpleQueue[str | None] = queue.SimpleQueue()  # put() is safe in a signal handler

    def tell() -> None:
        while (text := texts.get()) is not None:
            callbacks.on_status(text)

    thread = threading.Thread(target=tell, name="status of signals", daemon=True)
    thread.start()
    try:
        yield texts.put
    finally:
        texts.put(None)
        thread.join()
