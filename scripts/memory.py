"""Simulate how much GPU memory presets need, at the real size of their models, and keep the results.

    python scripts/memory.py sdxl-lora-12gb flux1-lora      # prints them
    python scripts/memory.py --counts sdxl                  # what is counted of a family or variant for the estimate
    python scripts/memory.py --write                        # simulates what has changed
    python scripts/memory.py --write --processes 4 sdxl     # of these families only, by so many processes

scripts/simulated_run.py says how, and scripts/model_counts.py what is counted. --write is for
resources/preset_memory.json. Results are kept by a hash of all that they depend on: the settings that count, the
family's description and SIMULATION_VERSION.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import sys
import traceback
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from modules.config.families import model_of  # noqa: E402
from modules.config.files import config_from_values  # noqa: E402
from modules.config.methods import METHODS, fixed_prompts, has_images  # noqa: E402
from modules.config.optimizers import facts_of_optimizer  # noqa: E402
from modules.config.presets import (  # noqa: E402
    MEMORY_SIZES,
    has_variants,
    list_presets,
    sized_preset,
    variant_name,
    why_not_offered,
)
from modules.config.TrainConfig import TrainConfig  # noqa: E402
from modules.machine.architectures import (  # noqa: E402
    FACTORED,
    SIMULATED_FILE,
    load_architectures,
    load_corrections,
)
from modules.machine.memory.RunMemory import ALLOCATOR, RunMemory  # noqa: E402
from modules.machine.memory_estimate import GIB, PROCESS_BYTES, MemoryEstimate, estimate_memory, run_memory  # noqa: E402
from scripts.simulated_model import has_sources  # noqa: E402
from scripts.simulated_run import Simulation, simulate  # noqa: E402

SIMULATION_VERSION = 2
"""Raise it when results would differ, because of a change in simulated_gpu.py, simulated_model.py, simulated_run.py,
python_device.py, published_models.py, the run's own code or its libraries. All results are then out of date. A change
that leaves them as they are, such as other names or types, needs no new version."""

# Without the share that fragmentation adds, the simulated peaks are within 1 % of those that an H200 allocated for
# sdxl-full-24gb, sd15-full-8gb, zimage-lora-16gb and, with the rules of PyTorch 2.11, flux1-lora-24gb, whose steps set
# them, and for sdxl-lora-12gb, whose samples do. PyTorch 2.13 normalizes queries and keys of FLUX.1 in float32, which
# takes 0.7 GiB more.


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="presets; with --write, families; with --counts, these and variants")
    parser.add_argument("--write", action="store_true", help=f"write {SIMULATED_FILE.name}")
    parser.add_argument("--counts", action="store_true", help="print the counts of families' models")
    parser.add_argument("--processes", type=int, default=1, help="how many simulate at once")
    arguments = parser.parse_args()
    if arguments.write:
        return write(arguments.names, arguments.processes)
    for name in arguments.names:
        _print_counts(name) if arguments.counts else _print_preset(name)
    return 0


def _print_preset(name: str) -> None:
    config = config_from_values(sized_preset(name))
    result, estimate = simulate(config), estimate_memory(config)
    print(f"{name}, in GiB (estimated):")
    for part in (*asdict(result), "training", "peak"):
        estimated = getattr(estimate, part) / GIB if estimate else float("nan")
        print(f"  {part:12}{getattr(result, part) / GIB:8.2f} ({estimated:.2f})")


def _print_counts(name: str) -> None:
    from modules.families.registry import sized_family
    from scripts.model_counts import count

    family = sized_family(name)
    print(name, json.dumps(count(family), indent=2) if family.published else "is of unknown size")


def write(families: list[str], num_processes: int = 1) -> int:
    """Simulates presets without a result, and drops results that no preset has any more.

    One preset of each family and method comes first, so that what is not finished leaves no family without a result.
    Each result is written at once. Returns 1 if a simulation failed.
    """
    wanted, known = dict(presets_by_hash()), load_results()
    kinds = {key: (config.family, config.method) for key, (_, config) in wanted.items()}
    missing = [key for key in wanted if key not in known and (not families or wanted[key][1].family in families)]
    missing = _one_of_each_first(missing, kinds, [kinds[key] for key in known if key in kinds])
    has_failed = False
    with ProcessPoolExecutor(num_processes, multiprocessing.get_context("spawn")) as pool:
        running = {pool.submit(_simulated, wanted[key][1]): key for key in missing}
        for future in as_completed(running):
            names, result = wanted[running[future]][0], future.result()
            if isinstance(result, str):
                print(f"{names[0]}: {result}", file=sys.stderr, flush=True)
                has_failed = True
                continue
            print(f"{names[0]}: {result.peak / GIB:.1f} GiB", flush=True)
            new = {running[future]: {"presets": names, **asdict(result)}}
            _save({**load_results(), **new}, load_corrections())
    kept = {key: value for key, value in load_results().items() if key in wanted}
    results = {key: {**value, "presets": wanted[key][0]} for key, value in kept.items()}
    _save(results, corrections({key: config for key, (_, config) in wanted.items()}, results))
    return int(has_failed)


def _one_of_each_first(keys: list[str], kinds: Mapping[str, object], known: list[object]) -> list[str]:
    """The keys, with the first of each kind that is not known ahead of all others."""
    first = {kinds[key]: key for key in reversed(keys) if kinds[key] not in known}
    return [*first.values(), *(key for key in keys if key not in first.values())]


def _simulated(config: TrainConfig) -> Simulation | str:
    """The result, or the traceback of what failed, so that the others go on."""
    try:
        return simulate(config)
    except Exception:
        return traceback.format_exc()


def corrections(configs: dict[str, TrainConfig], results: dict[str, dict[str, Any]]) -> dict[str, dict[str, float]]:
    """What the estimate needs of the results, as `load_corrections`; models without any keep their own."""
    known = load_corrections()
    found: dict[str, dict[str, list[float]]] = {}
    for key, kept in results.items():
        config, result = configs[key], simulation(kept)
        run, estimate = run_memory(config), estimate_memory(config)
        assert run is not None  # only families of known size are simulated
        assert estimate is not None  # as above
        of_model = found.setdefault(model_of(config).name, {})
        if METHODS[config.method].uses_denoiser:
            encoding, kind = estimate.caching - estimate.process, run.caching_kind
            ratio = (result.caching - estimate.process) / encoding * run.caching_correction
            of_model.setdefault(kind, []).append(ratio)
        if estimate.sampling:
            samples = replace(run, num_ranks=1).samples
            ratio = 1 + (result.sampling - estimate.sampling) / samples.peak
            of_model.setdefault(samples.kind, []).append(ratio * samples.correction)
        if METHODS[config.method].trains_words:
            continue  # its activations are those of a LoRA and of text encoders, which count by themselves
        ratio = _activation_ratio(run, result, estimate) * run.step_correction
        of_model.setdefault(str(run.step_kind), []).append(ratio)
        if facts_of_optimizer(config.optimizer).factors and METHODS[config.method].trains_weights:
            of_model.setdefault(FACTORED, []).append(result.optimizer / (4 * _trained(run, result)))
    # the middle of what was found keeps the largest error small
    measured = {
        family: {kind: round((min(v) + max(v)) / 2, 3) for kind, v in kinds.items()} for family, kinds in found.items()
    }
    return {family: {**known.get(family, {}), **measured.get(family, {})} for family in {*known, *measured}}


def _activation_ratio(run: RunMemory, result: Simulation, estimate: MemoryEstimate) -> float:
    """What the simulation finds of activations, as a share of the estimate. Neither the weights that are stepped beside
    them in a fused backward pass nor those that wait in system memory are activations to correct."""
    if not run.steps_as_it_goes:
        return result.activations / estimate.activations
    kept = estimate_memory(replace(run.config, model=replace(run.config.model, activation_offloading=False)))
    assert kept is not None  # as the estimate
    found = result.activations + kept.activations - estimate.activations - estimate.stepping - estimate.gradients
    return found / (kept.activations - estimate.stepping)


def _trained(run: RunMemory, result: Simulation) -> float:
    """The number of trained weights. After a fused backward pass there are no gradients to count."""
    return run.num_trained if run.config.optimizer.fused_backward else result.gradients / run.weight_bytes


def presets_by_hash() -> Iterator[tuple[str, tuple[list[str], TrainConfig]]]:
    """(hash, (the presets and sizes whose runs are the same, their settings))."""
    found: dict[str, tuple[list[str], TrainConfig]] = {}
    for preset in list_presets():
        sizes = [memory for memory in MEMORY_SIZES if has_variants(preset.name)]
        for memory in sizes:
            if why_not_offered(preset.name, memory):
                continue
            name = variant_name(preset.name, memory)
            config = config_from_values(sized_preset(name))
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
    memory = model_of(config).memory
    data = (config.data.shape, config.data.resolutions, config.data.frames)
    samples = [(sample.width, sample.height, sample.frames) for sample in config.sampling.samples if sample.enabled]
    optimizer = (config.optimizer.name, config.optimizer.stochastic_rounding, config.optimizer.fused_backward)
    sections = ("model", "lora", "ema", "denoiser", "text_encoder")
    changed = {section: _changed(config, section) for section in sections}
    changed["model"].pop("denoiser", None)  # where its weights come from
    parts = (config.method, *changed.values())
    parts += (data, optimizer, len(config.embeddings))
    parts += (config.batch_size, config.gradient_accumulation_steps)
    parts += (config.sampling.batch_size, config.sampling.makes_samples, samples, memory and memory["counted_from"])
    if METHODS[config.method].compares:
        parts += (sorted(fixed_prompts(config)), METHODS[config.method].takes_pairs(config), has_images(config))
    if has_sources(config):
        parts += ("source clips",)
    parts += (ALLOCATOR, PROCESS_BYTES, SIMULATION_VERSION)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _save(results: dict[str, dict[str, Any]], corrections: dict[str, dict[str, float]]) -> None:
    SIMULATED_FILE.write_text(_text(results, corrections), encoding="utf-8", newline="\n")


def kept_text() -> str:
    """The text of SIMULATED_FILE without presets and families that are no more."""
    names = tuple(f"{preset.name}-" for preset in list_presets())
    results = {
        key: {**value, "presets": own}
        for key, value in load_results().items()
        if (own := [name for name in value["presets"] if name.startswith(names)])
    }
    return _text(
        results, {model: kinds for model, kinds in load_corrections().items() if model in load_architectures()}
    )


def _text(results: dict[str, dict[str, Any]], corrections: dict[str, dict[str, float]]) -> str:
    ordered = sorted(results.items(), key=lambda item: item[1]["presets"])
    tables = {"corrections": sorted(corrections.items()), "results": ordered}
    parts = []
    for name, rows in tables.items():  # a row a line
        lines = ",\n".join(f"    {json.dumps(key)}: {json.dumps(value, sort_keys=True)}" for key, value in rows)
        parts.append(f'  "{name}": {{\n{lines}\n  }}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    sys.exit(main())
