"""Published models of a family that have presets of their own, in other sizes or versions."""

from dataclasses import replace

import pytest

from modules.config.families import load_families, model_of, variant_of
from modules.config.ModelConfig import ModelConfig
from modules.config.presets import list_presets, load_preset
from modules.config.TrainConfig import TrainConfig
from modules.families.registry import FAMILIES, VARIANTS, sized_family
from modules.machine.architectures import load_architectures
from modules.machine.memory_estimate import estimate_memory, needed_bytes


def config_of(family: str, base: str) -> TrainConfig:
    return TrainConfig(family=family, model=ModelConfig(base=base))


def test_each_variant_belongs_to_a_family_and_has_presets_with_its_base():
    assert not VARIANTS.keys() & FAMILIES.keys()
    presets = {preset.name: load_preset(preset.name) for preset in list_presets()}
    for name, variant in VARIANTS.items():
        own = [values for preset, values in presets.items() if preset.startswith(f"{name}-")]
        assert own
        assert {(values["family"], values["model"]["base"]) for values in own} == {(variant.family, variant.base)}
        others = [values for preset, values in presets.items() if not preset.startswith(f"{name}-")]
        assert variant.base not in {values.get("model", {}).get("base") for values in others}


@pytest.mark.parametrize("name", VARIANTS)
def test_the_base_tells_the_variant_by_its_name_on_the_hub_or_of_its_folder(name):
    variant = VARIANTS[name]
    folder = variant.base.rpartition("/")[2]
    for base in (variant.base, variant.base.upper(), f"/models/{folder}/", f"D:\\models\\{folder}"):
        assert variant_of(variant.family, base) == name
    assert variant_of(variant.family, "somebody/else") == variant_of(variant.family, "") == ""


def test_sizes_are_those_of_the_variant_where_it_has_its_own():
    small, large = (config_of("wan21", f"Wan-AI/Wan2.1-T2V-{size}-Diffusers") for size in ("1.3B", "14B"))
    assert (model_of(small).name, model_of(large).name) == ("wan21_1_3b", "wan21")
    assert model_of(small).label == "Wan 2.1 1.3B"
    assert model_of(config_of("chroma", "lodestones/Chroma1-Base")) == load_families()["chroma"]
    whole, part = sized_family("wan21"), sized_family("wan21_1_3b")
    assert whole is FAMILIES["wan21"]
    assert part == replace(whole, published=part.published, typical_bytes=VARIANTS["wan21_1_3b"].typical_bytes)


def test_the_size_of_a_variant_is_that_of_all_its_weights():
    for name, variant in VARIANTS.items():
        if variant.published is not None:
            model = load_architectures()[name]
            weights = model.denoiser + sum(model.text_encoders) + model.vae
            assert variant.typical_bytes == pytest.approx(4 * weights, rel=0.05)


def test_memory_is_estimated_for_the_variant_and_not_scaled_down_again_for_its_smaller_files():
    small, large = (config_of("wan21", f"Wan-AI/Wan2.1-T2V-{size}-Diffusers") for size in ("1.3B", "14B"))
    assert estimate_memory(small).weights < estimate_memory(large).weights / 5
    files = int(VARIANTS["wan21_1_3b"].typical_bytes / 2)  # in half precision
    assert needed_bytes(small, base_bytes=files) == estimate_memory(small).peak
    assert needed_bytes(large, base_bytes=files) < estimate_memory(large).peak
