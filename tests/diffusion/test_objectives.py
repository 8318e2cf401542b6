"""Noising and targets: equal to diffusers' own schedulers, and to the formulas."""

import pytest
import torch
from diffusers import DDPMScheduler
from diffusers.training_utils import compute_snr

from modules.diffusion.objectives import Ddpm, Flow

SCHEDULE = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}
DTYPES = [torch.float32, torch.float64]
SHAPES = [(5, 4, 6, 8), (5, 4, 3, 6, 8)]  # pictures; videos have one axis more
U = [0.0, 0.2004, 0.5, 0.75, 0.9999]


def draws(shape=SHAPES[0], dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    clean, noise = (torch.randn(shape, generator=generator, dtype=dtype) for _ in range(2))
    return clean, noise, torch.tensor(U, dtype=dtype)


def below_one(dtype):
    return torch.nextafter(torch.ones(1, dtype=dtype), torch.zeros(1, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_ddpm_noises_as_diffusers_does(shape, dtype):
    clean, noise, u = draws(shape, dtype)
    scheduler = DDPMScheduler(**SCHEDULE)
    noised = Ddpm(scheduler.alphas_cumprod, "epsilon").noise(clean, noise, u)
    timestep = torch.tensor([0, 200, 500, 750, 999])
    assert torch.equal(noised.timestep, timestep)
    assert noised.timestep.dtype == torch.long
    assert torch.equal(noised.latents, scheduler.add_noise(clean, noise, timestep))
    assert noised.latents.dtype == dtype


def test_the_share_of_offset_noise_is_that_of_its_paper():
    """Kutsuna 2024, arXiv 2412.03134, algorithm 1 and equation 22, step by step."""
    alphas_cumprod = DDPMScheduler(**SCHEDULE).alphas_cumprod.double()
    before = torch.cat([torch.ones(1), alphas_cumprod[:-1]])
    alphas = alphas_cumprod / before
    sums = [1 / before[0].sqrt()]
    for t in range(1, 1000):
        c = (1 - alphas[t]) * before[t].sqrt() / (alphas[t] * (1 - before[t]))
        sums.append(sums[-1] + c * sums[-1] / before[t].sqrt())
    psi = torch.stack(sums) / (1 - alphas_cumprod).sqrt()
    u = torch.tensor(U, dtype=torch.float64)
    share = Ddpm(alphas_cumprod, "epsilon").offset_share(u)
    torch.testing.assert_close(share, (psi / psi[-1])[(u * 1000).long()], rtol=1e-9, atol=0)
    assert share[0] < 1e-3
    assert share[-1] == 1


def test_epsilon_predicts_the_noise():
    clean, noise, u = draws()
    noised = Ddpm(DDPMScheduler(**SCHEDULE).alphas_cumprod, "epsilon").noise(clean, noise, u)
    assert torch.equal(noised.target, noise)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_v_predicts_the_velocity_of_diffusers(shape, dtype):
    clean, noise, u = draws(shape, dtype)
    scheduler = DDPMScheduler(**SCHEDULE)
    noised = Ddpm(scheduler.alphas_cumprod, "v_prediction").noise(clean, noise, u)
    assert torch.equal(noised.target, scheduler.get_velocity(clean, noise, noised.timestep))
    assert noised.target.dtype == dtype


@pytest.mark.parametrize("dtype", DTYPES)
def test_ddpm_spreads_u_evenly_over_all_timesteps(dtype):
    steps = 1000
    u = (torch.arange(steps, dtype=dtype) + 0.5) / steps
    clean = torch.zeros(steps, 1, dtype=dtype)
    noised = Ddpm(DDPMScheduler(**SCHEDULE).alphas_cumprod, "epsilon").noise(clean, clean, u)
    assert torch.equal(noised.timestep, torch.arange(steps))


@pytest.mark.parametrize("dtype", DTYPES)
def test_u_just_below_one_is_the_last_timestep(dtype):
    clean = torch.zeros(1, 4, dtype=dtype)
    noised = Ddpm(DDPMScheduler(**SCHEDULE).alphas_cumprod, "epsilon").noise(clean, clean, below_one(dtype))
    assert noised.timestep.item() == 999


def test_u_that_rounding_made_one_is_the_last_timestep():
    # a draw of 53 bits that is nearer to 1 than to the next float32
    u = torch.tensor([1 - 2.0**-53], dtype=torch.float64).float()
    assert u.item() == 1.0
    clean = torch.ones(1, 4)
    objective = Ddpm(DDPMScheduler(**SCHEDULE).alphas_cumprod, "epsilon")
    assert objective.noise(clean, clean, u).timestep.item() == 999


def test_a_schedule_of_another_length_is_used_whole():
    scheduler = DDPMScheduler(num_train_timesteps=1100, **SCHEDULE)
    clean = torch.zeros(2, 4)
    noised = Ddpm(scheduler.alphas_cumprod, "epsilon").noise(clean, clean, torch.tensor([0.0, 0.99999]))
    assert noised.timestep.tolist() == [0, 1099]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_flow_goes_straight_from_data_to_noise(shape, dtype):
    clean, noise, u = draws(shape, dtype)
    noised = Flow().noise(clean, noise, u)
    for row, sigma in enumerate(u.tolist()):
        expected = (1 - sigma) * clean[row] + sigma * noise[row]
        assert torch.allclose(noised.latents[row], expected, rtol=0, atol=4 * torch.finfo(dtype).eps)
    assert torch.equal(noised.target, noise - clean)
    assert torch.equal(noised.timestep, u * 1000)
    assert (noised.latents.dtype, noised.target.dtype, noised.timestep.dtype) == (dtype, dtype, dtype)


def test_flow_begins_with_the_data_and_ends_below_pure_noise():
    clean, noise, _ = draws()
    start = Flow().noise(clean, noise, torch.zeros(5))
    assert torch.equal(start.latents, clean)
    assert start.timestep.tolist() == [0.0] * 5
    end = Flow().noise(clean, noise, below_one(torch.float32).expand(5))
    assert torch.allclose(end.latents, noise, atol=1e-6)
    assert (end.timestep < 1000).all()


def test_flow_timesteps_keep_their_precision_beside_bf16_latents():
    clean, noise, _ = draws(dtype=torch.bfloat16)
    u = torch.tensor([0.9960, 0.9965, 0.9970, 0.9975, 0.9980])
    noised = Flow().noise(clean, noise, u)
    assert noised.latents.dtype == torch.bfloat16
    assert torch.equal(noised.timestep, u * 1000)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_signal_to_noise_ratio_of_ddpm_is_that_of_diffusers(dtype):
    scheduler = DDPMScheduler(**SCHEDULE)
    u = torch.tensor(U, dtype=dtype)
    expected = compute_snr(scheduler, torch.tensor([0, 200, 500, 750, 999]))
    snr = Ddpm(scheduler.alphas_cumprod, "epsilon").snr(u)
    assert snr.dtype == dtype
    torch.testing.assert_close(snr.float(), expected, rtol=1e-4, atol=0)


def test_the_signal_to_noise_ratio_of_flow_is_that_of_its_path():
    clean, noise, u = draws()
    u = u.clamp(min=0.1)
    start = Flow().noise(clean, torch.zeros_like(noise), u).latents  # the signal alone
    end = Flow().noise(torch.zeros_like(clean), noise, u).latents  # the noise alone
    ratio = (start / clean)[:, 0, 0, 0] / (end / noise)[:, 0, 0, 0]
    torch.testing.assert_close(Flow().snr(u), ratio.square(), rtol=1e-4, atol=0)


def test_with_zero_terminal_snr_the_last_timestep_is_noise_alone():
    clean, noise, _ = draws()
    alphas = DDPMScheduler(**SCHEDULE, rescale_betas_zero_snr=True).alphas_cumprod
    noised = Ddpm(alphas, "v_prediction").noise(clean, noise, below_one(torch.float32).expand(5))
    assert torch.equal(noised.latents, noise)
    assert torch.equal(noised.target, -clean)
    assert Ddpm(alphas, "v_prediction").snr(below_one(torch.float32)).item() == 0
