"""Whether the next run fits: in words, for the GPUs that are there or a chosen size, and made so by a button."""

import re

import pytest

from modules.config.files import config_from_values
from modules.config.presets import load_preset
from modules.machine.devices import Gpu
from modules.machine.Machine import Machine
from modules.machine.memory_estimate import GIB
from modules.ui.models.DeviceModel import DeviceModel
from modules.ui.models.memory_fit import memory_fit, memory_of_gpus


def with_gpus(*sizes: float) -> DeviceModel:
    devices = DeviceModel()
    gpus = [Gpu(index, "GPU", f"GPU-{index}", int(size * GIB), index) for index, size in enumerate(sizes)]
    devices.take_machine(Machine(tuple(gpus), cores=2))
    return devices


@pytest.mark.parametrize(
    ("sizes", "over", "memory"),
    [
        ((), {}, None),
        ((23.6,), {}, 24),
        ((80, 23.6), {}, 80),  # without multi-GPU, the first one trains
        ((80, 23.6), {"enable_multi_gpu": True}, 24),
    ],
)
def test_the_smallest_gpu_that_trains_counts(sizes, over, memory):
    assert memory_of_gpus(config_from_values(over), with_gpus(*sizes)) == memory


@pytest.mark.parametrize(
    ("preset", "memory", "text", "fixes"),
    [
        ("sdxl-lora", 12, "Fits 12 GB", False),
        (
            "flux1-lora",
            24,
            r"Needs \S+ GiB; 24 GB leave 22\.8 for a run\. It fits with .*\d+ swapped blocks\.",
            True,
        ),
        (
            "flux1-full",
            24,
            r"Needs \S+ GiB; 24 GB leave 22\.8 for a run\. No settings make it fit: choose .*",
            False,
        ),
    ],
)
def test_what_is_too_large_is_said_with_what_would_make_it_fit(preset, memory, text, fixes):
    fit = memory_fit(config_from_values(load_preset(preset)), with_gpus(memory), memory)
    assert re.fullmatch(text, fit.text)
    assert (fit.remedy is not None) == fixes


def test_a_button_makes_it_fit_the_chosen_size_in_one_step_of_undo(app, wait_for):
    app.settings.load_preset("auraflow-lora")
    tab = app.open_tab("training")
    wait_for(app, lambda: app.devices.machine is not None and not app.is_building)
    row = tab.estimate.fit
    row.menu._command("24 GB")
    assert row.text.cget("text") == "Fits 24 GB"
    assert not row.button.winfo_manager()
    row.menu._command("12 GB")
    assert "It fits with" in row.text.cget("text")
    swapped = app.settings.get("model.blocks_to_swap")
    row.button.invoke()
    assert row.text.cget("text") == "Fits 12 GB"
    assert app.settings.get("model.blocks_to_swap") > swapped
    app.settings.undo()
    assert "It fits with" in row.text.cget("text")
    assert app.settings.get("model.blocks_to_swap") == swapped
