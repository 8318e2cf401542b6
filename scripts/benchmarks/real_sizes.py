"""Steps of SDXL, FLUX.1 and Wan at their real sizes with random weights, by the checks of scripts/gpu.

On the CPU tiny models take their place: a rehearsal, whose figures mean nothing.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from modules.config.errors import UserError
from scripts.benchmarks.results import Figure
from scripts.benchmarks.workers import ROOT, environment_of, last_lines, new_run_folder, open_log
from scripts.gpu.cases import is_cuda
from scripts.gpu.results import Visit, kernels_share, matrix_share, read_lines

KERNELS_AT_LEAST = 0.3  # of a step
MEMORY_AT_MOST = 1.10  # of the loop by hand


def measure_real_sizes(folder: Path, device: str, models: Sequence[str]) -> Iterator[Figure]:
    """The cases of each model, in a process of its own, which frees its memory and the files of the model."""
    from scripts.gpu import step_speed
    from scripts.gpu.ceilings import PRODUCTS

    place = f"{device}:0" if is_cuda(device) else device
    with new_run_folder(folder) as run_folder:
        results = run_folder / "results.jsonl"
        results.write_text('{"visit": ""}\n', encoding="ascii")
        _measure("ceilings", [" x ".join(map(str, PRODUCTS[0]))], place, results)
        for model in models:
            cases = [case for case, _ in step_speed.real_steps(place) if case.partition(" | ")[0] == model]
            _measure("real", cases, place, results)
            yield from figures_of(Visit(read_lines(results)), cases)


def figures_of(visit: Visit, cases: Sequence[str]) -> Iterator[Figure]:
    """Images per second, what fills a step, and the ratios to other programs where they ran."""
    from scripts.gpu.step_speed import BY_HAND, CHORUS

    for case in cases:
        line = visit.cases.get(("real_steps", case), {})
        values = line.get("values") or {}
        model, label, program = case.split(" | ")
        what = f"{model}, {label}"
        if not line.get("ok"):
            print(f"{what}, {program}: {'failed' if line.get('ok') is False else 'left out'}: {line.get('text', line)}")
            continue
        if program == CHORUS:
            yield _own_figure(what, values, visit.peak_flops)
            if share := kernels_share(values):
                yield Figure(f"{what}, kernels' share", share, "of a step", KERNELS_AT_LEAST, at_least=True)
            continue
        own = visit.values("real_steps", f"{model} | {label} | {CHORUS}")
        if own:
            ratio = own["step_seconds"] / values["step_seconds"]
            yield Figure(f"{what}, step beside {program}", ratio, "of its time", details=f"{values['step_seconds']} s")
        if own and "peak_gib" in own and program == BY_HAND:
            ratio = own["peak_gib"] / values["peak_gib"]
            yield Figure(f"{what}, memory beside {program}", ratio, "of it", MEMORY_AT_MOST)


def _own_figure(what: str, values: dict[str, Any], peak_flops: float) -> Figure:
    of_peak, of_kernels = matrix_share(values, peak_flops), kernels_share(values)
    told = {
        "step": f"{values['step_seconds']:.3f} s",
        "operators": f"{values['operators']:,}" if "operators" in values else None,
        "kernels": f"{values['kernel_count']:,}, {of_kernels:.0%} of the step" if of_kernels else None,
        "matrix peak": f"{of_peak:.0%}" if of_peak else None,
        "memory": f"{values['peak_gib']:.2f} GiB" if "peak_gib" in values else None,
        "estimate": f"{values['estimated_gib']:.2f} GiB" if "estimated_gib" in values else None,
    }
    details = ", ".join(f"{name} {text}" for name, text in told.items() if text)
    speed = values["batch_size"] / values["step_seconds"]
    return Figure(what, speed, "images/s", details=details, values=values)


def _measure(part: str, cases: Sequence[str], device: str, results: Path) -> None:
    command = [sys.executable, "-m", "scripts.gpu.part", part, "--device", device, "--results", str(results)]
    env = environment_of(device.partition(":")[0])
    with open_log() as log:
        command += ["--cases", *cases]
        code = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env).returncode
        if code not in (0, 1):  # 1: a case has failed, and its result says why
            raise UserError(f"measuring {', '.join(cases)} ended with {code}: {last_lines(log)}")
