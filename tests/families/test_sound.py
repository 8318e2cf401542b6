"""Models of videos with sound: what is predicted of both is what the pipeline feeds its two schedulers."""

from functools import wraps

import diffusers
import pytest
import torch
from diffusers.modular_pipelines.minimax_h3.decoders import MiniMaxH3AudioDecodeStep
from diffusers.modular_pipelines.modular_pipeline import SequentialPipelineBlocks
from safetensors.torch import load_file

from modules.config.ModelConfig import ModelConfig
from modules.data.ClipWithAudio import ClipWithAudio
from modules.data.ImageRequest import ImageRequest
from modules.families.conditions import Sound
from modules.families.prediction import predict_all
from modules.families.registry import FAMILIES
from modules.families.TextEncoding import collate_text
from modules.sampling.generation import generate_images
from modules.weights.BaseModel import BaseModel
from modules.weights.load_pipeline import load_pipeline
from modules.weights.model_files import save_folder
from tests.families.test_conformance import PROMPTS, Case, assert_same, load_pipe


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.fact(Sound, "needed")])
def test_video_and_sound_are_predicted_as_the_pipeline_does_it(name, tiny_model):
    family, folder = FAMILIES[name], str(tiny_model(name))
    case = Case(family, folder, load_pipe(family, folder), family.frame_step + family.frame_rest)
    pipe, seen = case.same_pipe(), {}

    def spied(scheduler):
        step, calls = scheduler.step, []

        @wraps(step)
        def spy(prediction, timestep, sample, *args, **kwargs):
            calls.append((prediction, timestep.clone(), sample.clone()))
            return step(prediction, timestep, sample, *args, **kwargs)

        scheduler.step = spy
        return calls

    assert isinstance(pipe.scheduler, diffusers.MiniMaxH3Scheduler)  # whose time runs from 0, noise, to 1
    seen = [spied(pipe.scheduler), spied(pipe.audio_scheduler)]
    case.make_picture(pipe, prompt=[PROMPTS[0]])
    text = collate_text(family.text, case.records()[:1])
    length = family.condition(Sound).length(case.frames)
    assert len(seen[0]) == 3
    for (of_video, time, latents), (of_sound, _, sounds) in zip(*seen, strict=True):
        sounds = sounds.reshape(1, 2, length, -1)
        given = {"sound": sounds, "sound_noise": sounds}  # between equals, whatever the timestep
        noised = family.unpack(latents, (1, *case.latent_shape()))
        with torch.no_grad():
            video, sound = predict_all(family, pipe, noised, 1000 * (1 - time.reshape(1)), text, given)
        assert_same(family.pack(video)[0], -of_video)
        assert_same(sound.reshape(of_sound.shape), -of_sound)


@pytest.mark.parametrize("kind", ["LTX2Pipeline", "LTX2ImageToVideoPipeline"])
def test_both_streams_and_their_gradients_are_those_of_the_pipelines_calls(kind, tiny_model):
    family, folder = FAMILIES["ltx2"], str(tiny_model("ltx2"))
    case = Case(family, folder, load_pipe(family, folder), 9)
    pipe, calls = case.same_pipe(), []
    made = getattr(diffusers, kind)(**{name: part for name, part in pipe.components.items() if part is not None})
    from_image = {"image": case.input_image} if kind != "LTX2Pipeline" else {}
    hook = pipe.transformer.register_forward_hook(
        lambda module, args, kwargs, output: calls.append((kwargs, output)), with_kwargs=True
    )
    try:
        case.make_picture(made, prompt=[PROMPTS[0]], **from_image)
    finally:
        hook.remove()
    text, length = collate_text(family.text, case.records()[:1]), family.condition(Sound).length(case.frames)
    weights = dict(pipe.transformer.named_parameters())
    assert len(calls) == 3
    for kwargs, outputs in calls:
        sounds = kwargs["audio_hidden_states"][:, None]
        assert sounds.shape[:3] == (1, 1, length)
        noised = family.unpack(kwargs["hidden_states"], (1, *case.latent_shape()))
        given = {"sound": sounds, "sound_noise": sounds}  # between equals, whatever the timestep
        if from_image:
            given["first_given"] = torch.tensor([True])
        timestep = kwargs["sigma"].reshape(1)
        with torch.no_grad():
            video, sound = predict_all(family, pipe, noised, timestep, text, given)
        assert_same(family.pack(video), outputs[0])
        assert_same(sound[:, 0], outputs[1])
    kwargs = {**kwargs, "video_coords": None, "audio_coords": None}
    with torch.enable_grad():
        for parameter in weights.values():
            parameter.requires_grad_(True)
        expected = gradients(pipe.transformer(**kwargs), weights)
        video, sound = predict_all(family, pipe, noised, timestep, text, given)
        found = gradients((family.pack(video), sound[:, 0]), weights)
    assert found.keys() == expected.keys()
    assert any("audio_to_video_attn" in name for name in found)
    assert any("audio_attn1" in name for name in found)
    for name, gradient in found.items():
        assert_same(gradient, expected[name])


