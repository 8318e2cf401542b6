"""Each kind of masker marks what it is asked for, in the pixels of the image."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

from modules.annotators.Masker import Click, LocalMasker, Masker, MaskHint
from modules.annotators.masker_kinds import KINDS, masker_kind_in
from modules.config.errors import UserError
from tests.support.onnx_file import write_brightness
from tests.support.tiny_maskers import make_tiny_masker

WIDE = (96, 60)


@pytest.fixture(scope="module")
def tiny_masker(tmp_path_factory) -> Callable[[str], Path]:
    """The folder of a tiny mask model, by the name of its kind."""
    made: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in made:
            made[name] = make_tiny_masker(name, tmp_path_factory.mktemp("maskers") / name)
        return made[name]

    return get


def load(folder: Path) -> Masker:
    kind = masker_kind_in(folder, "mine")
    (model_class,) = kind.models.values() if kind.name != "sam2" else {"Sam2Model"}
    return kind.load(LocalMasker(folder, model_class, torch.device("cpu"), torch.float32))


def gradient() -> Image.Image:
    ramp = np.linspace(0, 255, WIDE[0], dtype=np.uint8)[None].repeat(WIDE[1], 0)
    return Image.fromarray(np.stack([ramp, ramp // 2, 255 - ramp], -1))


def test_clipseg_marks_what_any_of_its_prompts_names_as_its_own_processor_would(tiny_masker):
    folder, image = tiny_masker("clipseg"), gradient()
    processor = transformers.CLIPSegProcessor.from_pretrained(folder)
    model = transformers.CLIPSegForImageSegmentation.from_pretrained(folder).eval()
    inputs = processor(text=["a cat", "the red sky"], images=[image] * 2, padding=True, return_tensors="pt")
    with torch.inference_mode():
        both = torch.sigmoid(model(**inputs).logits).amax(0)
    expected = Image.fromarray(both.numpy()).resize(WIDE, Image.Resampling.BILINEAR)

    found = load(folder).mask(image, MaskHint(" a cat, ,the red sky "))

    np.testing.assert_allclose(found, np.asarray(expected), atol=1e-5)


@pytest.mark.parametrize("clicks", [(Click(70, 20),), (Click(70, 20), Click(5, 50, is_inside=False))])
def test_sam_marks_what_is_clicked_as_with_its_own_processor(clicks, tiny_masker):
    folder, image = tiny_masker("sam"), gradient()
    processor = transformers.SamProcessor.from_pretrained(folder)
    model = transformers.SamModel.from_pretrained(folder).eval()
    points, labels = [[[one.x + 0.5, one.y + 0.5] for one in clicks]], [[int(one.is_inside) for one in clicks]]
    inputs = processor(image, input_points=points, input_labels=labels, return_tensors="pt")
    with torch.inference_mode():
        outputs = model(**inputs, multimask_output=len(clicks) == 1)
    sizes = inputs["original_sizes"], inputs["reshaped_input_sizes"]
    square = {"height": 64, "width": 64}
    masks = processor.image_processor.post_process_masks(outputs.pred_masks, *sizes, pad_size=square, binarize=False)[0]
    expected = torch.sigmoid(masks[0, int(outputs.iou_scores.argmax())])

    found = load(folder).mask(image, MaskHint(clicks=clicks))

    assert found.shape == WIDE[::-1]
    np.testing.assert_allclose(found, expected.numpy(), atol=0.02)  # its square is scaled from bytes that are rounded


def test_sam_2_sees_the_stretched_image_and_clicks_in_it(tiny_masker):
    folder, image = tiny_masker("sam2"), gradient()
    model = transformers.Sam2Model.from_pretrained(folder).eval()
    scaled = np.asarray(image.resize((64, 64), Image.Resampling.BILINEAR), np.float32) / 255
    pixels = (scaled - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    pixels = torch.from_numpy(pixels.transpose(2, 0, 1)[None]).float()
    points = torch.tensor([[[[70.5 * 64 / 96, 20.5 * 64 / 60]]]])
    with torch.inference_mode():
        outputs = model(pixel_values=pixels, input_points=points, input_labels=torch.ones(1, 1, 1, dtype=torch.int))
    best = outputs.pred_masks[0, 0, outputs.iou_scores.argmax()][None, None]
    whole = torch.nn.functional.interpolate(best, (64, 64), mode="bilinear")
    expected = torch.sigmoid(torch.nn.functional.interpolate(whole, WIDE[::-1], mode="bilinear"))[0, 0]

    found = load(folder).mask(image, MaskHint(clicks=(Click(70, 20),)))

    np.testing.assert_allclose(found, expected.numpy(), atol=1e-4)


@pytest.mark.parametrize("name", ["sam", "sam2"])
def test_a_second_click_does_not_look_at_the_image_again_but_another_image_does(name, tiny_masker, monkeypatch):
    masker = load(tiny_masker(name))
    looks, look = [], masker._model.get_image_embeddings
    monkeypatch.setattr(masker._model, "get_image_embeddings", lambda given: looks.append(1) or look(given))
    first = masker.mask(gradient(), MaskHint(clicks=(Click(70, 20),), image="a"))
    second = masker.mask(gradient(), MaskHint(clicks=(Click(5, 50),), image="a"))
    assert len(looks) == 1
    assert not np.array_equal(first, second)
    masker.mask(gradient(), MaskHint(clicks=(Click(5, 50),), image="b"))
    assert len(looks) == 2


@pytest.mark.parametrize("name", ["sam", "clipseg"])
def test_a_model_that_is_told_nothing_says_what_it_needs(name, tiny_masker):
    with pytest.raises(UserError, match=r"^--(click|prompt): "):
        load(tiny_masker(name)).mask(gradient(), MaskHint(clicks=(Click(1, 1, is_inside=False),)))


@pytest.mark.parametrize(
    ("name", "mean", "std"),
    [
        ("u2net.onnx", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ("isnet-general-use.onnx", (0.5, 0.5, 0.5), (1, 1, 1)),
        ("BiRefNet_lite.onnx", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ],
)
def test_subjects_are_found_in_images_that_are_prepared_as_the_model_was_trained(name, mean, std, tmp_path):
    pytest.importorskip("onnxruntime", reason="the optional package for ONNX files is not installed")
    path = write_brightness(tmp_path / name, side=16)
    image = Image.new("RGB", (32, 16), "black")
    image.paste((200, 60, 90), (16, 0, 32, 16))

    found = masker_kind_in(path, name).load(LocalMasker(path)).mask(image, MaskHint())

    values = [np.mean((np.array(color) / 255 - mean) / std) for color in ((0, 0, 0), (200, 60, 90))]
    low, high = 1 / (1 + np.exp(-np.array(values)))
    assert found.shape == (16, 32)
    assert (found[:, :12].max(), found[:, 20:].min()) == pytest.approx((0, 1), abs=1e-5)
    assert high - low > 0.05  # so that the range was stretched


def test_another_model_is_refused_with_examples_of_what_can_be_used(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "birefnet"}', encoding="utf-8")
    with pytest.raises(UserError, match=r"can't draw masks here: use an \.onnx file, or a model such as CIDAS/clipseg"):
        masker_kind_in(tmp_path, "mine")
    assert {kind.name for kind in KINDS} == {"clipseg", "sam", "sam2", "subject"}
