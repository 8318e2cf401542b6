"""Wan 2.2 I2V A14B between two frames that are given."""

import numpy as np
import pytest
import torch
from PIL import Image

from modules.data.conditions.first_frame import encode_ends
from modules.data.images import to_array
from modules.data.LatentEncoder import LatentEncoder
from modules.families.registry import FAMILIES
from modules.families.TextEncoding import collate_text
from tests.families.test_conformance import PROMPTS, Case, largest_difference, load_pipe, spied_sampling

FRAMES = 9


@pytest.fixture
def case(tiny_model) -> Case:
    family, folder = FAMILIES["wan22_i2v_a14b"], str(tiny_model("wan22_i2v_a14b"))
    return Case(family, folder, load_pipe(family, folder), FRAMES)


def test_clips_between_two_frames_are_predicted_as_the_pipeline_does_it(case):
    last = Image.fromarray(np.random.default_rng(5).integers(0, 255, (case.height, case.width, 3), np.uint8))
    _, _, calls = spied_sampling(case, PROMPTS[0], last_image=last)

    def frames():  # those between are never seen
        yield to_array(case.input_image)
        yield from np.ones((FRAMES - 2, 3, case.height, case.width), np.float32)
        yield to_array(last)

    ends = encode_ends(LatentEncoder(case.family, case.pipe.vae), frames, FRAMES, last=True)[None]
    text = collate_text(case.family.text, case.records()[:1])
    assert len(calls) == 3
    for prediction, timestep, latents in calls:
        given = {"first_frame": ends, "last_given": torch.tensor([True])}
        assert largest_difference(case.predict(latents, timestep.reshape(1), text, **given), prediction) <= 1e-5
        given["last_given"] = None
        assert largest_difference(case.predict(latents, timestep.reshape(1), text, **given), prediction) > 1e-4
