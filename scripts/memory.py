"""Simulate how much GPU memory presets need, at the real size of their models, and keep the results.

    python scripts/memory.py sdxl-lora-12gb flux1-lora   # prints them
    python scripts/memory.py --write                     # simulates what has changed, into resources/preset_memory.json
    python scripts/memory.py --write sdxl flux1          # of these families only

scripts/simulated_run.py says how. Results are kept by a hash of all that they depend on: the settings that count, the
family's description and the simulation itself.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from modules.config.files import config_from_values  # noqa: E402
from modules.config.methods import METHODS  # noqa: E402
from modules.config.optimizers import facts_of_optimizer  # noqa: E402
from modules.config.presets import (  # noqa: E402
    MEMORY_SIZES,
    has_variants,
    list_presets,
    load_preset,
    variant_name,
    why_not_offered,
)
from modules.config.TrainConfig import TrainConfig  # noqa: E402
from modules.machine.memory_estimate import (  # noqa: E402
    BYTES_OF,
    CORRECTIONS,
    FACTORED,
    GIB,
    SIMULATED_FILE,
    backward_kind,
    estimate_memory,
)
from scripts.simulated_run import Simulation, simulate  # noqa: E402

_SOURCES = ("simulated_run.py", "simulated_gpu.py", "python_device.py")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="presets; with --write, families")
    parser.add_argument("--write", action="store_true", help=f"write {SIMULATED_FILE.name}")
    arguments = parser.parse_args()
    if arguments.write:
        write(arguments.names)
        return 0
    for name in arguments.names:
        config = config_from_values(load_preset(name))
        result, estimate = simulate(config), estimate_memory(config)
        print(f"{name}, in GiB (estimated):")
        for part in (*asdict(result), "training", "peak"):
            estimated = getattr(estimate, part) / GIB if estimate else float("nan")
            print(f"  {part:12}{getattr(result, part) / GIB:8.2f} ({estimated:.2f})")
    return 0


def write(families: list[str]) -> None:
    """Simulates presets without a result, and drops results that no preset has any more. Each is written at once."""
    wanted = dict(presets_by_hash())
    for key, (names, config) in wanted.items():
        if key not in load_results() and (not families or config.family in families):
            result = simulate(config)
            print(f"{names[0]}: {result.peak / GIB:.1f} GiB", flush=True)
            _save({**load_results(), key: {"presets": names, **asdict(result)}})
    kept = {key: value for key, value in load_results().items() if key in wanted}
    results = {key: {**value, "presets": wanted[key][0]} for key, value in kept.items()}
    _save(results, corrections({key: config for key, (_, config) in wanted.items()}, results))


def corrections(configs: dict[str, TrainConfig], results: dict[str, dict[str, Any]]) -> dict[str, dict[str, float]]:
    """What the estimate needs of the results, as memory_estimate.CORRECTIONS; families without any keep their own."""
    found: dict[str, dict[str, list[float]]] = {}
    for key, kept in results.items():
        config, result = configs[key], simulation(kept)
        estimate = estimate_memory(config)
        assert estimate is not None  # only families of known size are simulated
        of_family = found.setdefault(config.family, {})
        own = CORRECTIONS.get(config.family, {}).get(backward_kind(config), 1.0)
        if METHODS[config.method].trains_words:
            continue  # its activations are those of a LoRA and of text encoders, which count by themselves
        of_family.setdefault(backward_kind(config), []).append(result.activations / estimate.activations * own)
        if facts_of_optimizer(config.optimizer).factors and METHODS[config.method].trains_weights:
            of_family.setdefault(FACTORED, []).append(result.optimizer / (4 * _trained(config, result)))
    measured = {family: {kind: round(median(v), 3) for kind, v in kinds.items()} for family, kinds in found.items()}
    return {family: {**CORRECTIONS.get(family, {}), **measured.get(family, {})} for family in {*CORRECTIONS, *measured}}


def _trained(config: TrainConfig, result: Simulation) -> float:
    """The number of trained weights."""
    return result.gradients / BYTES_OF[config.model.weight_dtype]


def presets_by_hash() -> Iterator[tuple[str, tuple[list[str], TrainConfig]]]:
    """(hash, (the presets and sizes whose runs are the same, their settings))."""
    found: dict[str, tuple[list[str], TrainConfig]] = {}
    for preset in list_presets():
        sizes = [memory for memory in MEMORY_SIZES if has_variants(preset.name)]
        for memory in sizes:
            if why_not_offered(preset.name, memory):
                continue
            name = variant_name(preset.name, memory)
            config = config_from_values(load_preset(name))
            if estimate_memory(config) is not None:
                found.setdefault(digest(config), ([], config))[0].append(name)
    yield from found.items()


def load_results() -> dict[str, dict[str, Any]]:
    """By hash: the presets, and the fields of a Simulation."""
    return json.loads(SIMULATED_FILE.read_text(encoding="utf-8"))["results"]


def result_of(config: TrainConfig) -> Simulation | None:
    """The kept result for these settings; None if there is none, or it is out of date."""
    kept = load_results().get(digest(config))
    return None if kept is None else simulation(kept)


def _changed(config: TrainConfig, section: str) -> dict[str, Any]:
    """The settings that are not the default, so that further ones leave the hash as it is."""
    own, default = asdict(getattr(config, section)), asdict(getattr(TrainConfig(), section))
    return {name: value for name, value in sorted(own.items()) if value != default[name]}


def simulation(kept: dict[str, Any]) -> Simulation:
    return Simulation(**{name: value for name, value in kept.items() if name != "presets"})


def digest(config: TrainConfig) -> str:
    """Of all that a simulation depends on, but for the libraries."""
    from modules.config.families import load_families

    family = load_families()[config.family].memory
    data = (config.data.shape, config.data.resolutions, config.data.frames)
    samples = [(sample.width, sample.height, sample.frames) for sample in config.sampling.samples if sample.enabled]
    optimizer = (config.optimizer.name, config.optimizer.stochastic_rounding, config.optimizer.fused_backward)
    sections = ("model", "lora", "ema", "denoiser", "text_encoder")
    parts = (config.method, *(_changed(config, section) for section in sections))
    parts += (data, optimizer, len(config.embeddings))
    parts += (config.batch_size, config.gradient_accumulation_steps)
    parts += (config.sampling.batch_size, config.sampling.makes_samples, samples, family and family["counted_from"])
    parts += tuple((ROOT / "scripts" / name).read_text(encoding="utf-8") for name in _SOURCES)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _save(results: dict[str, dict[str, Any]], corrections: dict[str, dict[str, float]] = CORRECTIONS) -> None:
    ordered = sorted(results.items(), key=lambda item: item[1]["presets"])
    tables = {"corrections": sorted(corrections.items()), "results": ordered}
    parts = []
    for name, rows in tables.items():  # a row a line
        lines = ",\n".join(f"    {json.dumps(key)}: {json.dumps(value, sort_keys=True)}" for key, value in rows)
        parts.append(f'  "{name}": {{\n{lines}\n  }}')
    SIMULATED_FILE.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8", newline="\n")


if __name__ == "__main__":
    sys.exit(main())
