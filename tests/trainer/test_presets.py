"""The presets train tiny models of their families."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from modules.config.families import load_families
from modules.config.files import apply_overrides, config_from_values
from modules.config.methods import METHODS
from modules.config.presets import load_preset, sized_preset
from tests.support.pictures import write_negatives
from tests.support.ports import free_port
from tests.support.preset_values import preset_values
from tests.support.StartedRun import StartedRun

if TYPE_CHECKING:
    from _pytest.mark import ParameterSet

# Each kind of memory-dependent change once: accumulation, bfloat16 weights with Adafactor, VAE checkpointing,
# quantization.
VARIANTS = ("sdxl-lora-8gb", "sd15-full-8gb", "sd15-vae-8gb", "zimage-lora-8gb")
BY_FAMILY = re.compile(r"family|model\.(base|denoiser)|workspace_dir|cache_dir|(concepts|sampling)\b.*")
SMALL = ("max_steps=2", "data.resolution=32", "output.format=diffusers", "tensorboard=false")
WORD = ("embeddings.0.placeholder=number", "embeddings.0.initial_text=dog")  # the default captions contain "number"

pytestmark = pytest.mark.slow


def to_train() -> Iterator[ParameterSet]:
    """Each value of a setting once, of the smallest model that has it, but for the amounts of numbers.

    All other choices of settings, presets for full fine-tunes and one of each other family only run with `-m proof`:
    test_matrix.py trains their families, too.
    """
    values = {name: of_one for name, of_one in preset_values().items() if name != "demo"}
    sizes = {name: info.typical_bytes for name, info in load_families().items()}
    families, choices, tried = set(), set(), set()
    for name in sorted(values, key=lambda name: (values[name]["method"] != "full", sizes[values[name]["family"]])):
        family, is_full = values[name]["family"], values[name]["method"] == "full"
        own = [(path, value) for path, value in leaves(values[name]) if not BY_FAMILY.fullmatch(path)]
        choice = frozenset((path, repr(value)) for path, value in own)
        kinds = {(path, kind(value)) for path, value in own}
        if not kinds <= tried:
            yield pytest.param(name, id=name)
        elif choice not in choices or is_full or family not in families:
            yield pytest.param(name, id=name, marks=pytest.mark.proof(family=family))
        families.add(family)
        choices.add(choice)
        tried |= kinds


def kind(value: Any) -> str:
    """Of numbers, only whether it is 0, which turns many settings off."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"{value != 0}" if is_number else repr(value)


def leaves(values: dict[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{above}{name}.")
        else:
            yield above + name, value


@pytest.fixture
def small(picture_folder, family_data, tmp_path, tiny_model) -> Callable[[dict], list[str]]:
    """Returns a function that returns the "path=value" changes for a quick run of a preset on a tiny model."""

    def changes(values: dict) -> list[str]:
        paths = {
            "workspace_dir": tmp_path / "run",
            "cache_dir": tmp_path / "cache",
            "model.base": tiny_model(values["family"]),
            "concepts.0.path": picture_folder(),
            "data.bucket_step": max(16, load_families()[values["family"]].align),
        }
        if "denoiser" in values["model"]:  # in place of the base's
            paths["model.denoiser"] = paths["model.base"]
        paths |= family_data(values["family"])
        if "source_folder" in values.get("concepts", [{}])[0]:
            paths["concepts.0.source_folder"] = paths["concepts.0.path"]
        if METHODS[values["method"]].lists_pairs:
            paths["concepts.0.pair_folder"] = write_negatives(tmp_path / "rejected", paths["concepts.0.path"])
        words = WORD if "embeddings" in values else ()
        for number in range(len(values.get("sampling", {}).get("samples", []))):
            side = 2 * paths["data.bucket_step"]
            sample = {"width": side, "height": side, "steps": 2, "enabled": number == 0}
            paths |= {f"sampling.samples.{number}.{name}": value for name, value in sample.items()}
        return [*(f"{path}={value}" for path, value in paths.items()), *SMALL, *words]

    return changes


@pytest.mark.parametrize("name", [*to_train(), *VARIANTS])
def test_two_steps_of_a_preset_train(name, train, small):
    values = sized_preset(name)
    trainer = train(config_from_values(apply_overrides(values, small(values)), name))
    assert trainer.step == 2
    assert np.isfinite(trainer.callbacks.losses).all()
    assert trainer.callbacks.saved
    assert bool(trainer.callbacks.samples) == trainer.config.sampling.makes_samples


@pytest.mark.skipif(sys.platform != "linux", reason="finds the run's processes in /proc")
def test_a_preset_for_two_gpus_trains_on_two_ranks_by_its_name_alone(small, tmp_path):
    name = "sd15-lora-8gb-x2"
    settings = tmp_path / "settings.yaml"
    settings.write_text(f"initial_port: '{free_port()}'\nuse_torchrun: false\n", encoding="utf-8")
    changes = [f"--set={change}" for change in small(load_preset(name))]
    with StartedRun("alone", settings, tmp_path / "run", f"--preset={name}", *changes, forked=True) as run:
        assert run.wait() == [0], run.output
        assert "Number of processes: 2" in run.output
        for rank in (0, 1):
            losses = run.losses(rank)
            assert list(losses) == [1, 2]
            assert np.isfinite(list(losses.values())).all()
        assert list((tmp_path / "run" / "models").iterdir())
