"""Masks of a folder: what is written where, that training reads it, and that undo takes all of it back."""

from __future__ import annotations

import io
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from modules.annotators.mask_writing import MaskWriter
from modules.config.ConceptConfig import ConceptConfig
from modules.curation.Journal import Journal
from modules.data.concepts import scan
from modules.data.masks import find_masks
from scripts import mask
from tests.support.onnx_file import write_brightness


@pytest.fixture
def run_mask(monkeypatch) -> Callable[..., tuple[int, list[dict[str, Any]]]]:
    """Runs scripts/mask.py: (exit code, events)."""

    def run(*arguments: Any) -> tuple[int, list[dict[str, Any]]]:
        events: list[dict[str, Any]] = []
        monkeypatch.setattr(mask, "show", lambda line: events.append(json.loads(line)))
        return mask.main([*map(str, arguments), "--json"]), events

    return run


@pytest.fixture
def images(tmp_path) -> Path:
    """Two images with a transparent left half, the first of them turned by its tag, and one without transparency."""
    folder = tmp_path / "images"
    (folder / "sub").mkdir(parents=True)
    picture = Image.new("RGBA", (40, 20), (255, 0, 0, 255))
    picture.paste((0, 0, 0, 0), (0, 0, 20, 20))
    exif = Image.Exif()
    exif[0x0112] = 6  # stored sideways
    picture.save(folder / "a.png", exif=exif)
    picture.save(folder / "sub" / "b.png")
    Image.new("RGB", (40, 20)).save(folder / "c.png")
    return folder


def masks_read(concept: ConceptConfig) -> dict[str, str | None]:
    """Name of each image -> the mask that training reads, below the concept's folder."""
    dataset = scan([concept])
    return {
        Path(path).name: found and Path(found).name
        for path, found in zip(dataset.paths, find_masks(dataset), strict=True)
    }


def test_alpha_becomes_masks_that_training_reads_and_undo_removes_all_of_them(images, run_mask):
    before = {path: path.read_bytes() for path in images.rglob("*.png")}

    code, events = run_mask(images, "--alpha")

    assert code == 1
    (failed,) = (event for event in events if event["event"] == "failed")
    assert (Path(failed["path"]).name, failed["reason"]) == ("c.png", "it has no alpha channel")
    concept = ConceptConfig(path=str(images))
    assert masks_read(concept) == {"a.png": "a-masklabel.png", "b.png": "b-masklabel.png", "c.png": None}
    upright = np.asarray(Image.open(images / "a-masklabel.png"))
    assert upright.shape == (40, 20)
    assert upright[:20].max() == 0
    assert upright[20:].min() == 255
    assert [event["share"] for event in events if event["event"] == "mask"] == [0.5, 0.5]
    assert all(path.read_bytes() == content for path, content in before.items())

    journal = Journal(images)
    assert journal.next_undo_label == "Masks: transparency"
    journal.undo()
    assert {path: path.read_bytes() for path in images.rglob("*.png")} == before
    assert not journal.can_undo


def test_a_mask_that_is_there_stays_unless_it_is_to_be_overwritten(images, run_mask):
    Image.new("L", (40, 20), 7).save(images / "sub" / "b_mask.jpg")
    _, events = run_mask(images, "--alpha")
    assert events[0]["done_before"] == 1
    assert [Path(event["path"]).name for event in events if event["event"] == "mask"] == ["a.png"]

    run_mask(images, "--alpha", "--overwrite", "--invert")

    assert not (images / "sub" / "b_mask.jpg").exists()
    assert np.asarray(Image.open(images / "sub" / "b-masklabel.png"))[:, :20].min() == 255


def test_masks_go_into_the_mask_folder_of_a_concept(images, run_mask, tmp_path):
    masks = tmp_path / "masks"
    masks.mkdir()
    config = tmp_path / "config.yaml"
    config.write_text(f"concepts: [{{path: {images}, mask_folder: {masks}}}]\n", encoding="utf-8")

    run_mask("--config", config, "--alpha")

    assert sorted(path.relative_to(masks).as_posix() for path in masks.rglob("*.png")) == ["a.png", "sub/b.png"]
    concept = ConceptConfig(path=str(images), mask_folder=str(masks))
    assert masks_read(concept) == {"a.png": "a.png", "b.png": "b.png", "c.png": None}
    assert run_mask("--config", config, "--alpha")[1][0]["done_before"] == 2


