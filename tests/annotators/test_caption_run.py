"""Which images are captioned, what becomes of others, and of runs that were interrupted."""

from __future__ import annotations

import json

import pytest

from modules.annotators.annotation_run import Steps, annotate_all, spread
from modules.annotators.answers import as_caption
from modules.annotators.Captioner import Failure
from modules.annotators.chat_client import ChatServer
from modules.annotators.DoneRecord import DoneRecord
from modules.annotators.reports import TextReport
from modules.config.errors import UserError
from modules.curation.Journal import Journal
from modules.data.errors import ImageError
from tests.annotators.conftest import captioned, texts_in
from tests.support.chat_server import ChatServerStandIn, sent_images, sent_text
from tests.support.videos import write_video


@pytest.fixture
def server():
    with ChatServerStandIn().running() as stand_in:
        yield stand_in


def test_only_images_without_a_caption_get_one_unless_all_are_asked_for(server, uncaptioned, run_captioner):
    images = uncaptioned(3)
    (images / "001.txt").write_text("mine\n", encoding="utf-8")
    (images / "002.txt").write_text(" \n", encoding="utf-8")  # counts as none, as for the training

    code, events = run_captioner(images, "--server", server.address)

    assert code == 0
    assert captioned(events) == ["000.png", "002.png"]
    assert events[0]["done_before"] == 1
    assert texts_in(images)["001.txt"] == "mine"
    assert captioned(run_captioner(images, "--server", server.address, "--overwrite")[1]) == [
        *("000.png", "001.png", "002.png")
    ]
    assert captioned(run_captioner(images, "--server", server.address)[1]) == []


def test_captions_of_tables_are_written_into_them_and_undo_takes_all_back(server, uncaptioned, run_captioner, tmp_path):
    images = uncaptioned(3)
    table = images / "metadata.csv"
    table.write_bytes(b"file_name;text;rating\r\n000.png;;3\r\n001.png;mine;4\r\n002.png;;5\r\n")
    before = table.read_bytes()
    config = tmp_path / "config.yaml"
    config.write_text(f"concepts: [{{path: {images}, captions: table}}]\n", encoding="utf-8")

    code, events = run_captioner("--config", config, "--server", server.address, "--batch-size", 2)

    assert code == 0
    assert captioned(events) == ["000.png", "002.png"]
    rows = [line.split(";") for line in table.read_bytes().decode().split("\r\n")[1:4]]
    assert [row[0::2] for row in rows] == [["000.png", "3"], ["001.png", "4"], ["002.png", "5"]]
    assert rows[1][1] == "mine"
    assert all("an image of" in row[1] for row in (rows[0], rows[2]))
    journal = Journal(images)
    assert journal.next_undo_label == f"Captions: {server.address}"
    journal.undo()
    assert table.read_bytes() == before


def test_a_caption_that_somebody_writes_meanwhile_stays(server, uncaptioned, run_captioner, monkeypatch):
    images = uncaptioned(2)
    complete = ChatServer.complete

    def slow(self, request):
        (images / "000.txt").write_text("mine", encoding="utf-8")
        return complete(self, request)

    monkeypatch.setattr(ChatServer, "complete", slow)
    code, events = run_captioner(images, "--server", server.address)
    assert code == 1
    (failed,) = (event for event in events if event["event"] == "failed")
    assert failed["reason"] == "its file was changed by another program meanwhile"
    assert texts_in(images)["000.txt"] == "mine"
    assert len(texts_in(images)) == 2


def test_a_preview_is_spread_over_the_images_and_writes_nothing(server, uncaptioned, run_captioner):
    images = uncaptioned(9)
    code, events = run_captioner(images, "--server", server.address, "--preview")
    assert code == 0
    assert captioned(events) == ["000.png", "003.png", "006.png"]
    assert not texts_in(images)
    assert spread(["a", "b"], 3) == ("a", "b")