def test_the_mono_sound_of_kandinsky6_is_predicted_and_read_as_in_the_pipeline(tiny_model):
    family, folder = FAMILIES["kandinsky6"], str(tiny_model("kandinsky6"))
    case = Case(family, folder, load_pipe(family, folder), 5)
    pipe, calls, spec = case.same_pipe(), [], family.condition(Sound)
    hook = pipe.transformer.register_forward_hook(
        lambda module, args, kwargs, output: calls.append((kwargs, output)), with_kwargs=True
    )
    try:
        case.make_picture(pipe, prompt=[PROMPTS[0]], sample_audio=True)
    finally:
        hook.remove()
    text, length = collate_text(family.text, case.records()[:1]), spec.length(5)
    assert len(calls) == 3
    for kwargs, outputs in calls:
        sounds = kwargs["audio_hidden_states"][:, None]
        assert sounds.shape[:3] == (1, 1, length)
        latent_shape = case.latent_shape()
        noised = family.unpack(kwargs["hidden_states"][..., : latent_shape[0]], (1, *latent_shape))
        given = {"sound": sounds, "sound_noise": sounds}  # between equals, whatever the timestep
        with torch.no_grad():
            video, sound = predict_all(family, pipe, noised, kwargs["timestep"], text, given)
            (alone,) = predict_all(family, pipe, noised, kwargs["timestep"], text)
        assert_same(family.pack(video), outputs[0])
        assert_same(sound[:, 0], outputs[1])
        assert not torch.allclose(alone, video, atol=1e-4)
    waveform = torch.rand(2, length * 1024, generator=torch.Generator().manual_seed(1)) - 0.5
    with torch.no_grad():
        latents = spec.encode(pipe, waveform, length)
        assert_same(spec.encode(pipe, waveform.flip(0), length), latents)
        expected = pipe.audio_vae(waveform.mean(0)[None]).sample  # encoded and decoded
        assert_same(pipe.audio_vae.decode(latents.mT / pipe.audio_vae.config.scaling_factor).sample, expected)


def gradients(outputs, weights):
    loss = outputs[0].square().mean() + 2 * outputs[1].square().mean()
    found = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
    return {name: value for name, value in zip(weights, found, strict=True) if value is not None}


def test_without_sound_the_video_depends_on_nothing_of_its_stream(tiny_model):
    family, folder = FAMILIES["ltx2"], str(tiny_model("ltx2"))
    case = Case(family, folder, load_pipe(family, folder), 9)
    noised, timestep, _ = case.objective().noise(*torch.randn(2, 1, *case.latent_shape()), torch.tensor([0.5]))
    text = collate_text(family.text, case.records()[:1])
    with torch.no_grad():
        (video,) = predict_all(family, case.pipe, noised, timestep, text)
        (same,) = predict_all(
            family, case.pipe, noised, timestep, {**text, "audio_prompt_embeds": -text["audio_prompt_embeds"]}
        )
    assert torch.equal(video, same)


class SoundAlone(SequentialPipelineBlocks):
    model_name = "minimax-h3"
    block_classes = [MiniMaxH3AudioDecodeStep]
    block_names = ["audio"]


def test_the_sound_of_a_sample_is_decoded_as_by_the_blocks_of_diffusers(tiny_model):
    family, folder = FAMILIES["minimax_h3"], str(tiny_model("minimax_h3"))
    pipe = load_pipe(family, folder)
    latents = torch.randn(2, 4, 12, generator=torch.Generator().manual_seed(1))
    blocks = diffusers.MiniMaxH3ModularPipeline(blocks=SoundAlone())
    blocks.update_components(audio_vae=pipe.audio_vae)
    with torch.no_grad():
        expected = blocks(audio_latents=latents, output="audio")
        found = pipe._waveform(latents)
    assert found.shape == (2, 12 * 800)
    assert_same(found[None], expected)


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.has(Sound)])
def test_what_encodes_sound_is_loaded_and_saved_in_float32_whatever_the_rest_is(name, tiny_model, tmp_path):
    family, folder = FAMILIES[name], tiny_model(name)
    base = BaseModel(family, ModelConfig(base=str(folder), weight_dtype="bfloat16"), torch.device("cpu"))
    with base.using(*base.component_names, on_device=False) as pipe:
        assert {pipe.transformer.dtype, pipe.vae.dtype} == {torch.bfloat16}
        save_folder(pipe, tmp_path / "saved", torch.float16, family.exact_components)
    for part in family.exact_components:
        own, saved = (load_file(next((path / part).glob("*.safetensors"))) for path in (folder, tmp_path / "saved"))
        assert all(torch.equal(saved[key], value) for key, value in own.items())
    denoiser = load_file(next((tmp_path / "saved" / "transformer").glob("*.safetensors")))
    assert {value.dtype for value in denoiser.values()} == {torch.float16}
    sampled = load_pipeline(str(tmp_path / "saved"), {}, torch.device("cpu"), dtype="bfloat16")
    assert (sampled.transformer.dtype, sampled.audio_vae.dtype) == (torch.bfloat16, torch.float32)
    request = ImageRequest("a cat", "", 1, 64, 64, 2, 1.0, frames=family.frame_step + family.frame_rest)
    ((_, clip),) = generate_images(sampled, [request], 1)
    assert isinstance(clip, ClipWithAudio)
