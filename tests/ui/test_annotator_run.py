"""Captioners as the dataset window runs them: the real script with a server, and one that is told what to report."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from modules.config.ConceptConfig import ConceptConfig
from modules.config.errors import UserError
from modules.curation.Journal import Journal
from modules.ui.models import AnnotatorRun as annotator_run
from modules.ui.models.annotator_choices import parts_of
from modules.ui.models.AnnotatorRun import AnnotatorRun, Part, Progress, in_words_of_the_window, spoken_time
from modules.ui.models.CaptionerChoices import CaptionerChoices
from modules.ui.models.DatasetView import DatasetItem
from modules.ui.models.Preferences import Preferences
from tests.support.caption_script import use_caption_script
from tests.support.chat_server import ChatServerStandIn
from tests.support.pictures import captions_in, write_pictures
from tests.support.waiting import in_thread, wait_until

KEY = "a-key-that-nobody-may-read"


@pytest.fixture
def server():
    stand_in = ChatServerStandIn()
    with stand_in.running():
        yield stand_in


@pytest.fixture
def images(tmp_path, monkeypatch) -> Path:
    """Five images without a caption, and one that has one."""
    use_caption_script(tmp_path, monkeypatch)
    return write_pictures(tmp_path / "images", [(64, 64)] * 6, captions=["", "", "", "", "", "my own"])


def choices_for(server: ChatServerStandIn) -> CaptionerChoices:
    return CaptionerChoices(on_server=True, address=server.address, server_model="tiny-vl")


def test_a_run_captions_what_has_no_caption_and_one_undo_takes_all_back(server, images):
    choices = choices_for(server)
    run = choices.start([Part(ConceptConfig(path=str(images)))], key=KEY)

    progress = run.run()

    assert (progress.number, progress.chosen, progress.kept, progress.share) == (5, 5, 1, 1.0)
    results = run.take_results()
    assert run.take_results() == []
    assert [one.text for one in results] + ["my own"] == captions_in(images)
    assert all(one.is_written for one in results)
    assert set(server.keys) == {f"Bearer {KEY}"}
    assert KEY not in json.dumps([run._options, choices.to_values()])
    journal = Journal(images)
    assert journal.next_undo_label == choices.label
    journal.undo()
    assert captions_in(images) == ["my own"]
    assert not journal.can_undo


def test_a_run_that_does_not_end_when_asked_is_ended_and_the_next_goes_on(server, images, monkeypatch):
    monkeypatch.setattr(annotator_run, "END_SECONDS", 0.2)
    server.limit = 2  # the third answer does not come
    parts = [Part(ConceptConfig(path=str(images)))]
    run = choices_for(server).start(parts)
    with in_thread(run.run):
        wait_until(lambda: len(server.requests) == 3)
        run.cancel()
    assert len(run.take_results()) == 2
    assert (
        run.progress.summary(True, False) == "2 images done. 1 image keeps its caption. Canceled; start again to go on."
    )
    first_two = captions_in(images)
    assert len(first_two) == 3
    server.limit = 1000
    server.released.set()

    again = choices_for(server).start(parts)

    assert again.run().written == 3
    assert {*first_two} < {*captions_in(images)}
    journal = Journal(images)
    journal.undo()
    assert captions_in(images) == first_two
    journal.undo()
    assert captions_in(images) == ["my own"]


def test_a_preview_of_chosen_images_writes_nothing(server, images):
    paths = sorted(map(str, images.glob("*.png")))
    run = choices_for(server).start([Part(ConceptConfig(path=str(images)), tuple(paths[3:5]))], preview=True)
    run.run()
    results = run.take_results()
    assert [one.path for one in results] == paths[3:5]
    assert all(one.text and not one.is_written for one in results)
    assert captions_in(images) == ["my own"]


def test_the_error_of_a_script_names_the_field_of_the_window(server, images):
    server.answers = [(401, {}, {"error": "wrong key"})]
    run = choices_for(server).start([Part(ConceptConfig(path=str(images)))], key=KEY)
    with pytest.raises(UserError, match=r"^Address http.*: it refuses the key \(wrong key\); type it under Key\.$"):
        run.run()


@pytest.fixture
def told(tmp_path, monkeypatch):
    """A function that makes a run of a script that reports these events."""

    def make(events: list[dict], parts: int = 1, **options) -> AnnotatorRun:
        (tmp_path / "scripts").mkdir(exist_ok=True)
        code = f"import sys\nfor line in {list(map(json.dumps, events))!r}:\n    print(line, flush=True)\n"
        (tmp_path / "scripts" / "told.py").write_text(code + "sys.exit(0)\n", encoding="utf-8")
        monkeypatch.setattr(annotator_run, "SCRIPTS", tmp_path / "scripts")
        concepts = [Part(ConceptConfig(path=str(tmp_path / "images"))) for _ in range(parts)]
        return AnnotatorRun("told.py", "caption", concepts, [], **options)

    return make


PLAN = {"event": "plan", "chosen": 4, "done_before": 2, "resumed": 1, "sent_to": "", "model": "m", "images": 7}


def captions(numbers: range) -> list[dict]:
    return [
        {"event": "caption", "path": f"{number}.png", "text": "a cat", "number": number, "of": 4, "written": True}
        for number in numbers
    ]


def test_the_time_left_follows_the_images_and_not_the_loading_of_the_model(told):
    seconds = iter([1000.0, 1003.0, 1005.0])
    run = told([PLAN, {"event": "loading"}, *captions(range(1, 4)), {"event": "end"}], clock=lambda: next(seconds))
    progress = run.run()
    assert progress.seconds_left == 2.5
    assert progress.describe() == "3 of 4; 2 s left"


def test_several_concepts_share_the_bar_and_are_counted_together(told):
    skipped = {"event": "skipped", "path": "bad.png", "reason": "it is empty"}
    failed = {"event": "failed", "path": "4.png", "reason": "no text", "number": 4, "of": 4}
    run = told([PLAN, skipped, *captions(range(1, 4)), failed, {"event": "end"}], parts=2)
    progress = run.run()
    assert (progress.written, progress.failed, progress.kept, progress.resumed, progress.share) == (6, 2, 4, 2, 1.0)
    assert progress.summary(False, False) == (
        "6 images done, 2 failed. 4 images keep their captions. 2 were done before the last run was interrupted. "
        "2 images left out, bad.png: it is empty."
    )


def test_a_script_that_ends_before_its_work_is_an_error(told):
    with pytest.raises(UserError, match=r"^told\.py ended with exit code 0\.$"):
        told([PLAN, *captions(range(1, 2))]).run()


def test_what_is_done_before_the_first_image_is_said(told):
    downloading = {"event": "downloading", "done": 2**30, "total": 2**32}
    assert "Downloading the model: 1" in told([PLAN, downloading, {"event": "end"}]).run().describe()
    assert told([PLAN, {"event": "loading"}, {"event": "end"}]).run().describe() == "Loading the model…"
    sending = PLAN | {"sent_to": "The images are sent to …"}
    assert told([sending, {"event": "loading"}, {"event": "end"}]).run().describe() == "Waiting for the server…"
    assert Progress(kept=3).summary(False, False) == "Nothing to do: 3 images have captions already."
    assert Progress(makes="mask", kept=1).summary(False, False) == "Nothing to do: 1 image has a mask already."


def test_a_model_that_limits_captions_is_said_to(told):
    limited = {"event": "limited", "tokens": 57, "wanted": 300}
    progress = told([PLAN, limited, *captions(range(1, 5)), {"event": "end"}]).run()
    assert "The model has positions for 57 tokens: no caption is longer." in progress.summary(False, False)


@pytest.mark.parametrize(("seconds", "text"), [(0.2, "1 s"), (89, "89 s"), (95, "2 min"), (7500, "2 h 5 min")])
def test_times_are_said_as_people_do(seconds, text):
    assert spoken_time(seconds) == text


def test_options_keep_their_names_inside_of_other_words():
    assert in_words_of_the_window("--model 'a--model': check --model.") == "Model 'a--model': check Model."


@pytest.mark.parametrize(
    ("choices", "options"),
    [
        ({"model": "-m", "style": "tags"}, ["--model=-m", "--style=tags"]),
        ({"model": "m", "style": "subject", "name": " ohwx "}, ["--style=subject", "--name=ohwx"]),
        ({"model": "m", "style": "prompt", "prompt": "- say it", "name": "ohwx"}, ["--prompt=- say it"]),
        ({"model": "m", "videos": True, "general": "0.5"}, ["--videos", "--general-threshold=0.5"]),
    ],
)
def test_choices_become_options(choices, options):
    made = CaptionerChoices(**choices)
    made.check()
    assert {*options} <= {*made.options()}
    assert ("--name=ohwx" in made.options()) == (made.style == "subject")
    assert "--overwrite" not in made.options(restarts=True)
    assert {"--overwrite", "--restart"} <= {*made.options(replaces=True, restarts=True)}


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({}, "Model: is empty"),
        ({"on_server": True}, "Address: is empty"),
        ({"on_server": True, "address": "ftp://a"}, "Address 'ftp://a': is no address"),
        (
            {"on_server": True, "address": "http://me:secret@a"},
            "Address: keep passwords out of the address; type a key",
        ),
        ({"model": "m", "style": "subject"}, "Name: is empty"),
        ({"model": "m", "style": "prompt", "name": "x"}, "Prompt: is empty"),
        ({"model": "m", "general": "1.5"}, "Tags from '1.5': is not a number from 0 to 1"),
        ({"model": "m", "character": "nan"}, "Characters from 'nan': is not a number"),
        ({"model": "m", "batch_size": "0"}, "Images at a time '0': is not a whole number from 1"),
    ],
)
def test_what_can_not_start_is_said_in_a_sentence(choices, message):
    with pytest.raises(UserError) as caught:
        CaptionerChoices(**choices).check()
    assert str(caught.value).startswith(message)


def test_where_images_go_is_said_before_they_are_sent():
    far = CaptionerChoices(on_server=True, address="http://10.0.0.7:8000")
    assert "sent to http://10.0.0.7:8000/v1, another machine, and nowhere else." in far.note(True)
    assert "can read the key and the images" in far.note(True)
    assert CaptionerChoices(model="m").note(False) == ""


def test_choices_are_kept_by_the_preferences_without_what_is_not_valid(tmp_path):
    path = tmp_path / "window.json"
    kept = Preferences(path=path)
    choices = CaptionerChoices(model="m", style="short", videos=True)
    kept.captioner = choices.to_values()
    kept.pending_save()()
    assert CaptionerChoices.of_values(Preferences.load(path).captioner) == choices
    assert CaptionerChoices.of_values({"style": "loud", "model": 7, "gone": 1}) == CaptionerChoices()


def test_chosen_images_go_to_their_concepts_and_clips_only_if_wanted(tmp_path):
    concepts = {0: ConceptConfig(path="a"), 2: ConceptConfig(path="b")}
    items = [DatasetItem("b/1.png", 2, "1.png"), DatasetItem("a/1.mp4", 0, "1.mp4"), DatasetItem("b/2.png", 2, "2.png")]
    chosen = tuple(map(os.path.abspath, ("b/1.png", "b/2.png")))
    assert parts_of(items, concepts.get, True, False, "") == [Part(concepts[2], chosen)]
    assert parts_of(items, concepts.get, False, True, "") == [Part(concepts[0]), Part(concepts[2])]
    with pytest.raises(UserError, match="only clips"):
        parts_of(items[1:2], concepts.get, True, False, "only clips")
