"""A condition is its spec and its file: one that no other file knows trains, caches, resumes and samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from modules.config.files import save_config
from modules.data.prepare import prepare_data
from modules.data.RunPlan import samples_digest
from modules.families.registry import FAMILIES
from tests.support.made_up_condition import FAMILY, registered, train_with_tones
from tests.support.RankPool import run_alone
from tests.support.run_summaries import summary_text

SETTINGS = (
    "batch_size=4",
    "batch_size_mode=global",
    "model.weight_dtype=float64",
    "sampling.at_end=true",
)


@pytest.fixture
def run_in(make_config, tmp_path):
    """A function that trains with tones in a folder, by `run`, and returns the outcome of each rank."""

    def train(folder, run, steps, *, resume=False, cache="", keep=False):
        size = "width: 32, height: 32, steps: 1"
        given = [f"{{prompt: a cat, reference: {tmp_path / name}, {size}}}" for name in ("low.tone", "high.tone")]
        samples = f"sampling.samples=[{', '.join(given)}, {{prompt: '', {size}}}]"
        paths = f"workspace_dir={tmp_path / folder}", f"cache_dir={tmp_path / (cache or folder) / 'cache'}"
        config = make_config(*SETTINGS, samples, *paths, f"max_steps={steps}")
        for number, path in enumerate([] if keep else sorted(Path(config.concepts[0].path).glob("*.png"))):
            path.with_suffix(".tone").write_text(str(number / 10))
        save_config(config, tmp_path / "settings.yaml")
        ranks = run(train_with_tones, config=str(tmp_path / "settings.yaml"), resume=resume)
        return config, [ranks] if isinstance(ranks, dict) else ranks

    (tmp_path / "low.tone").write_text("0.5")
    (tmp_path / "high.tone").write_text("7.5")
    return train


def test_a_condition_that_no_other_file_knows_trains_resumes_and_samples_alike_on_two_ranks(run_in, two_ranks):
    config, (alone,) = run_in("alone", run_alone, 4)
    _, before = run_in("together", two_ranks.run, 2)
    _, after = run_in("together", two_ranks.run, 4, resume=True)
    assert before[0]["losses"] + after[0]["losses"] == pytest.approx(alone["losses"], rel=1e-9)
    assert after[0]["digest"] == after[1]["digest"]
    assert any("Caching images" in status for status in before[0]["statuses"])
    assert not any("Caching images" in status for status in after[0]["statuses"])
    with registered():
        assert "Tones:         11 images have one" in summary_text(config)
    low, high, of_dataset = (samples_of(config)[number] for number in range(3))
    assert not np.array_equal(np.asarray(low), np.asarray(high))
    assert of_dataset.text["references"].endswith(".tone',)")


def test_a_changed_tone_is_encoded_again_and_its_file_is_a_part_of_the_data(run_in):
    config, _ = run_in("run", run_alone, 1)
    files = sorted(Path(config.concepts[0].path).glob("*.tone"))
    cached = entries(config)
    assert len(cached) == len(files)
    files[3].write_text("2.5")
    _, (again,) = run_in("again", run_alone, 1, cache="run", keep=True)
    assert len(entries(config) - cached) == 1
    files[5].write_text("no number")
    _, (without,) = run_in("without", run_alone, 1, cache="run", keep=True)
    assert any("its tone can't be read" in warning for warning in without["warnings"])
    assert not any("left out" in warning for warning in again["warnings"])
    with registered():
        own = samples_digest(prepare_data(config, FAMILIES[FAMILY])[0])
    assert own != samples_digest(prepare_data(config, FAMILIES[FAMILY])[0])


def entries(config) -> set[Path]:
    return set(Path(config.cache_dir).rglob("latents/**/*.safetensors"))


def samples_of(config) -> list[Image.Image]:
    return [Image.open(path) for path in sorted(Path(config.workspace_dir).rglob("samples/**/*.png"))]
