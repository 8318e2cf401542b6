"""Write resources/preset_sizes.yaml, what presets change by the memory of a GPU, or check that it is up to date.

Also drops from resources/preset_memory.json what scripts/memory.py kept of presets and families that are no more.

    python scripts/preset_sizes.py --write
    python scripts/preset_sizes.py --check

For each size, the fastest way to compute the preset's steps that fits according to the memory estimate, found by
modules/machine/fitting.py as the window's remedies are: gradient checkpointing is off if half of a step then fits, and
micro-batches are as large as possible. A step that can't be divided has its activations in system memory if it must.
The result of a step never changes. Where only samples don't fit, they are made smaller. Where no such way fits, LoRAs
and embeddings train on a quantized model, in 8 bits if that fits, else in 4.
A preset can override the changes, below `sizes` in its file, by memory in GB, and say below `concept` what its concepts
have that takes memory, such as a folder of source clips.
"""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from modules.config.families import load_families  # noqa: E402
from modules.config.files import config_from_values  # noqa: E402
from modules.config.methods import METHODS  # noqa: E402
from modules.config.presets import (  # noqa: E402
    GPU_COUNTS,
    MEMORY_SIZES,
    SIZES_FILE,
    can_use_several_gpus,
    list_presets,
    load_preset,
    merge_values,
    on_gpus,
    own_sizes,
    sized_preset,
)
from modules.config.TrainConfig import TrainConfig  # noqa: E402
from modules.machine.architectures import SIMULATED_FILE  # noqa: E402
from modules.machine.fitting import NO_CHANGE, Change, micro_batches, mildest, quantizations, values_of  # noqa: E402
from modules.machine.memory_estimate import GIB, estimate_memory, room_for_presets  # noqa: E402
from scripts.generated_file import write_or_check  # noqa: E402
from scripts.memory import kept_text  # noqa: E402

HEADER = """\
# Made by scripts/preset_sizes.py: what presets change by the memory of the GPU, laid over resources/presets/NAME.yaml.
# sdxl-lora-8gb is sdxl-lora with what stands here for it under 8. Each entry is for so many GB and for all larger sizes
# up to the next entry. A sentence in place of settings says why the preset is not offered for a size.

"""
ORDER = (
    "batch_size",
    "gradient_accumulation_steps",
    "model.gradient_checkpointing",
    "model.activation_offloading",
    "model.denoiser_quantization",
    "model.text_encoder_quantization",
    "sampling.samples",
)
SAMPLE_SHARES = (3 / 4, 1 / 2)  # of the preset's width and height, where its samples don't fit


def main() -> int:
    return write_or_check(__doc__.splitlines()[0], {SIZES_FILE: sizes_text(), SIMULATED_FILE: kept_text()})


def sizes_text() -> str:
    """The whole file. Presets that come with their images, as the demo does, are of no size."""
    names = [preset.name for preset in list_presets() if "concepts" not in load_preset(preset.name)]
    sizes = {name: own_sizes(name) or _sizes(sized_preset(name)) for name in names}
    options = {"default_flow_style": None, "sort_keys": False, "width": 1000}
    return HEADER + "\n".join(yaml.dump({name: entries}, **options) for name, entries in sizes.items())


def _sizes(values: dict) -> dict[int, dict | str]:
    """Memory in GB -> what changes there, without the sizes at which nothing new does."""
    entries: dict[int, dict | str] = {}
    for memory in MEMORY_SIZES:
        change: dict | str | None = _fitting(values, memory)
        if change is None:
            change = _why_not(values)
        if not entries or change != next(reversed(entries.values())):
            entries[memory] = change
    return entries


def _fitting(values: dict, memory: int) -> dict | None:
    """The mildest change with which the preset fits; None where none does."""
    chosen = mildest(_axes(values), lambda change: _fits(merge_values(values, _sections(change)), memory))
    return None if chosen is None else _sections(values_of(chosen))


def _axes(values: dict) -> list[list[Change]]:
    """What can change, for modules/machine/fitting.py: quantization last, and as little as possible."""
    formats = () if METHODS[values["method"]].trains_weights else ("int8", "nf4")
    parts = [quantizations(part, formats) for part in ("denoiser", "text_encoder")]
    return [*parts, list(_sample_sizes(values)), list(_same_steps(values))]


def _same_steps(values: dict) -> Iterator[Change]:
    """Ways to compute the same steps, the fastest first."""
    config = config_from_values(values)
    sizes = micro_batches(config)
    checkpoints = values["model"].get("gradient_checkpointing", False)
    for checkpointing in (False, True):
        # small micro-batches leave more of a GPU idle
        for size in sizes if checkpointing else [size for size in sizes if size * 2 >= max(sizes)]:
            own = {} if checkpointing == checkpoints else {"model.gradient_checkpointing": checkpointing}
            yield Change({**sizes[size].values, **own})
    if config.optimizer.fused_backward and checkpoints:
        yield Change({"model.activation_offloading": True})


def _sample_sizes(values: dict) -> Iterator[Change]:
    """The preset's samples, then smaller ones, which are of the same prompts."""
    samples = values.get("sampling", {}).get("samples", [])
    align = load_families()[values["family"]].align
    yield NO_CHANGE
    for share in SAMPLE_SHARES if samples else ():
        length = int(values["data"]["resolution"] * share) // align * align
        sides = [{"width": length, "height": length}] * len(samples)
        made = [{**sample, **smaller} for sample, smaller in zip(samples, sides, strict=True)]
        yield Change({"sampling.samples": made})


def _sections(change: Mapping[str, Any]) -> dict:
    """The values as in a settings file, in the order of ORDER."""
    found: dict = {}
    for path, value in sorted(change.items(), key=lambda item: ORDER.index(item[0])):
        section, _, name = path.rpartition(".")
        (found.setdefault(section, {}) if section else found)[name] = value
    return found


def _fits(values: dict, memory: int) -> bool:
    """On one GPU and on several, where the exchange of gradients takes some, too."""
    counts = GPU_COUNTS if can_use_several_gpus(values) else ()
    runs = [(1, values), *((count, merge_values(values, on_gpus(values, count))) for count in counts)]
    estimates = [estimate_memory(config_from_values(run), num_gpus) for num_gpus, run in runs]
    return all(estimate is None or estimate.peak <= room_for_presets(memory) for estimate in estimates)


def _why_not(values: dict) -> str:
    """Why the preset is offered for no size below the least that fits."""
    smallest = values_of([axis[-1] for axis in _axes(values)])
    config = config_from_values(merge_values(values, _sections(smallest)))
    estimate = estimate_memory(config)
    assert estimate is not None  # a model of unknown size is taken to fit
    least = next((memory for memory in MEMORY_SIZES if _fitting(values, memory) is not None), None)
    remedy = f"use a GPU with {least} GB" if least else "no GPU has as much"
    if estimate.caching == estimate.peak:
        precision = _precision(config, config.model.text_encoder_quantization)
        size = f"{estimate.caching / GIB:.1f} GiB, with the text encoders in {precision}"
        return f"To encode captions and images needs {size}; {remedy}."
    lasting = estimate.weights + estimate.gradients + estimate.optimizer + estimate.average
    parts = "Weights and gradients" if config.method == "full" else "The weights"
    precision = _precision(config, config.model.denoiser_quantization)
    return f"{parts} need {lasting / GIB:.1f} GiB in {precision}, and a step more; {remedy}."


def _precision(config: TrainConfig, quantization: str) -> str:
    return config.model.weight_dtype if quantization == "none" else quantization


if __name__ == "__main__":
    sys.exit(main())
