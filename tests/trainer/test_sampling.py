"""Pictures are those of a plain call of the pipeline."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from diffusers import StableDiffusionXLPipeline

from modules.trainer.sampling import PictureRequest, make_pictures

REQUEST = PictureRequest("a cat", "", seed=3, width=32, height=32, steps=2, guidance=4.0)


@pytest.fixture
def pipe(tiny_sdxl):
    pipe = StableDiffusionXLPipeline.from_pretrained(tiny_sdxl)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def pixels(image):
    return np.asarray(image, np.float32) / 255


def test_without_a_negative_prompt_the_pipeline_takes_what_stands_for_no_caption(pipe):
    ((_, picture),) = make_pictures(pipe, [REQUEST], 1)
    options = {"width": 32, "height": 32, "num_inference_steps": 2, "guidance_scale": 4.0, "output_type": "np"}
    zeros = pipe("a cat", generator=torch.Generator().manual_seed(3), **options).images[0]
    encoded = pipe("a cat", negative_prompt="", generator=torch.Generator().manual_seed(3), **options).images[0]
    assert np.abs(zeros - encoded).max() > 0.01  # of zeros and of "" the pictures differ
    np.testing.assert_allclose(pixels(picture), zeros, atol=0.003)


def test_a_picture_does_not_depend_on_the_negative_prompts_beside_it(pipe):
    other = replace(REQUEST, negative_prompt="a dog")
    together = [pixels(image) for _, image in make_pictures(pipe, [REQUEST, other, REQUEST], 3)]
    alone = pixels(next(make_pictures(pipe, [REQUEST], 1))[1])
    np.testing.assert_allclose(together[0], alone, atol=0.005)
    np.testing.assert_allclose(together[2], alone, atol=0.005)
