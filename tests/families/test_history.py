"""What a section of a video sees of those before it, in training as in diffusers' pipeline."""

from functools import partial

import numpy as np
import pytest
import torch
from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution

from modules.data.conditions import conditions_of
from modules.data.conditions.section_history import history_of
from modules.families.conditions import SectionHistory
from modules.families.frames import channel_stats
from modules.families.latents import decode_latents, encode_pieces, encode_pixels
from modules.families.registry import FAMILIES
from modules.families.TextEncoding import collate_text
from tests.families.test_conformance import PROMPTS, Case, assert_same, largest_difference, load_pipe

NAMES = [name for name, family in FAMILIES.items() if family.has(SectionHistory)]


@pytest.fixture(scope="module", params=NAMES)
def two_sections(request, tiny_model) -> Case:
    family, folder = FAMILIES[request.param], str(tiny_model(request.param))
    return Case(family, folder, load_pipe(family, folder), 2 * family.fact(SectionHistory, "section"))


def test_sections_are_predicted_and_decoded_as_the_pipeline_does_it(two_sections):
    case, calls = two_sections, []
    pipe, spec = case.same_pipe(), case.family.condition(SectionHistory)
    step = pipe.scheduler.step

    def spy(prediction, timestep, sample, *args, **kwargs):
        made = step(prediction, timestep, sample, *args, **kwargs)
        calls.append((prediction.clone(), timestep, sample.clone(), made[0]))
        return made

    pipe.scheduler.step = spy
    video = case.make_picture(pipe, prompt=[PROMPTS[0]])
    text = collate_text(case.family.text, case.records()[:1])
    latents = torch.cat([made for *_, made in calls[2::3]], 2)
    assert len(calls) == 6
    for number, (prediction, timestep, sample, _) in enumerate(calls):
        before = latents[0, :, : number // 3 * spec.latents]
        predict = partial(case.predict, sample, timestep.reshape(1), text)
        assert_same(predict(history=history_of(before, spec.before, spec.before)[None]), prediction)
        if number >= 3:
            alone, first = (history_of(before, spec.before, seen)[None] for seen in (None, 0))
            assert largest_difference(predict(history=alone), prediction) > 1e-4
            assert largest_difference(predict(history=first), predict(history=alone)) > 1e-4
    with torch.no_grad():
        decoded = (decode_latents(case.family, pipe.vae, latents) / 2 + 0.5).clamp(0, 1)
    assert decoded.shape[2] == case.frames
    assert largest_difference(decoded[:, :, : video.shape[2]], video) <= 4e-6


def test_sections_are_encoded_as_the_pipeline_does_it(two_sections, monkeypatch):
    case = two_sections
    monkeypatch.setattr(DiagonalGaussianDistribution, "sample", lambda self, generator=None: self.mode())
    pixels = torch.rand(1, 3, case.frames, case.height, case.width) * 2 - 1
    vae, latents = case.pipe.vae, case.family.fact(SectionHistory, "latents")
    mean, scale = channel_stats(vae)
    with torch.no_grad():
        _, theirs = case.pipe.prepare_video_latents(pixels, mean, scale, latents, torch.float32, "cpu")
        ours = encode_pixels(case.family, vae, pixels)
        pieces = iter(pixels.split([1, case.family.frame_step, case.frames - case.family.frame_step - 1], 2))
        in_pieces = encode_pieces(case.family, vae, pieces)
    assert ours.shape[1:] == case.latent_shape()
    assert largest_difference(ours, theirs) <= 1e-5
    assert largest_difference(ours, in_pieces) <= 1e-5


@pytest.mark.parametrize("name", NAMES)
def test_a_step_draws_a_section_and_what_it_sees_of_those_before_it(name):
    """The shares are those of the family; latents tell their frame."""
    family, frames = FAMILIES[name], 5
    (condition,), spec = conditions_of(family), family.condition(SectionHistory)
    size = spec.latents
    record = {"latents": torch.arange(1.0, 1 + frames * size).view(1, -1, 1, 1).expand(1, -1, 12, 12)}
    sections, seen, levels, untouched = [], [], [], 0
    for sample in range(300):
        draw = (3, 1, sample, 0)
        part = condition.part(record, draw)
        again = condition.part(record, draw)
        assert all(torch.equal(part[key], again[key]) for key in part)
        start = int(part["latents"][0, 0, 0, 0]) - 1
        sections.append(start // size)
        assert torch.equal(part["latents"], record["latents"][:, start : start + size])
        if start:
            history = part["history"]
            there = history.flatten(2).any(2).any(0).tolist()
            seen.append(sum(there[1:]) if there[0] else None)
            clean = history_of(record["latents"][:, :start], spec.before, seen[-1])
            assert clean.flatten(2).any(2).any(0).tolist() == there
            untouched += torch.equal(clean, history) and any(there)
            levels += [
                1 - history[:, at].mean() / clean[:, at].mean() for at in range(len(there)) if clean[0, at].any()
            ]
        else:
            assert not part["history"].any()
    assert np.bincount(sections).min() > 0.7 * 300 / frames
    shares = {number: seen.count(number) / len(seen) for number in set(seen)}
    cut = (1 - spec.absent) * spec.shortened / 3
    assert shares[None] == pytest.approx(spec.absent, abs=0.08)
    assert set(shares) == {None, 0, size, 2 * size, spec.before}
    assert shares[0] == pytest.approx(cut, abs=0.04)
    assert untouched / (len(seen) - seen.count(None)) == pytest.approx(spec.clean, abs=0.06)
    assert max(levels) <= spec.noise + 0.05
    assert np.mean(levels) == pytest.approx((1 - spec.clean) * spec.noise / 2, abs=0.03)
