"""The memory of presets on a real GPU, measured by the code that simulates it (scripts/simulated_run.py).

Models have their real size and zeros for weights, so that nothing is downloaded. On the CPU, which has no such figures,
a tiny model takes the place of the real one.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from typing import Any
from unittest import mock

from modules.machine.memory_estimate import CUBLAS_BYTES
from scripts.gpu.cases import Case, NotHere, is_cuda, needs_cuda

FIRST = ("sdxl-lora-12gb", "sdxl-full-24gb", "flux1-lora-24gb", "zimage-lora-16gb", "sd15-full-8gb")
MOST_GIB = 44  # by the estimate, of a preset that is measured beside other parts
ON_CPU = ("sd15-lora-8gb",)
SMALL = ("data.resolution=32", "sampling.samples=[{prompt: a cat, width: 32, height: 32}]")  # of a run on the CPU
LEAST_SHARE = 0.98  # of a measured peak, which an estimate must reach
CACHED_BYTES = 2**34  # what libraries may keep after a run


class RealMemory:
    """In place of the simulated GPU's: what the allocator says."""

    def __init__(self, device: str):
        self._is_cuda = is_cuda(device)

    @property
    def now(self) -> int:
        return _cuda().memory_allocated() if self._is_cuda else 0

    @property
    def peak(self) -> int:
        """Without the workspaces of cuBLAS, which the simulation counts as the process's."""
        return _cuda().max_memory_allocated() - CUBLAS_BYTES if self._is_cuda else 0

    def restart(self) -> None:
        if self._is_cuda:
            _cuda().synchronize()
            _cuda().reset_peak_memory_stats()

    def forget(self) -> None:
        gc.collect()
        if self._is_cuda:
            _cuda().empty_cache()
        self.restart()


def presets(device: str) -> Iterator[Case]:
    """Those that leave room for other parts: first the ones that are used most, then one of each family and method."""
    for name in _names(lambda gib: gib <= MOST_GIB) if is_cuda(device) else ON_CPU:
        yield name, partial(measured_peak, name, device)


def large_presets(device: str) -> Iterator[Case]:
    """The others, in the same order."""
    needs_cuda(device)
    for name in _names(lambda gib: gib > MOST_GIB):
        yield name, partial(measured_peak, name, device)


def _names(has_size: Callable[[float], bool]) -> list[str]:
    """A preset of each simulation whose estimate has the size, the most important ones first."""
    from modules.machine.memory_estimate import estimate_memory
    from scripts.memory import presets_by_hash

    kinds: dict[tuple[str, str], str] = {}
    others = []
    for _, (names, config) in presets_by_hash():
        estimate = estimate_memory(config)
        if estimate is None or not has_size(estimate.peak / 2**30):
            continue
        name = next((name for name in names if name in FIRST), names[0])
        if kinds.setdefault((config.family, config.method), name) != name:
            others.append(name)
    known = [*kinds.values(), *others]
    first = [name for name in FIRST if name in known]
    return [*first, *(name for name in known if name not in first)]


def measured_peak(name: str, device: str) -> dict[str, Any]:
    """The peak in GiB as measured, simulated and estimated; right if the estimate is not too low."""
    from modules.config.files import apply_overrides, config_from_values
    from modules.config.presets import load_preset
    from modules.machine.memory_estimate import estimate_memory
    from scripts.memory import result_of

    config = config_from_values(apply_overrides(load_preset(name), () if is_cuda(device) else SMALL))
    estimate, kept = estimate_memory(config), result_of(config)
    assert estimate is not None  # presets_by_hash leaves the others out
    _check_room(estimate.peak, device)
    found = _simulate_on(device, config)
    parts = {part: _gib(value) for part, value in asdict(found).items()}
    peaks = {"measured": _gib(found.peak), "simulated": _gib(kept.peak) if kept else None}
    reserved = {"reserved": _gib(_cuda().max_memory_reserved())} if is_cuda(device) else {}
    is_enough = estimate.peak >= LEAST_SHARE * found.peak
    return {"ok": is_enough, **peaks, "estimated": _gib(estimate.peak), **reserved, "parts": parts}


