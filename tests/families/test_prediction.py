"""What predicts, and what it was trained for."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from modules.config.errors import UserError
from modules.families.conditions import Sizes
from modules.families.prediction import objective_of, predict
from modules.families.sd15 import SD15


def test_a_base_that_predicts_something_else_is_refused():
    assert objective_of(SD15, {"prediction_type": "v_prediction"}).prediction_type == "v_prediction"
    with pytest.raises(UserError, match=r"^model\.prediction_type auto: the base predicts 'sample', but only epsilon"):
        objective_of(SD15, {"prediction_type": "sample"})


class Multiplier(torch.nn.Module):
    """A denoiser that multiplies the latents by a factor and each row's text, and counts its calls."""

    dtype = torch.float32

    def __init__(self, factor):
        super().__init__()
        self.factor = factor
        self.calls = 0

    def forward(self, latents, words, return_dict):
        self.calls += 1
        return (self.factor * latents * torch.stack(list(words)).view(-1, 1, 1, 1),)


def two_experts(boundary=500):
    family = replace(
        SD15,
        denoisers=("noisy", "clean"),
        inputs=lambda call: {"latents": call.latents, "words": call.text["words"]},
        experts=lambda config: {"noisy": (config["boundary"], math.inf), "clean": (0, config["boundary"])},
    )
    return family, SimpleNamespace(noisy=Multiplier(10.0), clean=Multiplier(1.0), config={"boundary": boundary})


@pytest.mark.parametrize("as_list", [False, True])
def test_each_row_goes_to_the_expert_of_its_timestep(as_list):
    family, pipe = two_experts()
    words = [torch.tensor(float(row)) for row in range(4)]
    text = {"words": words if as_list else torch.stack(words)}
    timesteps = torch.tensor([499.0, 500.0, 1000.0, 0.0])
    predicted = predict(family, pipe, torch.ones(4, 1, 2, 2), timesteps, text)
    assert predicted[:, 0, 0, 0].tolist() == [0.0, 10.0, 20.0, 3.0]
    assert (pipe.noisy.calls, pipe.clean.calls) == (1, 1)


def test_an_expert_without_a_row_is_not_called():
    family, pipe = two_experts(boundary=0)
    predict(family, pipe, torch.ones(2, 1, 2, 2), torch.tensor([1.0, 2.0]), {"words": torch.ones(2)})
    assert (pipe.noisy.calls, pipe.clean.calls) == (1, 0)


def test_where_the_timesteps_are_known_on_the_host_no_other_ones_are_read():
    family, pipe = two_experts()
    latents, text = torch.ones(2, 1, 2, 2), {"words": torch.ones(2)}
    on_device = torch.empty(2, device="meta")  # can't be read
    predicted = predict(family, pipe, latents, on_device, text, host_timestep=torch.tensor([0.0, 900.0]))
    assert predicted[:, 0, 0, 0].tolist() == [1.0, 10.0]


def test_what_is_given_reaches_the_expert_of_its_row_by_name_cast_and_stacked():
    seen = []

    def inputs(call):
        seen.append(call.given)
        return {"latents": call.latents, "words": call.text["words"]}

    family, pipe = two_experts()
    given = {
        "depth": torch.arange(4, dtype=torch.float64),
        "sizes": torch.arange(4, dtype=torch.float64),
        "is_new": torch.tensor([True, False, True, False]),
        "frames": [[torch.full((shape,), float(row))] for row, shape in enumerate((2, 3, 3, 2))],
    }
    timesteps, text = torch.tensor([900.0, 100.0, 900.0, 100.0]), {"words": torch.ones(4)}
    family = replace(family, inputs=inputs, conditions=(Sizes(),))
    predicted = predict(family, pipe, torch.ones(4, 1, 2, 2), timesteps, text, given)
    assert predicted[:, 0, 0, 0].tolist() == [10.0, 1.0, 10.0, 1.0]
    assert [call["depth"].tolist() for call in seen] == [[0.0], [2.0], [1.0], [3.0]]  # frames of other shapes apart
    assert [call["is_new"].tolist() for call in seen] == [[True], [True], [False], [False]]
    assert [[frame.tolist() for frame in call["frames"]] for call in seen] == [
        [[[row] * n]] for row, n in ((0, 2), (2, 3), (1, 3), (3, 2))
    ]
    assert {call["depth"].dtype for call in seen} == {torch.float32}  # of the denoiser
    assert {call["sizes"].dtype for call in seen} == {torch.float64}  # exact


def test_rows_whose_texts_have_one_length_share_a_forward_pass():
    family = replace(
        SD15,
        text=replace(SD15.text, collate="group"),
        inputs=lambda call: {"latents": call.latents, "words": call.text["words"].sum(1)},
    )
    pipe = SimpleNamespace(unet=Multiplier(1.0))
    text = {"words": [torch.full((length,), value) for length, value in ((2, 1.0), (3, 1.0), (2, 5.0))]}
    predicted = predict(family, pipe, torch.ones(3, 1, 2, 2), torch.ones(3), text)
    assert predicted[:, 0, 0, 0].tolist() == [2.0, 3.0, 10.0]
    assert pipe.unet.calls == 2
