"""Models of videos with sound: what is predicted of both is what the pipeline feeds its two schedulers."""

from functools import wraps

import diffusers
import pytest
import torch

from modules.families.conditions import Sound
from modules.families.prediction import predict_all
from modules.families.registry import FAMILIES
from modules.families.TextEncoding import collate_text
from tests.families.test_conformance import PROMPTS, Case, assert_same, load_pipe


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.has(Sound)])
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
