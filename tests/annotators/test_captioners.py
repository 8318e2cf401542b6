"""Each kind of captioner writes what its model says, and goes on where it was killed."""

from __future__ import annotations

import pytest
import torch
import transformers
from PIL import Image

from modules.annotators.Captioner import CaptionOptions, LocalModel
from modules.annotators.captioner_kinds import KINDS, STYLES
from modules.annotators.generating import chat_text
from modules.annotators.prompts import LONG, SHORT, instruction
from modules.weights.processors import without_videos
from tests.annotators.conftest import captioned, texts_in
from tests.support.onnx_file import write_channel_means

GENERATING = [kind for kind in KINDS if kind.models]
TAG_ROWS = "tag_id,name,category,count\n1,blue_sky,0,9\n2,^_^,0,9\n3,hatsune_miku,4,9\n"


@pytest.fixture
def model_of(tiny_captioner, tmp_path):
    """The folder of a tiny model of any kind."""

    def make(name: str):
        if name != "wd_tagger":
            return tiny_captioner(name)
        pytest.importorskip("onnxruntime", reason="the optional package for ONNX files is not installed")
        folder = tmp_path / "tagger"
        folder.mkdir()
        write_channel_means(folder / "model.onnx", side=16)
        (folder / "selected_tags.csv").write_text(TAG_ROWS, encoding="utf-8")
        return folder

    return make


@pytest.mark.parametrize("name", [kind.name for kind in KINDS])
def test_a_run_that_is_killed_at_the_seventh_of_twenty_images_goes_on_at_the_eighth(
    name, model_of, uncaptioned, run_captioner
):
    images = uncaptioned(20)
    command = (images, "--model", model_of(name), "--cpu", "--max-tokens", 3, "--batch-size", 4)
    command += ("--general-threshold", 0.01)

    code, events = run_captioner(*command, killed_at=7)

    assert code == -9
    first = texts_in(images)
    assert [*first] == [f"{number:03d}.txt" for number in range(7)]
    assert all(first.values())

    code, events = run_captioner(*command)

    assert code == 0
    assert captioned(events) == [f"{number:03d}.png" for number in range(7, 20)]
    assert events[-1] == {"event": "end", "written": 13, "failed": 0, "left": 0, "canceled": False}
    after = texts_in(images)
    assert len(after) == 20
    assert first.items() <= after.items()


@pytest.mark.parametrize("kind", GENERATING, ids=lambda kind: kind.name)
def test_captions_of_a_batch_are_those_of_the_models_own_recipe_for_one_image(kind, tiny_captioner):
    folder = tiny_captioner(kind.name)
    images = [Image.new("RGB", size, color) for size, color in (((64, 64), "red"), ((96, 64), "navy"))]
    processor = without_videos(getattr(transformers, kind.processor)).from_pretrained(folder)
    model = getattr(transformers, *kind.models.values()).from_pretrained(folder).eval()
    prompts = {"qwen_vl": _chat(LONG), "llava": _joy_chat(LONG), "florence2": "<MORE_DETAILED_CAPTION>", "blip2": ""}
    expected = []
    for image in images:
        inputs = processor(text=[prompts[kind.name]], images=[image], return_tensors="pt")
        with torch.inference_mode():
            beams = {"num_beams": 3} if kind.name == "florence2" else {}
            tokens = model.generate(**inputs, do_sample=False, max_new_tokens=6, **beams)
        tokens = tokens if model.config.is_encoder_decoder or kind.name == "blip2" else tokens[:, -6:]
        expected.append(processor.tokenizer.decode(tokens[0], skip_special_tokens=True))

    local = LocalModel(kind, folder, torch.device("cpu"), torch.float32)
    found = kind.load(local, CaptionOptions(max_tokens=6)).caption([[image] for image in images])

    cleaned = ["".join(letter for letter in " ".join(text.split()) if letter.isprintable()) for text in expected]
    assert found == cleaned


def _chat(prompt: str) -> str:
    image = "<|vision_start|><|image_pad|><|vision_end|>"
    return f"<|im_start|>user\n{image}{prompt}<|im_end|>\n<|im_start|>assistant\n"


def _joy_chat(prompt: str) -> str:
    return f"<|im_start|>user\n<image>{prompt}<|im_end|>\n<|im_start|>assistant\n"


def test_a_text_is_no_longer_than_the_positions_of_its_model(tiny_captioner, uncaptioned, run_captioner):
    images = uncaptioned(1)
    code, events = run_captioner(images, "--model", tiny_captioner("florence2"), "--cpu", "--max-tokens", 300)
    assert code == 0
    assert {"event": "limited", "tokens": 255, "wanted": 300} in events
    assert captioned(events) == ["000.png"]


def test_generation_ends_with_the_token_during_which_the_run_is_canceled(tiny_captioner):
    (kind,) = (kind for kind in KINDS if kind.name == "llava")
    asked = 0

    def is_canceled() -> bool:
        nonlocal asked
        asked += 1
        return asked == 3

    local = LocalModel(kind, tiny_captioner(kind.name), torch.device("cpu"), torch.float32, is_canceled=is_canceled)
    kind.load(local, CaptionOptions(max_tokens=200)).caption([[Image.new("RGB", (32, 32))]])

    assert asked == 3


def test_frames_of_a_clip_are_seen_together_by_models_that_can(tiny_captioner, monkeypatch):
    (kind,) = (kind for kind in KINDS if kind.takes_frames)
    local = LocalModel(kind, tiny_captioner(kind.name), torch.device("cpu"), torch.float32)
    captioner = kind.load(local, CaptionOptions(max_tokens=1))
    given = {}
    monkeypatch.setattr(captioner, "generate", lambda inputs: given.update(inputs) or [""])

    captioner.caption([[Image.new("RGB", (64, 64))] * 3])

    assert len(given["image_grid_thw"]) == 3


class _Templates:
    """A processor with a template in Python."""

    def __init__(self, render):
        self._render = render

    def apply_chat_template(self, messages, **options):
        return self._render(messages[0]["content"])


@pytest.mark.parametrize(
    "render",
    [
        lambda content: "".join("<image>" if part["type"] == "image" else part["text"] for part in content),
        lambda content: "<image>" + content,  # TypeError for a list
        lambda content: f"USER: {content}",  # a list by its repr, and no token for images
    ],
)
def test_the_prompt_has_one_token_for_each_image_whatever_the_template_takes(render):
    text = chat_text(_Templates(render), "what is it?", 1, "<image>")
    assert text.count("<image>") == 1
    assert "what is it?" in text
    assert "type" not in text


def test_every_style_tells_another_thing_and_only_subjects_have_names():
    texts = {style: instruction(CaptionOptions(style=style, name="ohwx"), "long") for style in STYLES}
    assert len(set(texts.values())) == len(STYLES)
    assert [style for style, text in texts.items() if "ohwx" in text] == ["subject"]
    assert instruction(CaptionOptions(), "short") == SHORT
    assert instruction(CaptionOptions(prompt="Name its {name}."), "long") == "Name its {name}."
