"""What presets need by simulation: up to date, below the memory in their names, and close to the quick estimate."""

from __future__ import annotations

import json

import pytest

from modules.config.files import config_from_values
from modules.config.presets import list_presets, load_preset, sized_preset
from modules.machine.architectures import SIMULATED_FILE, load_architectures, load_corrections
from modules.machine.memory_estimate import GIB, estimate_memory
from scripts import memory
from scripts.memory import digest, load_results, presets_by_hash, result_of, simulation
from tests.support.RankPool import RankPool
from tests.support.simulated_runs import simulated

RESULTS = load_results()
BY_HASH = dict(presets_by_hash())
SPARE = 0.05
TOLERANCE = 0.1


def settings(name: str):
    return config_from_values(sized_preset(name))


def results():
    """(name of the preset, its settings, the result), for each preset and size that has one."""
    for key, kept in RESULTS.items():
        names, config = BY_HASH[key]
        for name in names:
            yield name, config, simulation(kept)


def test_no_result_is_out_of_date():
    stale = [value["presets"][0] for key, value in RESULTS.items() if key not in BY_HASH]
    assert not stale, f"run `python scripts/memory.py --write`: {', '.join(stale)}"


def test_presets_and_families_that_are_no_more_are_dropped_and_all_others_kept(monkeypatch):
    assert memory.kept_text() == SIMULATED_FILE.read_text(encoding="utf-8")
    gone = next(preset for preset in list_presets() if preset.name == "sd15-vae")
    monkeypatch.setattr(memory, "list_presets", lambda: [preset for preset in list_presets() if preset != gone])
    others = [name for name in load_architectures() if name != "sd15"]
    monkeypatch.setattr(memory, "load_architectures", lambda: others)
    kept = json.loads(memory.kept_text())
    assert "sd15" not in kept["corrections"]
    assert len(kept["corrections"]) == len(load_corrections()) - 1
    dropped = RESULTS.keys() - kept["results"].keys()
    assert dropped
    assert all(name.startswith("sd15-vae-") for key in dropped for name in RESULTS[key]["presets"])


def test_every_preset_with_sizes_is_simulated_at_each_of_them():
    simulated = {name for kept in RESULTS.values() for name in kept["presets"]}
    assert {name for names, _ in BY_HASH.values() for name in names} - simulated == set()


def test_two_predictions_that_get_gradients_take_less_than_twice_as_much_as_one():
    """Gradient checkpointing computes the blocks of one of them again at a time."""
    one, both = (settings(name) for name in ("sdxl-lora-12gb", "sdxl-preference-8gb"))
    assert one.batch_size == both.batch_size // both.gradient_accumulation_steps
    assert 1.5 < result_of(both).activations / result_of(one).activations < 2


def test_source_clips_that_a_preset_is_made_for_are_simulated_though_its_settings_name_none():
    assert "concepts" not in load_preset("ltx2-v2v-lora-48gb")
    alone, beside = (result_of(settings(name)) for name in ("ltx2-lora-48gb", "ltx2-v2v-lora-48gb"))
    assert beside.activations > 2 * alone.activations  # twice the tokens, each with a timestep of its own


def test_every_preset_fits_into_the_memory_in_its_name_with_a_share_to_spare():
    small = {name: result.peak / GIB for name, _, result in results()}
    assert small
    for name, needed in small.items():
        available = int(name.rpartition("-")[2].removesuffix("gb"))
        assert needed <= (1 - SPARE) * available, name


def test_the_estimate_is_close_to_the_simulation():
    ratios = {name: estimate_memory(config).peak / result.peak for name, config, result in results()}
    far = {name: round(ratio, 2) for name, ratio in ratios.items() if not 1 - TOLERANCE <= ratio <= 1 + TOLERANCE}
    assert not far


def test_settings_that_need_other_memory_have_no_result():
    name = next(iter(RESULTS.values()))["presets"][0]
    config = settings(name)
    assert result_of(config) is not None
    assert result_of(config_from_values({**load_preset(name), "batch_size": 7})) is None
    assert digest(config) == digest(config_from_values({**load_preset(name), "epochs": 7}))


def test_a_new_version_of_the_simulation_leaves_no_result_valid(monkeypatch):
    monkeypatch.setattr(memory, "SIMULATION_VERSION", memory.SIMULATION_VERSION + 1)
    assert not RESULTS.keys() & dict(presets_by_hash()).keys()


@pytest.fixture(scope="module")
def process(tmp_path_factory):
    pool = RankPool(1, tmp_path_factory.mktemp("simulated"))
    yield pool
    pool.close()


@pytest.mark.parametrize("name", ["sd15-lora-8gb", "sd15-vae-8gb", "sd15-embedding-8gb", "sd15-slider-8gb"])
def test_simulated_anew_a_preset_has_the_kept_result(name, process):
    kept = result_of(settings(name))
    (again,) = process.run(simulated, preset=name)
    assert kept is not None
    assert again == pytest.approx(vars(kept), rel=0.01)


def test_a_part_that_is_known_to_the_byte_is_simulated_so(process):
    kept = result_of(settings("sd15-full-24gb"))
    unet = load_architectures()["sd15"].denoiser
    # each tensor takes a multiple of 512 bytes
    assert kept.weights == pytest.approx(4 * unet, rel=1e-3)
    assert (kept.gradients, kept.average) == (4 * unet, 4 * unet)
    assert kept.optimizer == pytest.approx(8 * unet, rel=1e-4)


@pytest.mark.proof
def test_a_fused_backward_pass_is_simulated_with_the_gradient_of_one_matrix(process):
    kept = result_of(settings("sd15-full-12gb"))
    changes = ["optimizer.fused_backward=true", "optimizer.max_grad_norm=0"]
    (fused,) = process.run(simulated, preset="sd15-full-12gb", changes=changes)
    assert (fused["weights"], fused["gradients"]) == (kept.weights, 0)
    saved = kept.training - simulation(fused).training
    # all activations are there when the first matrix is updated, while other gradients come as activations go
    assert 0 < saved < kept.gradients
