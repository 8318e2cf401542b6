import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest

from modules.config.visible_text import find_hidden
from modules.session import events
from modules.session.event_types import (
    EVENT_TYPES,
    BackupEvent,
    Event,
    FailedEvent,
    FinishedEvent,
    ProgressEvent,
    SampleEvent,
    SamplesEvent,
    SavedEvent,
    StartedEvent,
    StatusEvent,
    ValidationEvent,
    WaitingEvent,
    WarningEvent,
)
from modules.session.events import EventRecord, EventWriter, decode, encode, read_events, to_plain
from modules.session.StepInfo import StepInfo
from modules.session.TrainCallbacks import CallbackList
from tests.support.waiting import PATIENCE_SECONDS

STEP = StepInfo(
    epoch=1, step=2, steps_total=10, loss=0.5, smooth_loss=0.25, lr=1e-4, samples=8, seconds=2.0, grad_norm=0.1
)
EVENTS = [
    StartedEvent(1000.5),
    StatusEvent("Caching latents"),
    WaitingEvent("Waiting for space"),
    ProgressEvent("Caching images", 3, 8),
    STEP,
    ValidationEvent(2, 40, 0.5, 0.25),
    SampleEvent("a.png", "a fox", 2),
    SamplesEvent("samples/2", 2),
    BackupEvent("backup/2", 2),
    SavedEvent("model.safetensors", 2),
    WarningEvent("slow disk"),
    FailedEvent("out of memory"),
    FinishedEvent(10),
]

