"""What settings of noise and loss put into batches; every draw of them is a hash."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from modules.config.ConceptConfig import ConceptConfig
from modules.config.DiffusionConfig import DiffusionConfig
from modules.config.LossConfig import LossConfig
from modules.config.ResolutionShift import ResolutionShift
from modules.data.CaptionSource import CaptionSource
from modules.data.epoch_plan import MicroBatch
from modules.data.records import CachedRecords
from modules.data.SampleSource import SampleSource
from modules.data.TensorCache import TensorCache
from modules.diffusion.timesteps import TimestepDistribution, logit_normal, resolution_shift, shifted

SAMPLES = ((0, 0), (1, 0), (2, 1))


@pytest.fixture
def make_source(tmp_path):
    """A function that makes a source of three samples: one with a mask, one plain, one of a regularisation concept."""

    def make(diffusion=None, loss=None, **options) -> SampleSource:
        concepts = [ConceptConfig(path="a"), ConceptConfig(path="b", regularisation=True)]
        dataset = SimpleNamespace(concepts=concepts, concept_index=np.array([0, 0, 1]))
        latents = TensorCache(tmp_path, "latents", 0)
        for number in range(3):
            mask = {"mask": torch.full((1, 32, 48), 0.25)} if number == 0 else {}
            latents.put(f"l{number}", {"latents": torch.full((4, 32, 48), float(number)), **mask})
        return SampleSource(
            dataset=dataset,
            buckets=None,
            pictures=CachedRecords(latents, ["l0", "l1", "l2"], pytest.fail),
            captions=CaptionSource(dataset, [("a",), ("b",), ("c",)], 1, None),
            text=None,
            seed=1,
            diffusion=DiffusionConfig(**(diffusion or {})),
            loss=LossConfig(**(loss or {})),
            **{"caption_dropout": 0.0, "dtype": torch.float32, **options},
        )

    return make


def batch_of(source, *samples, epoch=0):
    return source.batch(MicroBatch(np.array(samples or SAMPLES), 0, True), epoch)


def test_by_default_batches_hold_nothing_more(make_source):
    batch = batch_of(make_source())
    assert batch.input_noise is batch.mask is batch.prior is batch.unconditional is None
    assert set(vars(batch)) >= {"input_noise", "mask", "prior", "unconditional"}


def test_timesteps_are_the_same_draws_in_another_distribution(make_source):
    plain = batch_of(make_source()).u.double()
    timesteps = TimestepDistribution(logit_normal(0, 1), ResolutionShift(), 0.1, 0.9)
    drawn = batch_of(make_source(timesteps=timesteps)).u
    expected = [timesteps.at(u, (4, 32, 48)) for u in plain.tolist()]
    assert drawn.tolist() == pytest.approx(expected, abs=1e-6)
    shift = resolution_shift(16 * 24, ResolutionShift())
    by_hand = 0.1 + 0.8 * shifted(logit_normal(0, 1)(plain[0].item()), shift)
    assert drawn[0].item() == pytest.approx(by_hand, abs=1e-6)


def test_offset_noise_is_the_same_all_over_a_channel(make_source):
    plain, offset = batch_of(make_source()).noise, batch_of(make_source({"offset_noise": 0.5})).noise
    added = offset - plain
    assert torch.allclose(added, added[..., :1, :1].expand_as(added), atol=1e-6)
    assert len(added[..., 0, 0].flatten().round(decimals=4).unique()) == 12  # a value for each sample and channel
    twice = batch_of(make_source({"offset_noise": 1.0})).noise - plain
    torch.testing.assert_close(twice, 2 * added, rtol=1e-4, atol=1e-5)


def test_offset_noise_by_timestep_is_kept_apart_from_the_noise(make_source):
    at_once = batch_of(make_source({"offset_noise": 0.5, "offset_noise_random": True}))
    by_timestep = {"offset_noise": 0.5, "offset_noise_random": True, "offset_noise_by_timestep": True}
    apart = batch_of(make_source(by_timestep))
    assert torch.equal(apart.noise, batch_of(make_source()).noise)
    assert apart.offset.shape == (*apart.noise.shape[:2], 1, 1)
    assert torch.equal(apart.noise + apart.offset, at_once.noise)
    assert at_once.offset is None


def test_offset_noise_is_normal(make_source):
    source, plain = make_source({"offset_noise": 1.0}), make_source()
    added = [(batch_of(source, epoch=e).noise - batch_of(plain, epoch=e).noise)[..., 0, 0] for e in range(150)]
    values = torch.stack(added).flatten()  # 1800
    assert abs(values.mean()) < 0.1
    assert abs(values.std() - 1) < 0.07


def test_adaptive_offset_noise_grows_with_the_mean_of_the_latents(make_source):
    plain = batch_of(make_source()).noise
    fixed = batch_of(make_source({"offset_noise": 0.5})).noise - plain
    batch = batch_of(make_source({"offset_noise": 0.5, "offset_noise_adaptive": 0.2}))
    means = batch.latents.mean((2, 3), keepdim=True).abs()
    torch.testing.assert_close(batch.noise - plain, fixed * (1 + 0.4 * means), rtol=1e-3, atol=1e-4)
    none = batch_of(make_source({"offset_noise": 0.5, "offset_noise_adaptive": -1.0}))
    assert torch.equal((none.noise == plain).flatten(2).all(2), (means[..., 0, 0] >= 0.5))  # never below 0


def test_random_offset_noise_is_at_most_as_strong(make_source):
    plain = batch_of(make_source()).noise
    full = batch_of(make_source({"offset_noise": 0.5})).noise - plain
    part = batch_of(make_source({"offset_noise": 0.5, "offset_noise_random": True})).noise - plain
    ratio = (part / full)[..., 0, 0]
    assert torch.allclose(ratio, ratio[:, :1].expand_as(ratio), atol=1e-3)  # one strength for a sample
    assert (ratio > 0).all()
    assert (ratio < 1).all()
    assert len(ratio[:, 0].round(decimals=3).unique()) == 3


def test_multires_noise_adds_large_areas_and_keeps_the_variance(make_source):
    plain, noise = batch_of(make_source()).noise, batch_of(make_source({"multires_noise_iterations": 6})).noise
    torch.testing.assert_close(noise.std((1, 2, 3)), plain.std((1, 2, 3)))
    means = [torch.nn.functional.avg_pool2d(values, 4).std() for values in (plain, noise)]  # of 4 x 4 cells
    assert means[1] > 1.05 * means[0]
    stronger = batch_of(make_source({"multires_noise_iterations": 6, "multires_noise_discount": 0.8})).noise
    assert torch.nn.functional.avg_pool2d(stronger, 4).std() > 1.5 * means[0]


def test_input_noise_is_the_noise_and_a_little_of_its_own(make_source):
    batch = batch_of(make_source({"input_perturbation": 0.1}))
    assert torch.equal(batch.noise, batch_of(make_source()).noise)
    own = (batch.input_noise - batch.noise) / 0.1
    assert abs(own.std() - 1) < 0.02
    assert abs((own * batch.noise).mean()) < 0.02  # independent


def test_pictures_without_a_mask_are_white(make_source):
    mask = batch_of(make_source(loss={"masked_training": True, "unmasked_probability": 0.0})).mask
    assert mask.shape == (3, 1, 32, 48)
    assert mask[:, 0, 0, 0].tolist() == [0.25, 1.0, 1.0]


def test_a_share_of_the_samples_ignores_its_mask(make_source):
    source = make_source(loss={"masked_training": True, "unmasked_probability": 0.3})
    ignored = [batch_of(source, (0, 0), epoch=epoch).mask is None for epoch in range(300)]
    assert 60 < sum(ignored) < 120
    assert [batch_of(source, (0, 0), epoch=e).mask is None for e in range(20)] == ignored[:20]


def test_a_batch_in_which_all_is_learnt_has_no_mask(make_source):
    source = make_source(loss={"masked_training": True, "unmasked_probability": 0.0})
    assert batch_of(source, (1, 0), (2, 1)).mask is None


def test_samples_of_regularisation_concepts_are_marked_where_asked(make_source):
    source = make_source(loss={"prior_by_frozen_model": True})
    assert batch_of(source).prior.tolist() == [False, False, True]
    assert batch_of(source, (0, 0), (1, 0)).prior is None


def test_dropped_captions_are_marked_where_their_conditioning_is_zero(make_source):
    source = make_source(caption_dropout=0.5, zero_unconditional=True)
    batches = [batch_of(source, epoch=epoch) for epoch in range(20)]
    for batch in batches:
        marked = [False] * 3 if batch.unconditional is None else batch.unconditional.tolist()
        assert [prompt == "" for prompt in batch.prompts] == marked
    assert any(batch.unconditional is not None for batch in batches)
    assert batch_of(make_source(caption_dropout=1.0)).unconditional is None


def test_a_sample_has_the_same_draws_in_every_batch(make_source):
    source = make_source(
        {"offset_noise": 0.1, "offset_noise_random": True, "multires_noise_iterations": 4, "input_perturbation": 0.1},
        {"masked_training": True, "unmasked_probability": 0.0},
    )
    together, alone = batch_of(source, *SAMPLES, epoch=3), batch_of(source, SAMPLES[0], epoch=3)
    for name in ("noise", "input_noise", "mask", "u"):
        assert torch.equal(getattr(together, name)[:1], getattr(alone, name)), name


def test_everything_moves_to_the_device(make_source):
    source = make_source({"input_perturbation": 0.1}, {"masked_training": True, "prior_by_frozen_model": True})
    moved = batch_of(source).to(torch.device("meta"))
    for name in ("input_noise", "mask", "prior", "noise"):
        assert getattr(moved, name).device.type == "meta", name
