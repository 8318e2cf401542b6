"""The life of one rank: its listeners, its trainer, its signals, and how it ended."""

from __future__ import annotations

import contextlib
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal, TextIO

from modules.config.errors import UserError
from modules.config.TrainConfig import TrainConfig
from modules.config.visible_text import visible_text
from modules.distributed.errors import RankLostError
from modules.distributed.nccl_errors import explain_nccl_error, has_known_cause, is_nccl_error
from modules.launch.Supervisor import FAILED, FINISHED, STOPPED
from modules.machine.keep_awake import kept_awake
from modules.session.backups import stopped_at_once
from modules.session.EventCallbacks import EventCallbacks
from modules.session.events import EventWriter
from modules.session.FolderCommands import FolderCommands
from modules.session.log_file import log_file
from modules.session.OtherRankCallbacks import OtherRankCallbacks
from modules.session.out_of_memory import is_out_of_memory
from modules.session.printing import print_line, print_text
from modules.session.RunFolder import RunFolder
from modules.session.RunLock import RunLock
from modules.session.signals import HANGUP_SIGNALS, signals_answered, signals_remembered, stop_signals
from modules.session.slurm import REQUEUE_SIGNALS, REQUEUED, requeue, requeue_signals
from modules.session.TerminalCallbacks import TerminalCallbacks
from modules.session.TrainCallbacks import CallbackList, TrainCallbacks
from modules.session.TrainCommands import TrainCommands
from modules.trainer.heap import keep_freed_memory
from modules.trainer.TrainingError import StopRequested
from modules.weights.libraries import gc_paused

if TYPE_CHECKING:
    from modules.trainer.GenericTrainer import GenericTrainer

OUT_OF_MEMORY = (
    "The GPU's memory is full: lower batch_size (and raise gradient_accumulation_steps), switch "
    "model.gradient_checkpointing on, lower data.resolution, or train a LoRA with model.weight_dtype bfloat16."
)

MakeTrainer = Callable[[TrainCallbacks, TrainCommands], "GenericTrainer"]


@dataclass(frozen=True)
class Outcome:
    """How a rank ended. step: optimizer steps done. text: why it failed, one sentence.

    is_user_error: whether the user can mend it, so that trying again is of no use. is_symptom: whether the cause is
    likely another rank's end. at_once: by a second Ctrl-C, of which the other ranks may not know. requeues: whether
    this rank is to have SLURM run the job again.
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


def run_training(config: TrainConfig, resume: bool = False) -> int:
    """Trains on one device in this process and returns its exit code, as of `Outcome`.

    Raises UserError where the run folder can't be used; everything later is written there.
    """
    started = time.time()
    signals = (*stop_signals(), *requeue_signals())
    folder = RunFolder(config.workspace_dir)

    def make_trainer(callbacks: TrainCallbacks, commands: TrainCommands) -> GenericTrainer:
        from modules.trainer.GenericTrainer import GenericTrainer

        return GenericTrainer(config, callbacks, commands, resume=resume)

    with signals_remembered(signals):  # one before or after the training must not cost the record of its end
        if not resume:
            folder.refuse_earlier_run()  # before its record of how it ended is touched
        folder.create()
        with RunLock(folder.lock_path):
            folder.clear_exit()
            outcome = train_rank(
                config, folder, make_trainer, started=started, signals=signals, keeps_awake=config.keep_awake
            )
            record_end(folder, outcome)
    return outcome.exit_code


def record_end(folder: RunFolder, outcome: Outcome) -> None:
    """The last that rank 0 does, where no supervisor does it: exit.json, and where it is to be, the job's next turn."""
    text = outcome.text
    if outcome.requeues:
        # SLURM sends them when it queues the job again: the words come first
        for number in (*stop_signals(), *requeue_signals()):
            signal.signal(number, signal.SIG_IGN)
        text = requeue()
        print_line(text, sys.stderr)
    with contextlib.suppress(OSError):  # on a full disk the words on the terminal have to do
        folder.write_exit(outcome.status, rank=0, **({"text": text} if text else {}))


