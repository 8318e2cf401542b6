"""What the window says of the memory that a run needs."""

from __future__ import annotations

from modules.config.files import config_from_values
from modules.config.presets import load_preset, merge_values
from modules.machine.devices import Gpu
from modules.machine.Machine import Machine
from modules.machine.memory_estimate import GIB
from modules.machine.system_memory import needed_in_ram
from modules.ui.models.DeviceModel import DeviceModel


def test_the_estimate_names_the_system_memory_that_all_ranks_take():
    model = {"denoiser_quantization": "none", "gradient_checkpointing": True, "blocks_to_swap": 20}
    values = merge_values(load_preset("flux1-lora"), {"model": model})
    devices, config = DeviceModel(), config_from_values(values)
    needed = needed_in_ram(config) / GIB
    assert f" by estimate, and {needed:.1f} GiB of system memory" in devices.memory_text(config)
    devices.machine = Machine(tuple(Gpu(number, "GPU", f"GPU-{number}", 24 * GIB, number) for number in range(2)))
    config = config_from_values(merge_values(values, {"enable_multi_gpu": True}))
    needed = needed_in_ram(config, 2, 2) / GIB
    assert f" by estimate, and {needed:.1f} GiB of system memory; GPU 0 has" in devices.memory_text(config)
    devices.machine = Machine((), 2)
    assert "system memory" not in devices.memory_text(config)
