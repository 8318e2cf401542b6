"""One run from its settings to its exit: callbacks, trainer, signals and the record of how it ended."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from typing import TextIO

from modules.config.errors import UserError
from modules.config.TrainConfig import TrainConfig
from modules.config.validation import ONE_DEVICE
from modules.session.EventCallbacks import EventCallbacks
from modules.session.events import EventWriter
from modules.session.FolderCommands import FolderCommands
from modules.session.RunFolder import RunFolder
from modules.session.TerminalCallbacks import TerminalCallbacks
from modules.session.TrainCallbacks import CallbackList, TrainCallbacks
from modules.session.TrainCommands import TrainCommands
from modules.trainer.heap import keep_freed_memory
from modules.trainer.TrainingError import StopRequested

FINISHED, FAILED, STOPPED = 0, 1, 130
OUT_OF_MEMORY = (
    "The GPU's memory is full: lower batch_size (and raise gradient_accumulation_steps), switch "
    "model.gradient_checkpointing on, lower data.resolution, or train a LoRA with model.weight_dtype bfloat16."
)


def run_training(config: TrainConfig, resume: bool = False) -> int:
    """Trains in this process and returns its exit code: 0 finished, 1 failed, 130 stopped before the end.

    Raises UserError where the run folder can't be used; everything later is written there.
    """
    started = time.time()
    folder = RunFolder(config.workspace_dir)
    if not resume:
        folder.refuse_earlier_run()  # before its record of how it ended is touched
    folder.create()
    folder.clear_exit()
    with contextlib.ExitStack() as stack:
        # backslashreplace: a file name that is no text must not end the run that tells of it
        log = folder.log_path(0).open("a", encoding="utf-8", errors="backslashreplace", buffering=1)
        stack.enter_context(log)
        callbacks = CallbackList(_listeners(config, folder, log, stack))
        commands = FolderCommands(folder, callbacks, run_started=started)
        try:
            stopped = _train(config, callbacks, commands, resume)
        except (StopRequested, KeyboardInterrupt):
            callbacks.on_status("Stopped at once, without a backup")
            stopped = True
        except UserError as error:
            return _failed(folder, callbacks, str(error))
        except Exception as error:
            if type(error).__name__ == "OutOfMemoryError":  # torch's; this module does without torch
                return _failed(folder, callbacks, OUT_OF_MEMORY)
            for stream in (sys.stderr, log):
                traceback.print_exc(file=stream)
            return _failed(folder, callbacks, f"{type(error).__name__}: {error}")
    _write_exit(folder, "stopped" if stopped else "finished")
    return STOPPED if stopped else FINISHED


def _train(config: TrainConfig, callbacks: TrainCallbacks, commands: TrainCommands, resume: bool) -> bool:
    """Whether it was stopped."""
    callbacks.on_status("Loading libraries")
    from modules.trainer.GenericTrainer import GenericTrainer

    if config.enable_multi_gpu:
        callbacks.on_warning(ONE_DEVICE)
    trainer = GenericTrainer(config, callbacks, commands, resume=resume)
    if trainer.runtime.device.type == "cpu":
        keep_freed_memory()
    with contextlib.closing(trainer.backups), _stop_on_interrupt(commands, callbacks):
        trainer.start()
        trainer.train()
        trainer.end()
    callbacks.on_finished(trainer.step)
    return trainer.stopped


def _listeners(
    config: TrainConfig, folder: RunFolder, log: TextIO, stack: contextlib.ExitStack
) -> Iterator[TrainCallbacks]:
    """Everything that is told of the run: terminal, log, events, TensorBoard; `stack` closes it."""
    for stream in (sys.stderr, log):
        terminal = TerminalCallbacks(stream)
        stack.callback(terminal.close)
        yield terminal
    yield EventCallbacks(stack.enter_context(EventWriter(folder.event_path(0), rank=0)))
    if config.tensorboard:
        from modules.trainer.TensorBoardCallbacks import TensorBoardCallbacks

        tensorboard = TensorBoardCallbacks(folder.tensorboard_dir)
        stack.callback(tensorboard.close)
        yield tensorboard


def _failed(folder: RunFolder, callbacks: TrainCallbacks, text: str) -> int:
    callbacks.on_failed(text)
    _write_exit(folder, "failed", text=text)
    return FAILED


def _write_exit(folder: RunFolder, status: str, **details: str) -> None:
    with contextlib.suppress(OSError):  # on a full disk the message on the screen has to do
        folder.write_exit(status, rank=0, **details)


@contextlib.contextmanager
def _stop_on_interrupt(commands: TrainCommands, callbacks: TrainCallbacks) -> Iterator[None]:
    """The first Ctrl-C ends the step, backs up and saves; the second one ends at once."""

    def stop(number, frame) -> None:
        commands.stop()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        callbacks.on_status("Stopping after this step; press Ctrl-C again to stop at once without saving")

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
