"""The timesteps that are trained by default against the formulas of the makers' or peers' code, and the docs' table."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from modules.config.DiffusionConfig import DiffusionConfig
from modules.diffusion.timestep_sampling import timestep_distribution
from modules.diffusion.timesteps import TimestepDistribution, logit_normal, parabola, stretched_logit_normal
from modules.families.registry import FAMILIES

METHODS_PAGE = Path(__file__).parents[2] / "docs/methods.md"
SQUARE = (16, 128, 128)  # 1024 x 1024 pixels
COUNT = 200_000
# family, shape of the latents, the sampling shift of the published scheduler
CASES = {
    "Z-Image": ("zimage", SQUARE, {"shift": 6.0}),
    "Z-Image Turbo": ("zimage", SQUARE, {"shift": 3.0}),
    "Wan 2.1 FLF2V": ("wan21_flf2v", (16, 13, 60, 104), {"flow_shift": 16.0}),
    "Chroma": ("chroma", SQUARE, {"use_dynamic_shifting": True}),
    "Ideogram 4 at 1024 x 1024": ("ideogram4", (128, 64, 64), {"shift": 1.0}),
    "LTX-2, 49 frames of 512 x 512": ("ltx2", (128, 7, 16, 16), {"use_dynamic_shifting": True, **{
        "base_shift": 0.95, "max_shift": 2.05, "base_image_seq_len": 1024, "max_image_seq_len": 4096}}),
    "LTX-2, 121 frames of 768 x 512": ("ltx2", (128, 16, 16, 24), {"use_dynamic_shifting": True, **{
        "base_shift": 0.95, "max_shift": 2.05, "base_image_seq_len": 1024, "max_image_seq_len": 4096}}),
}  # fmt: skip

WITHOUT_SAMPLING_SHIFT = {"Ideogram 4 at 1024 x 1024"}  # which its scheduler does not tell


def of_makers(label: str, rng: np.random.Generator) -> np.ndarray:
    """Drawn as the sources named in the family files do."""
    normal = rng.normal(size=COUNT)
    if label.startswith("Z-Image"):
        return 1 / (1 + np.exp(-normal))
    if label.startswith("Wan"):
        t = 1 / (1 + np.exp(-normal))
        return 3 * t / (1 + 2 * t)
    if label == "Chroma":
        x = np.linspace(0, 1, 1000)
        density = -7.7 * (x - 0.5) ** 2 + 2
        return rng.choice(x, COUNT, p=density / density.sum())
    if label.startswith("Ideogram"):
        mean = 0.5 * math.log(1024 * 1024 / (512 * 512))
        return 1 / (1 + np.exp(-(1.5 * normal + mean)))
    _, frames, height, width = CASES[label][1]
    mean = 0.95 + (2.05 - 0.95) / (4096 - 1024) * (frames * height * width - 1024)
    t, low, high = (1 / (1 + np.exp(-(z + mean))) for z in (normal, -2.5758, 3.0902))
    stretched = (t - low) / (high - low)
    mirrored = np.clip(np.where(stretched >= 1e-3, stretched, 2e-3 - stretched), 0, 1)
    return np.where(rng.random(COUNT) > 0.1, mirrored, 1e-3 + (1 - 1e-3) * rng.random(COUNT))


def ours(label: str, timesteps: str) -> np.ndarray:
    family, shape, scheduler = CASES[label]
    distribution = timestep_distribution(FAMILIES[family], scheduler, DiffusionConfig(timesteps=timesteps))
    return np.array([distribution.at((number + 0.5) / 4000, shape) for number in range(4000)])


def shares(t: np.ndarray) -> tuple[float, ...]:
    """The median, and the shares below 0.3, below 0.5 and above 0.9."""
    return float(np.median(t)), float((t < 0.3).mean()), float((t < 0.5).mean()), float((t > 0.9).mean())


def row(label: str, kind: str, t: np.ndarray) -> str:
    median, *rest = shares(t)
    return f"| {label} | {kind} | {median:.2f} | " + " | ".join(f"{100 * share:.0f} %" for share in rest) + " |"


@pytest.mark.parametrize("label", CASES)
def test_timesteps_are_those_of_the_makers_code(label):
    theirs = of_makers(label, np.random.default_rng(0))
    found = ours(label, "trained")
    assert shares(found) == pytest.approx(shares(theirs), abs=0.01)
    places = np.linspace(0, 1, 101)
    both = [np.searchsorted(np.sort(t), places) / len(t) for t in (found, theirs)]
    np.testing.assert_allclose(*both, atol=0.01)


def rows() -> list[str]:
    """Those of the table in the docs."""
    found = []
    for label in CASES:
        found.append(row(label, "`trained`", ours(label, "trained")))
        if label not in WITHOUT_SAMPLING_SHIFT:
            found.append(row(label, "`family`", ours(label, "family")))
    others = timestep_distribution(FAMILIES["sd3"], {"shift": 3.0}, DiffusionConfig())
    divided = replace(others, boundary=FAMILIES["wan22_a14b"].expert_boundary, share_above=0.5)
    for label, one in (("others, with a sampling shift of 3", others), ("Wan 2.2 A14B, half and half", divided)):
        found.append(row(label, "both", np.array([one.at((number + 0.5) / 4000, SQUARE) for number in range(4000)])))
    return found


def test_the_table_in_the_docs_is_that_of_the_code():
    page = METHODS_PAGE.read_text(encoding="utf-8")
    assert not [line for line in rows() if line not in page]


@pytest.mark.parametrize("shift", [1.0, 2.5, 33.0, 1e5, 1e20])
def test_the_ends_of_special_distributions_stay_in_range_and_in_order(shift):
    stretched = stretched_logit_normal(1.0, 0.1)
    for inverse_cdf in (parabola(2.0, 7.7), parabola(1.0, 4.0), lambda u: stretched(u, shift)):
        places = [inverse_cdf(u) for u in (0.0, 2.0**-53, 1e-6, 0.3, 0.7, 1 - 1e-6, 1 - 2.0**-53)]
        assert places == sorted(places)
        assert 0 <= places[0] < places[3] < places[4] <= places[-1] <= 1


# --- experts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_each_expert_gets_its_share_and_keeps_the_distribution_of_its_own_timesteps(share):
    plain = TimestepDistribution(logit_normal(0, 1), 3.0)
    divided = TimestepDistribution(logit_normal(0, 1), 3.0, boundary=0.875, share_above=share)
    draws = (np.arange(20000) + 0.5) / 20000
    before, after = (np.array([one.at(u, SQUARE) for u in draws]) for one in (plain, divided))
    assert (after >= 0.875).mean() == pytest.approx(share, abs=1e-4)
    assert (before >= 0.875).mean() == pytest.approx(0.198, abs=1e-3)
    for above in (True, False):
        quantiles = [np.quantile(t[(t >= 0.875) == above], [0.1, 0.5, 0.9]) for t in (before, after)]
        np.testing.assert_allclose(*quantiles, atol=2e-3)
    assert (np.diff(after) >= 0).all()


def test_a_share_has_no_effect_where_one_expert_has_all_timesteps():
    plain = TimestepDistribution(logit_normal(0, 1), 3.0, low=0.9)
    divided = TimestepDistribution(logit_normal(0, 1), 3.0, low=0.9, boundary=0.875, share_above=0.5)
    assert [plain.at(u, SQUARE) for u in (0.0, 0.3, 0.9)] == [divided.at(u, SQUARE) for u in (0.0, 0.3, 0.9)]
