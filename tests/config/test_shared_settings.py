"""What the machines of one run may set differently, and what they must agree on."""

from __future__ import annotations

from modules.config.files import config_from_values
from modules.config.shared_settings import shared_values

PLACES = {
    "workspace_dir": "/disk2/run",
    "cache_dir": "/disk2/cache",
    "model": {"base": "/disk2/sd15", "config_folder": "/disk2/config"},
    "lora": {"start_from": "/disk2/lora.safetensors"},
    "output": {"fallback_dir": "/tmp"},
    "concepts": [{"path": "a", "caption_table": "a.csv"}, {"path": "b"}],
}
OF_THE_MACHINE = {
    "world_size": 3, "node_rank": 1, "device_indexes": [2], "initial_port": "12399", "master_addr": "10.0.0.1"
}  # fmt: skip


def test_machines_may_have_folders_devices_and_addresses_of_their_own():
    one = config_from_values({"concepts": [{}, {}]})
    assert shared_values(config_from_values({**PLACES, **OF_THE_MACHINE})) == shared_values(one)


def test_machines_have_to_agree_on_all_else():
    one = shared_values(config_from_values({"concepts": [{"path": "a"}]}))
    for other in ({"seed": 7}, {"concepts": [{"path": "a", "repeats": 2}]}, {"model": {"weight_dtype": "bfloat16"}}):
        assert shared_values(config_from_values({"concepts": [{"path": "a"}], **other})) != one
