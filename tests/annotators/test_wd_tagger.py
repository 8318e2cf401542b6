"""Taggers see pixels as they were trained to, and write the tags that reach their thresholds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from modules.annotators.Captioner import CaptionOptions, Failure, LocalModel
from modules.annotators.captioner_kinds import TAGGER
from modules.annotators.kinds.wd_tagger import prepared
from modules.weights.errors import WeightsError
from tests.support.onnx_file import write_channel_means

ROWS = "tag_id,name,category,count\n1,blue_sky,0,9\n2,^_^,0,9\n3,hatsune_miku,4,9\n"


def make_tagger(folder: Path, rows: str = ROWS) -> LocalModel:
    """The three tags are as likely as an image is blue, green and red."""
    pytest.importorskip("onnxruntime", reason="the optional package for ONNX files is not installed")
    folder.mkdir()
    write_channel_means(folder / "model.onnx", side=8)
    (folder / "selected_tags.csv").write_text(rows, encoding="utf-8")
    return LocalModel(TAGGER, folder)


def test_tags_follow_names_of_characters_by_falling_probability_above_their_thresholds(tmp_path):
    tagger = TAGGER.load(make_tagger(tmp_path / "tagger"), CaptionOptions(separator="; "))
    colors = [(250, 100, 130), (210, 100, 130), (0, 0, 0)]

    texts = tagger.caption([[Image.new("RGB", (8, 8), color)] for color in colors])

    assert texts == ["hatsune miku; blue sky; ^_^", "blue sky; ^_^", Failure("no tag reaches its threshold")]


def test_images_are_padded_to_a_white_square_and_keep_the_range_of_bytes():
    pixels = prepared(Image.new("RGB", (4, 8), (10, 20, 30)), 8)
    assert pixels.dtype == np.float32
    assert pixels[4, 4].tolist() == [30, 20, 10]
    assert pixels[4, 0].tolist() == [255, 255, 255]


def test_a_list_of_other_tags_than_the_models_is_refused(tmp_path):
    tagger = TAGGER.load(make_tagger(tmp_path / "tagger", f"{ROWS}4,one_more,0,9\n"), CaptionOptions())
    with pytest.raises(WeightsError, match=r"gives 3 probabilities, but selected_tags.csv has 4 tags"):
        tagger.caption([[Image.new("RGB", (8, 8))]])


def test_a_damaged_onnx_file_is_refused_in_one_sentence(tmp_path):
    local = make_tagger(tmp_path / "tagger")
    (local.folder / "model.onnx").write_bytes(b"no model at all")
    with pytest.raises(WeightsError, match=r"^'.*model.onnx': can't be loaded as an ONNX model: .*\.$"):
        TAGGER.load(local, CaptionOptions())


def test_without_the_optional_package_the_message_says_how_to_install_it(
    tmp_path, uncaptioned, run_captioner, monkeypatch, capsys
):
    folder = tmp_path / "tagger"
    folder.mkdir()
    (folder / "selected_tags.csv").write_text(ROWS, encoding="utf-8")
    monkeypatch.setattr("modules.annotators.onnx_models.find_spec", lambda name: None)

    assert run_captioner(uncaptioned(1), "--model", folder)[0] == 2

    error = capsys.readouterr().err
    assert "onnxruntime, which is not installed: `python -m pip install onnxruntime`" in error
