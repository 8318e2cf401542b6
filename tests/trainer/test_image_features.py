"""Models of videos that see given frames through an image encoder, too."""

from dataclasses import replace

import pytest
import torch
from PIL import Image

from modules.families.conditions import FirstFrame
from modules.families.registry import FAMILIES
from tests.families.test_conformance import largest_difference, load_pipe


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.fact(FirstFrame, "components")])
def test_training_shows_what_the_image_encoder_sees_in_the_given_frames_of_each_clip(
    name, make_config, tiny_model, train, tmp_path, monkeypatch
):
    family, base = FAMILIES[name], tiny_model(name)
    length, width, height = family.frame_step + family.frame_rest, 48, 32
    frames = [Image.effect_noise((width, height), 20 + 10 * number).convert("RGB") for number in range(2 * length)]
    for number, frame in enumerate(frames):
        folder = tmp_path / "clips" / f"clip {number // length}"
        folder.mkdir(parents=True, exist_ok=True)
        frame.save(folder / f"{number}.png")
    seen = []

    def spy(call):
        given = call.given["image_features"]
        seen.append(given[0] if family.fact(FirstFrame, "beside") else given)
        return family.inputs(call)

    monkeypatch.setitem(FAMILIES, name, replace(family, inputs=spy))
    paths = (f"family={name}", "method=full", f"model.base={base}", f"concepts.0.path={tmp_path / 'clips'}")
    data = ("concepts.0.frame_folders_fps=16", "data.fps=16", f"data.frames={length}", "data.bucket_step=16")
    shape = ("data.bucketing=false", f"data.width={width}", f"data.height={height}")
    always = () if family.fact(FirstFrame, "needed") else ("data.image_to_video=1",)
    train(make_config(*paths, *data, *shape, *always, "batch_size=2", "max_steps=1", "backup.at_end=false"))
    pipe = load_pipe(family, str(base))
    with torch.no_grad():
        ends = family.fact(FirstFrame, "last") == "needed"
        step = length - 1 if ends else length  # between two frames that are given
        clips = frames[:length:step], frames[length::step]
        expected = torch.stack([family.fact(FirstFrame, "features")(pipe, given) for given in clips])
    (features,) = seen
    assert largest_difference(expected[:1], expected[1:]) > 1e-3
    assert min(largest_difference(features, expected), largest_difference(features, expected.flip(0))) <= 1e-6