def test_overwriting_goes_on_where_it_was_killed_and_begins_again_when_asked_to(server, uncaptioned, run_captioner):
    images = uncaptioned(5)
    for number in range(5):
        (images / f"{number:03d}.txt").write_text("old", encoding="utf-8")
    command = (images, "--server", server.address, "--overwrite")

    assert run_captioner(*command, killed_at=2)[0] == -9
    _, events = run_captioner(*command, killed_at=1)
    assert events[0]["resumed"] == 2
    other = run_captioner(*command, "--style", "short", "--preview")[1]
    assert other[0]["resumed"] == 0  # other instructions are other work
    assert len(captioned(run_captioner(*command, "--restart")[1])) == 5
    assert run_captioner(*command, killed_at=1)[1][0]["resumed"] == 0  # the run before was complete


def test_chosen_images_are_captioned_again_though_a_killed_run_for_all_has_done_them(
    server, uncaptioned, run_captioner, tmp_path
):
    images = uncaptioned(4)
    command = (images, "--server", server.address, "--overwrite")
    assert run_captioner(*command, killed_at=2)[0] == -9
    chosen = tmp_path / "chosen.json"
    chosen.write_text(json.dumps([str(images / "000.png")]), encoding="utf-8")
    assert captioned(run_captioner(*command, "--only", chosen)[1]) == ["000.png"]
    assert run_captioner(*command)[1][0]["resumed"] == 2


def test_a_record_that_was_cut_off_in_a_line_is_read_up_to_it(tmp_path):
    record = DoneRecord(tmp_path, ["work"])
    record.add("a")
    record.add("b\udcff")
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-3])
    again = DoneRecord(tmp_path, ["work"])
    assert again.done == {"a"}
    again.add("c")
    assert DoneRecord(tmp_path, ["work"]).done == {"a", "c"}


def test_chosen_images_only(server, uncaptioned, run_captioner, tmp_path, capsys):
    images = uncaptioned(3)
    chosen = tmp_path / "chosen.json"
    chosen.write_text(json.dumps([str(images / "001.png")]), encoding="utf-8")
    assert captioned(run_captioner(images, "--server", server.address, "--only", chosen)[1]) == ["001.png"]
    chosen.write_text(json.dumps(["elsewhere.png"]), encoding="utf-8")
    assert run_captioner(images, "--server", server.address, "--only", chosen)[0] == 2
    assert "--only: names none of the 3 images" in capsys.readouterr().err


