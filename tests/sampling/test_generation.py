"""Generated images equal those of a plain pipeline call."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from diffusers import CogVideoXDDIMScheduler, StableDiffusionXLPipeline

from modules.config.DataConfig import DataConfig
from modules.config.SampleConfig import SampleConfig
from modules.config.SamplingConfig import SamplingConfig
from modules.config.TrainConfig import TrainConfig
from modules.sampling.generation import (
    ImageRequest,
    autocast_denoiser,
    generate_images,
    make_scheduler,
    with_prompts,
    with_sizes,
)
from modules.weights.load_pipeline import load_pipeline

REQUEST = ImageRequest("a cat", "", seed=3, width=32, height=32, steps=2, guidance=4.0)


@pytest.fixture
def pipe(tiny_sdxl):
    pipe = StableDiffusionXLPipeline.from_pretrained(tiny_sdxl)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def pixels(image):
    return np.asarray(image, np.float32) / 255


def test_without_a_negative_prompt_the_pipeline_uses_its_unconditional_prompt(pipe):
    ((_, picture),) = generate_images(pipe, [REQUEST], 1)
    options = {"width": 32, "height": 32, "num_inference_steps": 2, "guidance_scale": 4.0, "output_type": "np"}
    zeros = pipe("a cat", generator=torch.Generator().manual_seed(3), **options).images[0]
    encoded = pipe("a cat", negative_prompt="", generator=torch.Generator().manual_seed(3), **options).images[0]
    assert np.abs(zeros - encoded).max() > 0.01  # zeros and "" give different images
    np.testing.assert_allclose(pixels(picture), zeros, atol=0.003)


def test_an_image_does_not_depend_on_other_negative_prompts(pipe):
    other = replace(REQUEST, negative_prompt="a dog")
    together = [pixels(image) for _, image in generate_images(pipe, [REQUEST, other, REQUEST], 3)]
    alone = pixels(next(generate_images(pipe, [REQUEST], 1))[1])
    np.testing.assert_allclose(together[0], alone, atol=0.005)
    np.testing.assert_allclose(together[2], alone, atol=0.005)


def test_images_of_a_batch_are_decoded_one_at_a_time(pipe):
    decoded = []
    pipe.vae.decoder.register_forward_hook(lambda decoder, inputs, output: decoded.append(len(inputs[0])))
    assert len(list(generate_images(pipe, [REQUEST] * 3, 3))) == 3
    assert decoded == [1, 1, 1]
    assert not pipe.vae.use_slicing


def test_heuns_method_is_that_of_diffusers_on_the_same_sigmas():
    from diffusers import FlowMatchHeunDiscreteScheduler

    from modules.sampling.FlowHeunScheduler import FlowHeunScheduler

    ends = []
    for scheduler in (FlowMatchHeunDiscreteScheduler(), FlowHeunScheduler()):
        scheduler.set_timesteps(5)
        assert len(scheduler.timesteps) == 2 * 5 - 1
        sample = torch.full((1, 2), 3.0)
        for timestep in scheduler.timesteps:
            sample = scheduler.step(sample.sin() * timestep / 1000, timestep, sample, return_dict=False)[0]
        ends.append(sample)
    torch.testing.assert_close(ends[1], ends[0])


@pytest.mark.parametrize("sampler", ["euler", "heun"])
def test_other_samplers_keep_a_noise_schedule_that_they_have_no_option_for(sampler):
    own = CogVideoXDDIMScheduler(rescale_betas_zero_snr=True, snr_shift_scale=3.0)
    made = make_scheduler(own, sampler)
    torch.testing.assert_close(made.alphas_cumprod, own.alphas_cumprod.float(), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", ["sd15", "sd3", "flux1", "wan21", "sana", "cogvideox"])
def test_each_sampler_makes_its_own_image_and_leaves_the_models_scheduler(name, tiny_model):
    """Of schedulers that are given sigmas (FLUX), shift by resolution, and of multistep ones (Wan, Sana)."""
    pipe = load_pipeline(str(tiny_model(name)), {}, torch.device("cpu"))
    pipe.set_progress_bar_config(disable=True)
    own = pipe.scheduler
    request = replace(REQUEST, steps=3)
    images = {
        sampler: pixels(next(generate_images(pipe, [request], 1, sampler))[1]) for sampler in ("model", "euler", "heun")
    }
    assert pipe.scheduler is own
    assert np.isfinite(images["heun"]).all()
    assert np.abs(images["heun"] - images["euler"]).max() > 0.003
    if type(own).__name__ == "FlowMatchEulerDiscreteScheduler":
        np.testing.assert_array_equal(images["euler"], images["model"])


def test_a_denoiser_with_list_inputs_predicts_in_the_dtype_of_its_latents():
    class OfLists(torch.nn.Module):
        def forward(self, latents, scale):
            return ([value.bfloat16() * scale for value in latents],)

    denoiser, latents = OfLists(), [torch.ones(2), torch.ones(3)]
    with autocast_denoiser(denoiser, lambda: torch.autocast("cpu", torch.bfloat16)):
        (outputs,) = denoiser(latents, scale=2)
    assert [value.dtype for value in outputs] == [torch.float32] * 2
    assert denoiser(latents, scale=2)[0][0].dtype == torch.bfloat16  # as it was


def test_samples_without_a_prompt_take_the_captions_in_turn():
    off, fox = SampleConfig(enabled=False), SampleConfig(prompt="a fox")
    sampling = SamplingConfig(samples=[SampleConfig(), fox, off, SampleConfig(), SampleConfig()])
    prompts = [sample.prompt for sample in with_prompts(sampling, ("one", "two")).samples]
    assert prompts == ["one", "a fox", "", "two", "one"]
    assert [sample.prompt for sample in with_prompts(sampling, ()).samples] == ["", "a fox", "", "", ""]
    samples = with_prompts(
        sampling, ("one", "two"), {"one": {"reference": "before.png"}, "a fox": {"reference": "den.png"}}
    ).samples
    assert [sample.reference for sample in samples if sample.enabled] == ["before.png", "", "", "before.png"]


def test_sizes_that_are_not_given_are_those_of_the_training():
    sampling = SamplingConfig(samples=[SampleConfig(), SampleConfig(width=64, frames=5)])
    video = TrainConfig(family="wan22_5b", data=DataConfig(resolution=96, frames=17))
    sizes = [(sample.width, sample.height, sample.frames) for sample in with_sizes(sampling, video).samples]
    assert sizes == [(96, 96, 17), (64, 96, 5)]
    images = replace(video, family="sd15")
    assert [sample.frames for sample in with_sizes(sampling, images).samples] == [1, 1]
