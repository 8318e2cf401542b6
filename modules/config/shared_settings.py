"""Which settings the machines of a run must have alike, each of them reading a file of its own."""

from typing import Any

from modules.config.files import to_values
from modules.config.TrainConfig import TrainConfig

# settings that the machines of a run may each have of their own
OF_EACH_MACHINE = (
    "workspace_dir",
    "cache_dir",
    "world_size",
    "node_rank",
    "device_indexes",
    "initial_port",
    "master_addr",
)
OF_EACH_DISK = frozenset({"base", "config_folder", "path", "caption_table", "start_from", "fallback_dir"})


def shared_values(config: TrainConfig) -> dict[str, Any]:
    """All settings that decide what is trained, as plain values.

    Paths may differ; pictures, captions and weights are compared by what they hold.
    """
    values = to_values(config)
    for name in OF_EACH_MACHINE:
        del values[name]
    for part in (values["model"], values["lora"], values["output"], *values["concepts"]):
        for name in OF_EACH_DISK & part.keys():
            del part[name]
    return values
