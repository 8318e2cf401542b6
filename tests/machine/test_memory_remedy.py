"""The search for settings with which a run fits, and which settings it finds first."""

import re
from unittest import mock

import pytest

from modules.config.files import config_from_values
from modules.config.presets import load_preset, merge_values
from modules.machine.fitting import NO_CHANGE, Change, micro_batches, mildest, values_of
from modules.machine.memory_estimate import GIB, needed_bytes
from modules.machine.memory_remedy import memory_remedy
from tests.support.remedies import with_remedy

SIZES = [Change({"size": size}) for size in (9, 6, 2)]
COLOURS = [Change({"colour": colour}) for colour in (2, 1)]


@pytest.mark.parametrize(
    ("room", "expected"),
    [
        (18, {"size": 9, "colour": 2}),
        (17, {"size": 9, "colour": 1}),  # what is changed first, where that suffices
        (8, {"size": 6, "colour": 1}),
        (5, {"size": 2, "colour": 2}),  # mild again, where the other is strong
        (1, None),
    ],
)
def test_the_first_axis_is_changed_last_and_no_more_than_needed(room, expected):
    chosen = mildest([SIZES, COLOURS], lambda values: values["size"] * values["colour"] <= room)
    assert (chosen and values_of(chosen)) == expected


@pytest.mark.parametrize("mode", ["per_device", "global"])
def test_a_batch_of_billions_of_samples_is_not_searched_for_divisors(mode):
    config = config_from_values({"batch_size": 2**31 - 1, "batch_size_mode": mode})
    assert micro_batches(config) == {2**31 - 1: NO_CHANGE}


CHECKPOINTING = {"model.gradient_checkpointing": True}
SOME = mock.ANY


@pytest.mark.parametrize(
    ("preset", "over", "room", "expected"),
    [
        # what is needed of each kind, from exact to lossy
        ("sdxl-lora-24gb", {"batch_size": 8}, 24, CHECKPOINTING),
        ("sdxl-lora-12gb", {"model": {"cuda_graphs": "on"}}, 9, {"model.cuda_graphs": "off"}),
        ("sdxl-lora", {"model": {"cuda_graphs": "on"}, "batch_size": 1, "batch_size_mode": "global"}, 7,
         {"model.cuda_graphs": "off", "model.blocks_to_swap": SOME}),
        ("lumina2-lora-12gb", {"batch_size": 2}, 10, {"batch_size": 1, "gradient_accumulation_steps": 4}),
        ("sdxl-lora", {"batch_size": 1, "batch_size_mode": "global"}, 7, {"model.blocks_to_swap": SOME}),
        ("skyreels_v2-lora", {}, 34, {"model.activation_offloading": True}),
        ("kolors-lora", {}, 11, {"model.text_encoder_quantization": "int8"}),  # captions, whatever the steps take
        ("kolors-lora", {"model": {"compile": "blocks"}}, 7,
         {"model.text_encoder_quantization": "int8", "model.blocks_to_swap": SOME}),
        ("sdxl-lora", {}, 2.3,
         {"model.blocks_to_swap": SOME, "model.denoiser_quantization": SOME, "data.resolution": 512}),
        ("sd15-full", {"batch_size": 1}, 15, {"optimizer.state_in_ram": True}),
        ("flux1-full", {}, 12, None),
    ],
)  # fmt: skip
def test_exact_changes_come_before_lossy_ones_and_make_it_fit(preset, over, room, expected):
    config = config_from_values(merge_values(load_preset(preset), over))
    assert needed_bytes(config, 1) > room * GIB
    remedy = memory_remedy(config, 1, room * GIB)
    assert (remedy and dict(remedy.values)) == expected
    if remedy:
        assert needed_bytes(with_remedy(config, remedy), 1) <= room * GIB


def test_a_remedy_is_said_in_words():
    config = config_from_values(load_preset("auraflow-lora"))
    remedy = memory_remedy(config, 1, 14.5 * GIB)
    assert re.fullmatch(r"Use batch size 1 \(2 accumulation steps\) and \d+ swapped blocks", remedy.text)