def train_rank(
    config: TrainConfig,
    folder: RunFolder,
    make_trainer: MakeTrainer,
    *,
    started: float,
    rank: int = 0,
    tells_failure: bool = True,
    signals: tuple[int, ...] = (),
    keeps_awake: bool = False,
) -> Outcome:
    """Trains as one rank, from the making of its trainer to the end, and says how it ended.

    started: Unix time at which the run was started; older commands are not for it. tells_failure: whether the terminal
    hears of a failure from here. signals: the first of them ends the step, backs up and saves; a second one of SIGINT
    ends at once; one of REQUEUE_SIGNALS backs up only, for the job goes on later. keeps_awake: whether this process,
    and none above it, keeps the machine from going to sleep.
    """
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(log_file(folder.log_path(rank)))
        callbacks = CallbackList(_listeners(config, folder, rank, log, tells_failure, stack))
        commands = FolderCommands(folder, callbacks, run_started=started) if rank == 0 else TrainCommands()
        stack.enter_context(stop_on(signals, commands, callbacks))
        if keeps_awake:
            stack.enter_context(kept_awake(callbacks.on_status))
        try:
            outcome = _train(make_trainer, callbacks, commands)
        except (StopRequested, KeyboardInterrupt) as end:
            if rank == 0:
                callbacks.on_status(stopped_at_once(folder))
            at_once = isinstance(end, KeyboardInterrupt)
            return Outcome("stopped", requeues=commands.requeues and rank == 0, at_once=at_once)
        except Exception as error:
            outcome = failure_outcome(error)
            if not outcome.is_user_error:
                for stream in (sys.stderr, log) if tells_failure else (log,):
                    with contextlib.suppress(OSError):
                        print_text(outcome.traceback, stream)
            callbacks.on_failed(outcome.text)
        return outcome


def _train(make_trainer: MakeTrainer, callbacks: TrainCallbacks, commands: TrainCommands) -> Outcome:
    callbacks.on_status("Loading libraries")
    with gc_paused():
        trainer = make_trainer(callbacks, commands)
    if trainer.runtime.device.type == "cpu":
        keep_freed_memory()
    with contextlib.closing(trainer.backups):
        trainer.start()
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
        return failed(text=str(error), is_user_error=True)
    if is_out_of_memory(error):
        return failed(text=OUT_OF_MEMORY)
    if is_nccl_error(error) and has_known_cause(error):
        return failed(text=explain_nccl_error(error))
    return failed(text=visible_text(f"{type(error).__name__}: {error}"), is_symptom=_is_symptom(error))


def _is_symptom(error: Exception) -> bool:
    """Whether a collective failed, as it does on every rank when one of them ends."""
    if any(kind.__name__ == "DistError" for kind in type(error).__mro__):
        return True
    # gloo's errors are plain RuntimeErrors
    signs = ("Connection closed by peer", "Connection reset by peer", "gloo", "NCCL", "Broken pipe")
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in signs)


def _listeners(
    config: TrainConfig, folder: RunFolder, rank: int, log: TextIO, tells_failure: bool, stack: contextlib.ExitStack
) -> Iterator[TrainCallbacks]:
    """Everything that is told of the run: terminal, log, events, TensorBoard; `stack` closes it."""
    for stream in (sys.stderr, log) if rank == 0 else (log,):
        terminal = TerminalCallbacks(stream, tells_failure or stream is log)
        stack.callback(terminal.close)
        yield terminal
    if rank > 0:
        yield OtherRankCallbacks(rank, sys.stderr)
    yield EventCallbacks(stack.enter_context(EventWriter(folder.event_path(rank), rank)))
    if config.tensorboard and rank == 0:
        from modules.trainer.TensorBoardCallbacks import TensorBoardCallbacks

        tensorboard = TensorBoardCallbacks(folder.tensorboard_dir)
        stack.callback(tensorboard.close)
        yield tensorboard


@contextlib.contextmanager
def stop_on(signals: tuple[int, ...], commands: TrainCommands, callbacks: TrainCallbacks) -> Iterator[None]:
    """Inside, the first of `signals` asks for a stop; a second Ctrl-C ends at once."""

    def stop(number, frame) -> None:
        if number in REQUEUE_SIGNALS:
            if not commands.requeues:  # SLURM and the process above may both send it
                tell("The job's time is nearly over: backing up after this step")
            commands.requeue()
            return
        commands.stop()
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            tell("Stopping after this step; press Ctrl-C again to stop at once without saving")
        elif number in HANGUP_SIGNALS:
            tell("The terminal was closed: stopping after this step")
        else:
            tell("Stopping after this step")

    with _status_from_handlers(callbacks) as tell, signals_answered(dict.fromkeys(signals, stop)):
        yield


@contextlib.contextmanager
def _status_from_handlers(callbacks: TrainCallbacks) -> Iterator[Callable[[str], None]]:
    """Gives a signal handler a way to tell `callbacks` a status; all has been told when the block ends.

    A thread does it: the code that a signal interrupts may be writing to the same stream, which can't be entered twice.
    """
    texts: queue.SimpleQueue[str | None] = queue.SimpleQueue()  # its put is safe in a signal handler

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
