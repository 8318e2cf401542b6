"""What TensorBoard reads from a run, also after a resume."""

import errno

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.summary.writer import event_file_writer

from modules.loggers.TensorBoardLogger import TensorBoardLogger
from modules.session.StepInfo import StepInfo


def write(folder, steps, loss):
    callbacks = TensorBoardLogger(folder)
    for step in steps:
        info = StepInfo(
            epoch=1, step=step, steps_total=9, loss=loss, smooth_loss=loss, lr=1e-4, samples=4, seconds=0.5, grad_norm=1
        )
        callbacks.on_step(info)
    callbacks.close()


def test_steps_done_again_after_a_resume_replace_the_first_ones(tmp_path, monkeypatch):
    # Files of the same second are read in the order of their names, in which the process numbers them: 10 before 9.
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(0))
    write(tmp_path, range(1, 6), loss=1.0)
    write(tmp_path, range(4, 7), loss=2.0)
    read = EventAccumulator(str(tmp_path)).Reload()
    assert [(event.step, event.value) for event in read.Scalars("loss")] == [
        (1, 1.0), (2, 1.0), (3, 1.0), (4, 2.0), (5, 2.0), (6, 2.0),
    ]  # fmt: skip
    assert {event.value for event in read.Scalars("train/samples_per_sec")} == {8.0}


def test_the_figures_of_a_step_are_one_event(tmp_path):
    write(tmp_path, range(1, 3), loss=1.0)
    (file,) = tmp_path.iterdir()
    tags = [[value.tag for value in event.summary.value] for event in EventFileLoader(str(file)).Load()]
    figures = ["loss", "smooth_loss", "grad_norm", "train/epoch", "train/samples_per_sec", "train/data_seconds"]
    assert [names for names in tags if names] == [figures, figures]


def test_nothing_is_written_where_there_are_no_figures(tmp_path):
    callbacks = TensorBoardLogger(tmp_path)
    callbacks.on_validation(1, 0, None, None)
    callbacks.close()
    assert not list(tmp_path.iterdir())


def test_a_full_disk_stops_the_logging_and_not_the_run(tmp_path, monkeypatch, capsys):
    def refuse(writer):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("torch.utils.tensorboard.SummaryWriter.close", refuse)
    write(tmp_path, range(1, 3), loss=1.0)
    assert "TensorBoard logging stops: No space left on device." in capsys.readouterr().err
