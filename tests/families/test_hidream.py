"""HiDream-I1: its experts, which diffusers lets train in another way than it samples, and its largest images."""

import diffusers
import pytest
import torch

from modules.config.errors import UserError
from modules.config.SampleConfig import SampleConfig
from modules.families.hidream import HIDREAM
from modules.sampling.generation import generate_images, image_requests
from tests.families.test_conformance import Case, largest_difference, load_pipe, predict_pair


@pytest.fixture
def case(tiny_model) -> Case:
    folder = str(tiny_model(HIDREAM.name))
    return Case(HIDREAM, folder, load_pipe(HIDREAM, folder))


def test_routing_gives_the_prediction_of_diffusers_own(case):
    plain = diffusers.HiDreamImagePipeline.from_pretrained(case.folder, local_files_only=True)
    assert largest_difference(predict_pair(case, plain), case.plain_prediction) <= 1e-6


def test_every_expert_gets_a_gradient_even_without_a_token(case):
    layer = next(layer for layer in case.pipe.transformer.modules() if hasattr(layer, "moe_infer"))
    layer(torch.randn(1, 1, 32)).sum().backward()  # a token goes to two of the four
    norms = [expert.w1.weight.grad.norm().item() for expert in layer.experts]
    assert sorted(norm > 0 for norm in norms) == [False, False, True, True]


def test_an_image_of_more_tokens_than_the_denoiser_takes_is_refused(case):
    latents = torch.randn(2, 4, 48, 50)
    with pytest.raises(UserError, match="400x384 pixels: HiDream-I1 takes images of up to 384x384 pixels"):
        case.predict(latents, torch.tensor([300.0, 900.0]), case.text())


def test_samples_have_the_size_that_is_asked_for_and_the_pipeline_keeps_its_own(case):
    sizes = [(48, 32), (64, 80), (64, 64)]
    samples = [SampleConfig(prompt="a cat", width=width, height=height, steps=1) for width, height in sizes]
    requests = [request for sample in samples for request in image_requests(sample)]
    assert [image.size for _, image in generate_images(case.pipe, requests, 2)] == sizes
    assert case.pipe.default_sample_size == 128
