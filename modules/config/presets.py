"""Presets: partial settings to start from, kept as YAML files in resources/presets.

A preset is data, and lies under the user's file, which lies under the command line's overrides:
`merge_values(load_preset("sd15-lora"), load_values("mine.yaml"))`.

Most also come for a GPU's memory and for a number of GPUs, by the ending of the name: "sdxl-lora-16gb",
"sdxl-lora-x4", "sdxl-lora-16gb-x4". resources/preset_sizes.yaml, which scripts/preset_sizes.py makes, says what they
change by the memory.
"""

import copy
import difflib
import math
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from modules.config.errors import ConfigError
from modules.config.files import load_values
from modules.config.parse import read_values

ROOT = Path(__file__).resolve().parents[2]
PRESETS_DIR = ROOT / "resources" / "presets"
SIZES_FILE = ROOT / "resources" / "preset_sizes.yaml"
MEMORY_SIZES = (8, 12, 16, 24, 32, 48, 80)
"""Of GPUs, in GB, that presets are made for."""
GPU_COUNTS = (2, 4, 8)
OWN_SIZES = "sizes"  # the part of a preset's file that is no settings


@dataclass(frozen=True)
class Preset:
    """name: of the file, without .yaml. description: its first line, a comment."""

    name: str
    path: Path
    description: str


def list_presets(folder: Path = PRESETS_DIR) -> list[Preset]:
    """The presets in a folder, by name; of each its file alone, without its variants.

    Raises ConfigError for one without a description.
    """
    return [Preset(path.stem, path, _read_description(path)) for path in sorted(folder.glob("*.yaml"))]


def load_preset(name: str, folder: Path = PRESETS_DIR) -> dict:
    """The values that a preset, or a variant of one, gives; paths of what ships with Chorus are made absolute.

    Only the names that `list_presets` gives are looked up, so that no name leads out of the folder.
    Raises ConfigError for another name, with the likeliest one that was meant, and for a variant that does not fit.
    """
    presets = {path.stem: path for path in sorted(folder.glob("*.yaml"))}
    base, memory, num_gpus = (name, None, 1) if name in presets else _split(name)
    if base not in presets:
        match = difflib.get_close_matches(base[:60], presets, n=1)
        remedy = f"did you mean {match[0]}?" if match else f"there are {', '.join(presets)}."
        raise ConfigError(f"unknown preset {name[:60]!r}: {remedy}")
    if base != name:
        _check_variant(base, memory, num_gpus)
    values = _find_shipped(load_values(presets[base]))
    values.pop(OWN_SIZES, None)
    if memory is not None:
        entry = _at_size(base, memory)
        assert isinstance(entry, dict)  # `_check_variant` refuses a size with a reason instead
        values = merge_values(values, entry)
    return values if num_gpus == 1 else merge_values(values, _on_gpus(values, num_gpus))


def own_sizes(name: str) -> dict[int, dict | str]:
    """What a preset's file itself says of sizes of GPUs, as in SIZES_FILE; empty where it leaves them to be found."""
    return load_values(PRESETS_DIR / f"{name}.yaml").get(OWN_SIZES, {})


def variant_name(name: str, memory: int | None = None, num_gpus: int = 1) -> str:
    """The name of a preset for a GPU's memory in GB (None: any) and a number of GPUs."""
    return name + (f"-{memory}gb" if memory else "") + (f"-x{num_gpus}" if num_gpus > 1 else "")


def has_variants(name: str) -> bool:
    """Whether a preset also comes for GPUs of several sizes and for several GPUs; the demo does not."""
    return name in _sizes()


def why_not_offered(name: str, memory: int) -> str:
    """Why a preset does not come for GPUs with so many GB, in a sentence; "" where it does."""
    entry = _at_size(name, memory)
    return entry if isinstance(entry, str) else ""


def fitting_memory(memory_bytes: float) -> int | None:
    """The largest of MEMORY_SIZES that a GPU with so many bytes has; None for a smaller one."""
    # one that is sold with 24 GB reports a little less or more
    return max((size for size in MEMORY_SIZES if size <= round(memory_bytes / 2**30)), default=None)


def merge_values(base: dict, over: dict) -> dict:
    """`base` with the values of `over` in their place, section by section; lists are replaced as a whole."""
    merged = copy.deepcopy(base)
    for name, value in over.items():
        if isinstance(value, dict) and isinstance(merged.get(name), dict):
            merged[name] = merge_values(merged[name], value)
        else:
            merged[name] = copy.deepcopy(value)
    return merged


def _split(name: str) -> tuple[str, int | None, int]:
    """The preset, the memory in GB and the number of GPUs that a variant's name says."""
    match = re.fullmatch(r"(?s)(.*?)(?:-([0-9]{1,4})gb)?(?:-x([0-9]{1,4}))?", name)
    assert match is not None  # the first group takes whatever is no size
    return match[1], int(match[2]) if match[2] else None, int(match[3] or 1)


def _check_variant(name: str, memory: int | None, num_gpus: int) -> None:
    if not has_variants(name):
        raise ConfigError(f"preset {name} is made for no size of GPU: use it as {name}.")
    if memory is not None and memory not in MEMORY_SIZES:
        sizes = ", ".join(f"{size}gb" for size in MEMORY_SIZES)
        raise ConfigError(f"preset {name} is not made for GPUs of {memory} GB: use one of {sizes}.")
    if num_gpus not in (1, *GPU_COUNTS):
        counts = ", ".join(f"x{count}" for count in GPU_COUNTS)
        raise ConfigError(f"preset {name} is not made for {num_gpus} GPUs: use one of {counts} and set world_size.")
    if memory is not None and (reason := why_not_offered(name, memory)):
        raise ConfigError(f"preset {variant_name(name, memory)} is not offered: {reason}")


@lru_cache(maxsize=1)
def _sizes() -> dict[str, dict[int, dict | str]]:
    return read_values(SIZES_FILE)


def _at_size(name: str, memory: int) -> dict | str:
    """What stands for the size: the entry of the largest one that is not above it."""
    entries = _sizes()[name]
    return entries[max(size for size in entries if size <= memory)]


def _on_gpus(values: dict, num_gpus: int) -> dict:
    """What a preset changes for several GPUs: the run goes through as many pictures as on one.

    With a batch size per GPU each step takes more pictures, so there are fewer steps, at a rate that grows with the
    square root (`lr_scaling`); a global batch is shared out, which takes fewer accumulation steps.
    """
    over = {"enable_multi_gpu": True, "world_size": num_gpus, "distributed_backend": "auto"}
    if values.get("batch_size_mode") == "global":
        over["gradient_accumulation_steps"] = max(1, values.get("gradient_accumulation_steps", 1) // num_gpus)
    elif values.get("max_steps"):
        over["max_steps"] = math.ceil(values["max_steps"] / num_gpus)
    return over


def _find_shipped(values: dict) -> dict:
    """A preset names the demo's model and pictures from the top of Chorus; runs start in any folder."""
    model = values.get("model", {})
    for part, name in [(model, "base"), (model, "config_folder"), *((c, "path") for c in values.get("concepts", []))]:
        if part.get(name) and (ROOT / part[name]).exists():
            part[name] = str(ROOT / part[name])
    return values


def _read_description(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        first = file.readline(500).strip()
    description = first.removeprefix("#").strip()
    if not first.startswith("#") or not description:
        raise ConfigError(f"preset {path} has no description: write it as the first line, after a #.")
    return description
