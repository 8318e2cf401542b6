import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from modules.config.visible_text import find_hidden
from modules.session import events
from modules.session.events import EVENT_TYPES, EventWriter, read_events

ON_A_FULL_DISK = """
import resource, sys, time
from modules.session import events
events._RETRY_SECONDS = 0.02
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
writer = events.EventWriter(sys.argv[1], 0)
for number in range(100):
    writer.emit("status", text=str(number))
while not writer._has_warned:
    time.sleep(0.01)
time.sleep(0.1)
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
writer.emit("finished", step=100)
writer.close()
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "rank-0.jsonl"


def write(path, *texts, rank=0):
    with EventWriter(path, rank) as writer:
        for text in texts:
            writer.emit("status", text=text)


def wait_for_warning(writer):
    deadline = time.monotonic() + 60
    while not writer._has_warned:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def texts(found):
    return [event["text"] for event in found]


def test_events_come_back_in_order_with_time_type_and_rank(path):
    with EventWriter(path, rank=3) as writer:
        for event_type in EVENT_TYPES:
            writer.emit(event_type, number=1)
    found, offset = read_events(path)
    assert [event["type"] for event in found] == list(EVENT_TYPES)
    assert all(event["rank"] == 3 and event["number"] == 1 for event in found)
    assert [event["time"] for event in found] == sorted(event["time"] for event in found)
    assert list(found[0])[:3] == ["time", "type", "rank"]
    assert offset == path.stat().st_size


def test_the_supervisor_writes_no_rank(path):
    with EventWriter(path, rank=None) as writer:
        writer.emit("status", text="a")
    assert read_events(path)[0][0]["rank"] is None


def test_an_unknown_type_is_refused(path):
    with EventWriter(path, 0) as writer, pytest.raises(ValueError, match="'progress'"):
        writer.emit("progress")


@pytest.mark.parametrize("field", ["time", "rank"])
def test_a_field_can_not_replace_one_of_the_writer(path, field):
    with EventWriter(path, 0) as writer, pytest.raises(ValueError, match=field):
        writer.emit("status", **{field: 1})


def test_numbers_that_are_not_finite_become_null(path):
    with EventWriter(path, 0) as writer:
        writer.emit("step", loss=float("nan"), lr=float("inf"), more=[-float("inf"), np.float32("nan")])
    assert b"NaN" not in path.read_bytes()
    event = read_events(path)[0][0]
    assert (event["loss"], event["lr"], event["more"]) == (None, None, [None, None])


def test_numbers_of_numpy_and_paths_are_plain(path):
    with EventWriter(path, 0) as writer:
        writer.emit("step", loss=np.float32(0.5), step=np.int64(7), path=Path("a"), flag=True, table={"x": (1, None)})
    event = read_events(path)[0][0]
    assert (event["loss"], event["step"], event["path"], event["flag"]) == (0.5, 7, "a", True)
    assert event["table"] == {"x": [1, None]}


def test_other_data_is_refused_where_it_is_emitted(path):
    with EventWriter(path, 0) as writer, pytest.raises(TypeError, match="object is not plain data"):
        writer.emit("status", text=object())


def test_a_step_line_above_one_kilobyte_is_refused(path):
    with EventWriter(path, 0) as writer:
        writer.emit("step", text="x" * 900)
        with pytest.raises(ValueError, match="at most 1024"):
            writer.emit("step", text="x" * 1024)


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
        writer.emit("status", text="late")


def test_many_threads_may_emit(path):
    with EventWriter(path, 0) as writer:

        def emit_many():
            for _ in range(200):
                writer.emit("status", text="x" * 50)

        threads = [threading.Thread(target=emit_many) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert texts(read_events(path)[0]) == ["x" * 50] * 800


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="a pipe stands in for a disk that does not answer")
def test_emit_returns_while_the_disk_does_not_answer(path):
    os.mkfifo(path)
    writer = EventWriter(path, 0)
    for number in range(100):
        writer.emit("status", text=str(number))  # returns although nobody reads the pipe
    with open(path, "rb") as reader:
        closer = threading.Thread(target=writer.close)
        closer.start()
        data = reader.read()
        closer.join()
    assert texts([json.loads(line) for line in data.splitlines()]) == [str(number) for number in range(100)]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs RLIMIT_FSIZE")
def test_after_a_full_disk_every_event_is_there_and_the_warning_came_once(path):
    command = [sys.executable, "-c", ON_A_FULL_DISK, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    found, _ = read_events(path)
    assert texts(found[:-1]) == [str(number) for number in range(100)]
    assert found[-1]["type"] == "finished"
    assert done.stderr.count("can't be written") == 1


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_disk_that_stays_full_does_not_keep_the_writer_from_closing(capsys):
    writer = EventWriter("/dev/full", 0)
    writer.emit("status", text="a")
    writer.close()
    assert not writer._thread.is_alive()
    assert "1 events were not written" in capsys.readouterr().err


def test_a_folder_that_comes_late_loses_no_event(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(events, "_RETRY_SECONDS", 0.01)
    path = tmp_path / "late" / "rank-0.jsonl"
    with EventWriter(path, 0) as writer:
        writer.emit("status", text="a")
        wait_for_warning(writer)
        path.parent.mkdir()
        writer.emit("status", text="b")
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
            writer.emit("step", step=step)
            writer.emit("warning", text=f'no {step} has "type": "step"')
    events, offset = read_events(path, only_last_step=True)
    assert [event["step"] for event in events if event["type"] == "step"] == [4]
    assert len([event for event in events if event["type"] == "warning"]) == 5
    assert offset == path.stat().st_size


def test_a_damaged_stretch_does_not_stop_reading_in_pieces(path):
    path.write_bytes(bytes(1000))
    write(path, "a")
    found, offset = [], 0
    while offset < path.stat().st_size:
        piece, offset = read_events(path, offset, max_bytes=300)
        found += piece
    assert texts(found) == ["a"]