def _check_room(num_bytes: float, device: str) -> None:
    if is_cuda(device) and num_bytes > _cuda().mem_get_info()[0]:
        raise NotHere(f"{_gib(num_bytes)} GiB by the estimate are more than this GPU has free")


def _simulate_on(device: str, config: Any) -> Any:
    """What the simulation finds when its GPU is the real one."""
    import torch

    if "scripts.simulated_gpu" not in sys.modules:
        stand_in: Any = types.ModuleType("scripts.simulated_gpu")
        stand_in.GPU, stand_in.MEMORY = torch.device(device), RealMemory(device)
        sys.modules["scripts.simulated_gpu"] = stand_in
    from scripts import simulated_model, simulated_run

    new, encode_text = simulated_model.PublishedComponents.new, _encode_text_on(torch.device(device))

    with contextlib.ExitStack() as stack:
        for target, name, value in (
            (simulated_model.PublishedComponents, "new", lambda *component: _zeroed(new(*component))),
            (simulated_run, "encode_text", encode_text),
            (simulated_model, "encode_text", encode_text),
            (simulated_run, "ALLOCATOR", 1.0),  # a measured peak has no fragmentation to add
            (simulated_run, "_CACHED_BYTES", CACHED_BYTES),
        ):
            stack.enter_context(mock.patch.object(target, name, value))
        if not is_cuda(device):
            stack.enter_context(tiny_in_place_of(config.family))
        return simulated_run.simulate(config)


def _zeroed(module: Any) -> Any:
    """Zeros in system memory, which take none until they are written."""
    import torch

    return module._apply(lambda tensor: torch.zeros(tensor.shape, dtype=tensor.dtype) if tensor.is_meta else tensor)


def _encode_text_on(place: Any) -> Any:
    import torch

    def encode_text(base: Any, count: int) -> list[Any]:
        """As that of the simulation, whose tokens have no values."""
        outputs = []
        for name, (_, tokens) in zip(base.family.text.encoders, base.family.published.text_encoders, strict=True):
            ids = torch.zeros(count, tokens, dtype=torch.long, device=place)
            outputs.append(getattr(base.pipe, name)(ids)[0])
        return outputs

    return encode_text


@contextlib.contextmanager
def tiny_in_place_of(family: str) -> Iterator[None]:
    """Inside, the published model of a family has the sizes of its tiny one."""
    from modules.families.registry import FAMILIES

    own = FAMILIES[family]
    with mock.patch.dict(FAMILIES, {family: _with_tiny_parts(own)}):
        yield


def _with_tiny_parts(family: Any) -> Any:
    import json
    from dataclasses import replace

    from scripts.gpu.tiny_runs import tiny_model

    def config_of(part: str) -> dict[str, Any]:
        values = json.loads((tiny_model(family.name) / part / "config.json").read_text(encoding="utf-8"))
        return {key: value for key, value in values.items() if not key.startswith("_")}

    published = family.published
    encoders = zip(family.text.encoders, published.text_encoders, strict=True)
    tiny = [(replace(part, config=config_of(name)), tokens) for name, (part, tokens) in encoders]
    width = config_of(family.denoisers[0])["cross_attention_dim"]
    denoiser = replace(published.denoiser, config=config_of(family.denoisers[0]))
    vae = replace(published.vae, config=config_of(family.vae))
    text = {name: (*shape[:-1], width) for name, shape in published.text.items()}
    return replace(
        family, published=replace(published, denoiser=denoiser, vae=vae, text_encoders=tuple(tiny), text=text)
    )


def _cuda() -> Any:
    import torch

    return torch.cuda


def _gib(num_bytes: float) -> float:
    return round(num_bytes / 2**30, 2)
