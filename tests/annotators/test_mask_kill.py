"""A run of masks in a process of its own that is killed goes on where it was, and leaves what was painted by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from modules.curation.Journal import Journal
from tests.support.mask_script import start_mask_script
from tests.support.onnx_file import write_brightness

NUM_IMAGES = 20
KILLED_AT = 7
BY_HAND = "012"


@pytest.fixture
def images(tmp_path) -> Path:
    """Photos, of which one has a mask that was painted by hand, under another name than those of the script."""
    folder = tmp_path / "images"
    folder.mkdir()
    for number in range(NUM_IMAGES):
        Image.new("RGB", (24, 16), (number * 10, 90, 30)).save(folder / f"{number:03d}.png")
    Image.new("L", (24, 16), 77).save(folder / f"{BY_HAND}_mask.bmp")
    return folder


def masked(folder: Path) -> dict[str, bytes]:
    return {path.name.partition("-")[0]: path.read_bytes() for path in sorted(folder.glob("*-masklabel.png"))}


def test_a_run_killed_at_the_seventh_of_twenty_images_goes_on_at_the_eighth(images, tmp_path):
    pytest.importorskip("onnxruntime", reason="the optional package for ONNX files is not installed")
    model = write_brightness(tmp_path / "u2net.onnx", side=16)
    by_hand = (images / f"{BY_HAND}_mask.bmp").read_bytes()
    wanted = [f"{number:03d}" for number in range(NUM_IMAGES) if f"{number:03d}" != BY_HAND]

    child = start_mask_script(images, "--model", model, "--cpu", stops_after=KILLED_AT)
    heard = [json.loads(child.stdout.readline()) for _ in range(2 + KILLED_AT)]  # the plan, the loading, and masks
    assert [event["event"] for event in heard[-KILLED_AT:]] == ["mask"] * KILLED_AT
    child.kill()
    child.communicate()
    before = masked(images)
    assert [*before] == wanted[:KILLED_AT]

    child = start_mask_script(images, "--model", model, "--cpu")
    events = [json.loads(line) for line in child.communicate()[0].splitlines()]
    assert child.returncode == 0
    assert events[0]["done_before"] == KILLED_AT + 1
    assert [Path(event["path"]).stem for event in events if event["event"] == "mask"] == wanted[KILLED_AT:]
    after = masked(images)
    assert [*after] == wanted
    assert before.items() <= after.items()
    assert (images / f"{BY_HAND}_mask.bmp").read_bytes() == by_hand

    journal = Journal(images, tmp_path / "state" / "journals")
    journal.undo()
    assert masked(images) == before
    journal.undo()
    assert not masked(images)
    assert (images / f"{BY_HAND}_mask.bmp").read_bytes() == by_hand
