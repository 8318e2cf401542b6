"""Models of videos that see the given first frame in place of the clip's first latent frame."""

from dataclasses import replace

import pytest
import torch
from PIL import Image

from modules.data.images import to_array
from modules.families.conditions import FirstFrame
from modules.families.latents import encode_pixels
from modules.families.registry import FAMILIES
from tests.families.test_conformance import largest_difference, load_pipe


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.fact(FirstFrame, "clean")])
def test_a_clean_first_frame_is_shown_as_encoded_alone_and_not_predicted(
    name, make_config, tiny_model, train, tmp_path, monkeypatch
):
    family, base = FAMILIES[name], tiny_model(name)
    length, width, height = family.frame_step + family.frame_rest, 48, 32
    clip = tmp_path / "clips" / "clip"
    clip.mkdir(parents=True)
    frames = [Image.effect_noise((width, height), 20 + 10 * number).convert("RGB") for number in range(length)]
    for number, frame in enumerate(frames):
        frame.save(clip / f"{number}.png")
    seen, gradients = [], []

    def spy_inputs(call):
        seen.append((call.given, family.inputs(call)["hidden_states"]))
        return family.inputs(call)

    def spy_output(call, output):
        prediction = family.output(call, output)
        prediction.register_hook(lambda gradient: gradients.append(family.unpack(gradient, call.shape)))
        return prediction

    monkeypatch.setitem(FAMILIES, name, replace(family, inputs=spy_inputs, output=spy_output))
    paths = (f"family={name}", "method=full", f"model.base={base}", f"concepts.0.path={tmp_path / 'clips'}")
    data = ("concepts.0.frame_folders_fps=16", "data.fps=16", f"data.frames={length}", "data.bucket_step=16")
    shape = ("data.bucketing=false", f"data.width={width}", f"data.height={height}")
    train(make_config(*paths, *data, *shape, "max_steps=1", "backup.at_end=false"))
    pipe = load_pipe(family, str(base))
    with torch.no_grad():
        alone = encode_pixels(family, pipe.vae, torch.from_numpy(to_array(frames[0]))[None])
    ((given, hidden),), (gradient,) = seen, gradients
    channels = alone.shape[1]
    if hidden.shape[1] != channels:  # they are the last axis, with further ones behind them
        hidden = hidden[..., :channels]
    latents = family.unpack(hidden, (1, channels, -1, *alone.shape[-2:]))
    assert given["first_given"].all()
    assert largest_difference(latents[:, :, :1], alone) <= 1e-5
    assert not gradient[:, :, 0].any()
    assert gradient[:, :, 1:].any()