def test_overwriting_masks_goes_on_where_it_was_canceled_and_begins_again_when_asked_to(images, run_mask, monkeypatch):
    opaque = images / "c.png"
    Image.new("RGBA", (40, 20), (0, 0, 255, 255)).save(opaque)
    command = (images, "--alpha", "--overwrite")
    write = MaskWriter.__call__

    def canceled_after_one(*arguments) -> tuple[int, list]:
        def cancel(writer, path, made) -> None:
            write(writer, path, made)
            signal.raise_signal(signal.SIGTERM)  # as Cancel does

        with monkeypatch.context() as patch:
            patch.setattr(MaskWriter, "__call__", cancel)
            return run_mask(*arguments)

    def masked(events: list) -> list[str]:
        return [Path(event["path"]).name for event in events if event["event"] == "mask"]

    code, events = canceled_after_one(*command)
    assert (code, masked(events)) == (130, ["a.png"])
    assert run_mask(*command, "--invert", "--preview", 1)[1][0]["resumed"] == 0
    assert masked(run_mask(*command, "--grow", 2)[1]) == ["a.png", "c.png", "b.png"]  # other edges are other work
    _, events = canceled_after_one(*command)
    assert (events[0]["resumed"], masked(events)) == (1, ["c.png"])
    assert masked(run_mask(*command)[1]) == ["b.png"]
    assert len(masked(run_mask(*command)[1])) == 3  # the run before was complete

    canceled_after_one(*command)
    assert len(masked(run_mask(*command, "--restart")[1])) == 3


def test_a_preview_writes_nothing(images, run_mask):
    code, events = run_mask(images, "--alpha", "--preview", 1)
    assert [event["event"] for event in events] == ["plan", "mask", "end"]
    assert not [*images.rglob("*-masklabel.png")]
    assert code == 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "Name a model with --model, or say --alpha; one of the two."),
        (("--alpha", "--model", "m"), "Name a model with --model, or say --alpha; one of the two."),
        (("--alpha", "--grow", "900"), "grow and feather are at most 512 pixels."),
        (("--alpha", "--restart"), "--restart needs --overwrite"),
        (("--model", "no such.onnx"), "--model 'no such.onnx': there is no such file."),
    ],
)
def test_options_that_do_not_fit_are_refused(arguments, told, images, run_mask, capsys):
    assert run_mask(images, *arguments)[0] == 2
    assert told in capsys.readouterr().err


def test_a_service_answers_one_request_after_another_and_writes_nothing_into_the_dataset(images, tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime", reason="the optional package for ONNX files is not installed")
    model = write_brightness(tmp_path / "u2net.onnx", side=16)
    requests = [
        {"image": str(images / "a.png"), "id": 1},
        {"image": str(images / "a.png"), "id": 2, "invert": True},
        {"image": str(images / "gone.png"), "id": 3},
        {"image": str(images / "c.png"), "grow": "far"},
        {"prompt": "no image"},
    ]
    answers: list[dict[str, Any]] = []
    pixels: list[np.ndarray] = []

    def show(line: str) -> None:
        answers.append(json.loads(line))
        if answers[-1]["event"] == "mask":
            pixels.append(np.asarray(Image.open(answers[-1]["mask"])))

    monkeypatch.setattr(mask, "show", show)
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(json.dumps(one) + "\n" for one in requests)))
    before = sorted(images.rglob("*"))

    assert mask.main(["--model", str(model), "--serve", "--cpu"]) == 0

    assert [answer["event"] for answer in answers] == ["ready", "loading", "mask", "mask", "failed", "failed", "failed"]
    assert [answer.get("id") for answer in answers[2:5]] == [1, 2, 3]
    assert pixels[0].shape == (40, 20)
    assert np.array_equal(pixels[1], 255 - pixels[0])
    assert "can't be used (No such file or directory)" in answers[4]["reason"]
    assert sorted(images.rglob("*")) == before