ON_A_FULL_DISK = """
import resource, sys, time
from modules.session import events
from modules.session.event_types import FinishedEvent, StatusEvent
events._RETRY_SECONDS = 0.02
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
writer = events.EventWriter(sys.argv[1], 0)
for number in range(100):
    writer.write(StatusEvent(str(number)))
while not writer._has_warned:
    time.sleep(0.01)
time.sleep(0.1)
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
writer.write(FinishedEvent(100))
writer.close()
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "rank-0.jsonl"


def write(path, *texts, rank=0):
    with EventWriter(path, rank) as writer:
        for text in texts:
            writer.write(StatusEvent(text))


def wait_for_warning(writer):
    deadline = time.monotonic() + 60
    while not writer._has_warned:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def texts(found):
    return [record.event.text for record in found]


def test_events_come_back_in_order_with_time_and_rank(path):
    with EventWriter(path, rank=3) as writer:
        for event in EVENTS:
            writer.write(event)
    found, offset = read_events(path)
    assert [record.event for record in found] == EVENTS
    assert {record.rank for record in found} == {3}
    assert [record.time for record in found] == sorted(record.time for record in found)
    assert list(json.loads(path.read_bytes().splitlines()[0]))[:3] == ["time", "type", "rank"]
    assert offset == path.stat().st_size


def test_the_events_listed_here_are_all_there_are():
    assert {type(event) for event in EVENTS} == set(EVENT_TYPES.values())


def test_the_supervisor_writes_no_rank(path):
    write(path, "a", rank=None)
    assert read_events(path)[0][0].rank is None


def test_what_a_newer_version_adds_is_passed_over(path):
    write(path, "a")
    line = json.loads(path.read_bytes())
    with path.open("a") as file:
        file.write(json.dumps({**line, "type": "progress"}) + "\n")
        file.write(json.dumps({**line, "text": "b", "colour": "red"}) + "\n")
    assert texts(read_events(path)[0]) == ["a", "b"]


@pytest.mark.parametrize("optional", ["loss", "smooth_loss", "grad_norm", "data_seconds", "device", "memory_bytes"])
def test_a_figure_that_nobody_measured_may_be_missing(optional):
    line = json.loads(encode(EventRecord(1.0, 0, STEP)))
    del line[optional]
    default = {"data_seconds": 0.0, "device": ""}.get(optional)
    assert decode(json.dumps(line).encode()).event == replace(STEP, **{optional: default})


@pytest.mark.parametrize(
    "damage",
    [
        {"time": None},
        {"time": 1e300},
        {"rank": {}},
        {"step": "x"},
        {"step": 10**30},
        {"step": float("inf")},
        {"loss": "many"},
        {"device": 5},
        {"seconds": None},
    ],
)
def test_a_line_with_a_value_of_another_kind_is_no_event(damage):
    line = json.loads(encode(EventRecord(1.0, 0, STEP)))
    assert decode(json.dumps(line).encode()) is not None
    assert decode(json.dumps(line | damage).encode()) is None


def test_numbers_that_are_not_finite_become_null(path):
    with EventWriter(path, 0) as writer:
        writer.write(replace(STEP, loss=float("nan"), smooth_loss=np.float32("nan"), grad_norm=float("inf")))
    assert b"NaN" not in path.read_bytes()
    step = read_events(path)[0][0].event
    assert (step.loss, step.smooth_loss, step.grad_norm) == (None, None, None)


def test_numbers_of_numpy_and_paths_are_plain(path):
    with EventWriter(path, 0) as writer:
        writer.write(SampleEvent(Path("a"), "b", np.int64(7)))
        writer.write(replace(STEP, loss=np.float32(0.5)))
    sample, step = (record.event for record in read_events(path)[0])
    assert (sample.path, sample.step, step.loss) == ("a", 7, 0.5)


def test_collections_are_plain_down_to_their_values():
    assert to_plain({"x": (1, None, float("inf")), 2: [Path("a"), True]}) == {"x": [1, None, None], "2": ["a", True]}


def test_other_data_is_refused_where_it_is_written(path):
    with EventWriter(path, 0) as writer, pytest.raises(TypeError, match="object is not plain data"):
        writer.write(StatusEvent(object()))


def test_a_step_line_above_one_kilobyte_is_refused(path):
    with EventWriter(path, 0) as writer:
        writer.write(replace(STEP, device="x" * 600))
        with pytest.raises(ValueError, match="at most 1024"):
            writer.write(replace(STEP, device="x" * 1024))


@pytest.mark.parametrize("char", ["x", "ü", "狐", "\U0001f98a"])
def test_long_texts_are_cut_between_two_characters(path, char):
    fits = char * (events.MAX_TEXT_BYTES // len(char.encode()))
    write(path, fits, fits + char)
    whole, cut = texts(read_events(path)[0])
    assert whole == fits
    assert cut.endswith("…")
    assert set(cut[:-1]) == {char}
    assert events.MAX_TEXT_BYTES - 4 < len(cut.encode()) <= events.MAX_TEXT_BYTES


@pytest.mark.parametrize("text", ["line\nbreak\r\n", "\u2028\x85", "\udcff.png", "\x00", '"\\', "\x9b2J\u202egnp.é"])
def test_any_text_stays_on_one_line_acts_on_no_terminal_and_comes_back(path, text):
    write(path, text, "next")
    lines = path.read_text(encoding="utf-8").split("\n")
    assert len(lines) == 3
    assert list(map(find_hidden, lines)) == [None] * 3
    assert texts(read_events(path)[0]) == [text, "next"]


def test_a_second_writer_continues_the_file(path):
    write(path, "a")
    write(path, "b")
    assert texts(read_events(path)[0]) == ["a", "b"]


def test_a_line_cut_by_a_crash_does_not_swallow_the_next(path):
    write(path, "a", "b")
    path.write_bytes(path.read_bytes()[:-10])
    write(path, "c")
    assert texts(read_events(path)[0]) == ["a", "c"]


def test_a_closed_writer_refuses_events(path):
    writer = EventWriter(path, 0)
    writer.close()
    writer.close()
    with pytest.raises(ValueError, match="closed"):
        writer.write(StatusEvent("late"))


def test_many_threads_may_write(path):
    with EventWriter(path, 0) as writer:

        def write_many():
            for _ in range(200):
                writer.write(StatusEvent("x" * 50))

        threads = [threading.Thread(target=write_many) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert texts(read_events(path)[0]) == ["x" * 50] * 800


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="a pipe stands in for a disk that does not answer")
def test_writing_returns_while_the_disk_does_not_answer(path):
    os.mkfifo(path)
    writer = EventWriter(path, 0)
    for number in range(100):
        writer.write(StatusEvent(str(number)))  # returns even though the pipe is not read
    with open(path, "rb") as reader:
        closer = threading.Thread(target=writer.close)
        closer.start()
        data = reader.read()
        closer.join()
    assert texts(map(decode, data.splitlines())) == [str(number) for number in range(100)]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs RLIMIT_FSIZE")
def test_after_a_full_disk_every_event_is_there_and_the_warning_came_once(path):
    command = [sys.executable, "-c", ON_A_FULL_DISK, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_SECONDS)
    found, _ = read_events(path)
    assert texts(found[:-1]) == [str(number) for number in range(100)]
    assert found[-1].event == FinishedEvent(100)
    assert done.stderr.count("can't be written") == 1


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_disk_that_stays_full_does_not_keep_the_writer_from_closing(capsys):
    writer = EventWriter("/dev/full", 0)
    writer.write(StatusEvent("a"))
    writer.close()
    assert not writer._thread.is_alive()
    assert "1 event was not written" in capsys.readouterr().err


def test_a_folder_that_comes_late_loses_no_event(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(events, "_RETRY_SECONDS", 0.01)
    path = tmp_path / "late" / "rank-0.jsonl"
    with EventWriter(path, 0) as writer:
        writer.write(StatusEvent("a"))
        wait_for_warning(writer)
        path.parent.mkdir()
        writer.write(StatusEvent("b"))
    assert texts(read_events(path)[0]) == ["a", "b"]
    assert "can't be written" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("written", "left"),
    [(0, "abc"), (1, "abc"), (2, "bc"), (3, "bc"), (4, "bc"), (5, "c"), (6, "c"), (8, "c"), (9, ""), (10, "")],
)
def test_lines_that_were_not_wholly_written_are_written_again(written, left):
    lines = [b"aa\n", b"bb\n", b"ccc\n"]
    again = events._lines_after(lines, written)
    assert "".join(chr(line[0]) for line in again) == left


def test_reading_goes_on_from_the_offset(path):
    write(path, "a", "b")
    _, offset = read_events(path)
    assert read_events(path, offset) == ([], offset)
    write(path, "c")
    found, _ = read_events(path, offset)
    assert texts(found) == ["c"]


def test_a_line_still_being_written_is_left_for_the_next_read(path):
    write(path, "a", "b")
    data = path.read_bytes()
    path.write_bytes(data[:-5])
    found, offset = read_events(path)
    assert texts(found) == ["a"]
    path.write_bytes(data)
    assert texts(read_events(path, offset)[0]) == ["b"]


@pytest.mark.parametrize("garbage", [b"", b"{", b"[]", b"1", b"{}", b'{"type": 3}', b"\xff\xfe\x00", b"[" * 100_000])
def test_lines_that_are_no_events_are_passed_over(path, garbage):
    write(path, "a")
    with open(path, "ab") as file:
        file.write(garbage + b"\n")
    write(path, "b")
    assert texts(read_events(path)[0]) == ["a", "b"]


def test_a_missing_file_has_no_events(path):
    assert read_events(path, 100) == ([], 0)


def test_a_file_that_became_shorter_is_read_from_its_start(path):
    write(path, "a", "b")
    _, offset = read_events(path)
    path.unlink()
    write(path, "c")
    assert texts(read_events(path, offset)[0]) == ["c"]


def test_a_long_file_can_be_read_in_pieces(path):
    write(path, *"abcdefgh")
    found, offset = [], 0
    while offset < path.stat().st_size:
        piece, offset = read_events(path, offset, max_bytes=200)
        assert len(piece) < 8
        found += piece
    assert texts(found) == list("abcdefgh")


def test_of_many_steps_the_last_alone_can_be_asked_for_and_nothing_else_is_left_out(path):
    with EventWriter(path, rank=1) as writer:
        for step in range(5):
            writer.write(replace(STEP, step=step))
            writer.write(WarningEvent(f'no {step} has "type": "step"'))
    records, offset = read_events(path, only_last_step=True)
    assert [record.event.step for record in records if record.event.type == "step"] == [4]
    assert len([record for record in records if record.event.type == "warning"]) == 5
    assert offset == path.stat().st_size


def test_a_damaged_stretch_does_not_stop_reading_in_pieces(path):
    path.write_bytes(bytes(1000))
    write(path, "a")
    found, offset = [], 0
    while offset < path.stat().st_size:
        piece, offset = read_events(path, offset, max_bytes=300)
        found += piece
    assert texts(found) == ["a"]


def test_a_type_that_is_declared_is_written_read_and_told_without_any_other_list(path):
    @dataclass(frozen=True)
    class PausedEvent(Event):
        type: ClassVar[str] = "paused"
        seconds: float | None
        where: str | Path = ""

        def tell(self, listener):
            listener.on_paused(self.seconds)

    try:
        with EventWriter(path, rank=0) as writer:
            writer.write(PausedEvent(2.5))
        [record], _ = read_events(path)
        told = []
        CallbackList([SimpleNamespace(on_paused=told.append)]).on_event(record.event)
    finally:
        del EVENT_TYPES["paused"]
    assert (record.event, told) == (PausedEvent(2.5), [2.5])