def test_a_broken_image_is_named_and_the_rest_is_captioned(server, uncaptioned, run_captioner):
    images = uncaptioned(3)
    content = (images / "001.png").read_bytes()
    (images / "001.png").write_bytes(content[: len(content) // 2])
    (images / "002.png").write_bytes(b"no image")

    code, events = run_captioner(images, "--server", server.address)

    assert code == 1
    assert [event["event"] for event in events] == ["skipped", "plan", "loading", "caption", "failed", "end"]
    assert [*texts_in(images)] == ["000.txt"]


def test_clips_are_captioned_from_several_frames_when_asked_to(server, uncaptioned, run_captioner):
    images = uncaptioned(1)
    write_video(images / "clip.mp4", count=12)
    assert captioned(run_captioner(images, "--server", server.address)[1]) == ["000.png"]
    assert captioned(run_captioner(images, "--server", server.address, "--videos", "--frames", 3)[1]) == ["clip.mp4"]
    assert len(sent_images(server.requests[-1])) == 3
    assert sent_text(server.requests[-1]).startswith("The images are frames of one video clip, in order.")


def test_of_a_cropped_image_the_trained_part_is_described_and_of_one_left_out_nothing(
    server, uncaptioned, run_captioner
):
    images = uncaptioned(2)
    settings = {"000.png": {"crop": {"x": 8, "y": 0, "width": 40, "height": 64}}, "001.png": {"left_out": True}}
    (images / "image_settings.json").write_text(json.dumps({"version": 1, "images": settings}), encoding="utf-8")
    assert captioned(run_captioner(images, "--server", server.address)[1]) == ["000.png"]
    assert sent_images(server.requests[0])[0].size == (40, 64)


def test_a_failure_that_repeats_ends_the_run_but_broken_images_do_not():
    def load(path: str) -> str:
        if path.startswith("broken"):
            raise ImageError(path, "it is broken")
        return path

    def refuse(items):
        return [Failure("it won't")] * len(items)

    events = []
    steps = Steps(load, refuse, lambda path, result: {}, "caption")
    report = lambda event, **facts: events.append(event)  # noqa: E731
    assert annotate_all([f"broken{n}" for n in range(9)], steps, 2, report, lambda: False) == 9
    with pytest.raises(UserError, match=r"^5 images in a row have failed, the last because it won't"):
        annotate_all([str(n) for n in range(9)], steps, 2, report, lambda: False)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--style", "subject", "--server", "http://localhost"), "--style subject and --name belong together"),
        (("--name", "ohwx", "--server", "http://localhost"), "--style subject and --name belong together"),
        ((), "--model: name a folder or a model on the Hub, or give a --server."),
        (("--server", "http://localhost", "--key-from", "NO_SUCH"), "there is no such environment variable"),
    ],
)
def test_options_that_do_not_fit_are_refused(arguments, told, uncaptioned, run_captioner, capsys):
    assert run_captioner(uncaptioned(1), *arguments)[0] == 2
    assert told in capsys.readouterr().err


def test_a_style_that_a_model_can_not_write_is_refused_with_those_that_can(
    tiny_captioner, uncaptioned, run_captioner, capsys
):
    folder, images = tiny_captioner("florence2"), uncaptioned(1)
    assert run_captioner(images, "--model", folder, "--style", "tags")[0] == 2
    assert "Florence-2 only writes long or short; choose one of these, or one of Qwen3-VL" in capsys.readouterr().err
    assert run_captioner(images, "--model", folder, "--prompt", "what?")[0] == 2
    assert "--prompt: Florence-2 takes no instructions" in capsys.readouterr().err


def test_captions_that_are_not_read_from_files_are_not_written(server, uncaptioned, run_captioner, tmp_path, capsys):
    config = tmp_path / "config.yaml"
    config.write_text(f"concepts: [{{path: {uncaptioned(1)}, captions: file_name}}]\n", encoding="utf-8")
    assert run_captioner("--config", config, "--server", server.address)[0] == 2
    assert "are not read from files (captions: file_name): set it to txt or table first" in capsys.readouterr().err
    assert run_captioner("--config", config, "--concept", 1, "--server", server.address)[0] == 2
    assert "has 1 concepts, counted from 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("answer", "caption"),
    [
        ("<think>Is it a cat?\nYes.</think>\n\nA cat.", "A cat."),
        ('Caption: "A cat, asleep."', "A cat, asleep."),
        ('"A" and "B"', '"A" and "B"'),
        ("A\x00 cat\n on a\tmat ", "A cat on a mat"),
        ("  \n", Failure("the model wrote nothing")),
    ],
)
def test_answers_become_captions_on_one_line(answer, caption):
    assert as_caption(answer) == caption


def test_people_read_sentences():
    lines: list[str] = []
    report = TextReport(lines.append)
    report("plan", images=20, chosen=13, done_before=5, resumed=2, sent_to="", model="a/model")
    report("caption", path="a.png", text="a\ncat", number=1, of=13, written=True)
    report("end", written=1, failed=2, left=10, canceled=True)
    assert lines == [
        "13 images of 20 for a/model, 5 keep what they have, 2 were done before the last run was interrupted.",
        "1 of 13  a.png: a\\ncat",
        "1 file written, 2 failed, 10 left; start again to go on.",
    ]
