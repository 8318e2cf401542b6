"""Models propose masks in the painter: by clicks, words and for the subject, in a real process with tiny models."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from modules.config.errors import UserError
from modules.curation.MaskPainting import MaskPainting
from modules.ui.models.DatasetView import DatasetItem
from modules.ui.models.MaskerChoices import WAYS, MaskerChoices
from modules.ui.models.MaskProposals import IDLE_SECONDS, MaskProposals
from modules.ui.models.MaskView import MaskView
from modules.ui.models.open_mask import OpenMask
from tests.support.caption_script import use_caption_script
from tests.support.onnx_file import write_brightness
from tests.support.tiny_maskers import make_tiny_masker
from tests.support.waiting import in_thread, wait_until
from tests.ui.test_mask_pane import folder, keys, pane, window  # noqa: F401 # fixtures

SIZE = (96, 64)


@pytest.fixture(scope="module")
def tiny_sam(tmp_path_factory) -> str:
    return str(make_tiny_masker("sam2", tmp_path_factory.mktemp("maskers") / "sam2"))


@pytest.fixture
def scripts(tmp_path, monkeypatch) -> None:
    use_caption_script(tmp_path, monkeypatch)


@pytest.fixture
def opened(tmp_path) -> OpenMask:
    """An image that is bright in its right half."""
    image = Image.new("RGB", SIZE)
    image.paste((240, 240, 240), (48, 0, 96, 64))
    image.save(tmp_path / "a.png")
    item = DatasetItem(str(tmp_path / "a.png"), 0, "a.png")
    return OpenMask(item, None, None, MaskView(image, MaskPainting(np.zeros(SIZE[::-1], np.uint8))))


@pytest.fixture
def proposals():
    made = MaskProposals()
    yield made
    made.end()


def subject(tmp_path: Path) -> MaskerChoices:
    pytest.importorskip("onnxruntime", reason="the optional package for ONNX files is not installed")
    return MaskerChoices(way="subject", subject_model=str(write_brightness(tmp_path / "u2net.onnx", side=16)))


def test_one_process_answers_until_it_is_idle_and_leaves_no_file(scripts, opened, tmp_path):
    now = 0.0
    proposals = MaskProposals(clock=lambda: now)
    choices = subject(tmp_path)
    mask = proposals.ask(opened, choices, ())
    assert mask.shape == SIZE[::-1]
    assert (mask[:, :40].max(), mask[:, 56:].min()) == (0, 255)
    process, temporary = proposals._session._child.process, proposals._session.folder
    proposals.ask(opened, choices, ())
    assert proposals._session._child.process is process
    now = IDLE_SECONDS + 1
    proposals.end_if_idle()
    wait_until(lambda: process.poll() is not None and not os.path.exists(temporary))
    assert not proposals.is_running


def test_what_it_is_asked_when_it_is_ended_has_no_answer_and_the_next_question_starts_another(
    scripts, opened, proposals, tmp_path
):
    answers = []
    with in_thread(lambda: answers.append(proposals.ask(opened, subject(tmp_path), ()))):
        wait_until(lambda: proposals.is_running)
        proposals.end()
    assert answers == [None]
    assert proposals.ask(opened, subject(tmp_path), ()) is not None


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("no such.onnx", "Model 'no such.onnx': there is no such file"),
        ("{folder}", "Model '{folder}': can't draw masks"),
    ],
)
def test_why_there_is_no_model_is_said_in_the_words_of_the_window(scripts, opened, proposals, tmp_path, model, said):
    choices = MaskerChoices(way="subject", subject_model=model.format(folder=tmp_path))
    with pytest.raises(UserError) as caught:
        proposals.ask(opened, choices, ())
    assert str(caught.value).startswith(said.format(folder=tmp_path))


def test_clicks_become_a_part_of_the_mask_as_one_step(app, pane, wait_for, scripts, tiny_sam):  # noqa: F811
    bar, painting = pane.bar, pane.opened.painting
    keys(pane, "<l>")
    assert bar.winfo_ismapped()
    assert bar.way.get() == WAYS["clicks"].label
    bar.model.set("")
    place = dict(zip(("x", "y"), map(round, pane.canvas.view.to_screen(200, 150)), strict=True))
    pane.canvas.event_generate("<ButtonPress-1>", **place)
    assert pane._state.cget("text").startswith("Model: is empty; choose a folder or a model on the Hub")
    bar.drop()
    bar.model.set(tiny_sam)
    pane.canvas.event_generate("<ButtonPress-1>", **place)
    wait_for(app, lambda: bar.mask is not None)
    first = bar.mask
    frame = pane.canvas.view.frame.copy()
    pane.canvas.event_generate("<ButtonPress-3>", x=place["x"] + 40, y=place["y"])
    wait_for(app, lambda: bar.mask is not first)
    assert [is_inside for _, _, is_inside in bar._clicks] == [True, False]
    proposed = bar.mask.copy()
    kept = MaskerChoices.of_values(app.preferences.masker)
    assert (kept.way, kept.painter_way, kept.clicks_model) == ("words", "clicks", tiny_sam)
    assert first.any() or proposed.any()
    if first.any():
        assert frame.tobytes() != pane.canvas.view._base.tobytes()  # it is seen
    assert not painting.values.any()
    pane.canvas.focus_force()
    pane.canvas.event_generate("<Return>")
    wait_for(app, lambda: not pane.canvas.is_busy)
    assert np.array_equal(painting.values, proposed)
    assert bar.mask is None
    keys(pane, "<Control-z>")
    assert not painting.values.any()
    assert bar.proposals.is_running
    keys(pane, "<Escape>")
    wait_for(app, lambda: not bar.proposals.is_running)
