"""The most system memory that loading a quantized base takes, beside the size that it has in the end."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from modules.config.errors import UserError
from modules.session.atomic import new_folder
from scripts.benchmarks.results import Figure
from scripts.benchmarks.workers import ROOT, environment_of

FAMILY = "flux1"
WIDTH, LAYERS = 1024, {"num_layers": 2, "num_single_layers": 8}  # 200 million weights
SHARD_BYTES = 50 * 2**20
KINDS = {"int8": "torch", "nf4": "bitsandbytes"}  # and the package that it needs
MOST = 1.15  # of the final size, without one shard
INTERVAL_SECONDS = 0.0005


def measure_loading(folder: Path) -> Iterator[Figure]:
    """(Peak - one shard) / final size for each kind of weights, each in a process of its own.

    Raises UserError where the system does not tell a process's memory.
    """
    if not Path("/proc/self/status").exists():
        raise UserError("the memory while loading can't be measured on this system: run the benchmark on Linux.")
    model = folder / "wide model"
    if not model.exists():
        with new_folder(model) as temporary:
            _make_wide(temporary)
    for kind, package in KINDS.items():
        if not find_spec(package):
            print(f"loading, {kind}: left out, as {package} is not installed", flush=True)
            continue
        command = [sys.executable, "-m", "scripts.benchmarks.loading", str(model), kind]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", env=environment_of("cpu"))
        if done.returncode:
            raise UserError(f"loading the base as {kind} failed: {done.stderr.strip()}")
        found = json.loads(done.stdout.splitlines()[-1])
        shard = max(file.stat().st_size for file in (model / "transformer").glob("*.safetensors"))
        ratio = (found["peak_bytes"] - shard) / found["final_bytes"]
        sizes = {"peak": found["peak_bytes"], "final size": found["final_bytes"], "largest shard": shard}
        details = ", ".join(f"{name} {size / 2**20:.0f} MiB" for name, size in sizes.items())
        yield Figure(f"loading {kind}, peak of RAM", ratio, "of final size", MOST, details, sizes)


def load(model: Path, kind: str) -> dict[str, Any]:
    """Loads the denoiser, and gives the most memory that this took and the size of what is held in the end.

    The library of the kind is imported before: it takes the same for a base of any size.
    """
    import torch

    from modules.config.files import config_from_values
    from modules.families.registry import FAMILIES
    from modules.weights.BaseModel import BaseModel

    config = config_from_values(
        {
            "family": FAMILY,
            "model": {"base": str(model), "weight_dtype": "bfloat16", "denoiser_quantization": kind},
        }
    )
    base = BaseModel(FAMILIES[FAMILY], config.model, torch.device("cpu"))
    import_module(KINDS[kind])
    with _MemoryWatch() as watch:
        base.require("transformer")
    module = base.module("transformer")
    held = [*module.parameters(), *module.buffers()]
    return {"peak_bytes": watch.peak - watch.before, "final_bytes": sum(tensor.nbytes for tensor in held)}


class _MemoryWatch:
    """The most memory of its own, without mapped files, that this process has in the body; looked at all the time."""

    def __enter__(self) -> _MemoryWatch:
        self.before = self.peak = _own_bytes()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *reason: object) -> None:
        self._is_over.set()
        self._thread.join()
        self.peak = max(self.peak, _own_bytes())

    def _look(self) -> None:
        while not self._is_over.wait(INTERVAL_SECONDS):
            self.peak = max(self.peak, _own_bytes())


def _own_bytes() -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    fields = dict(line.split(":", 1) for line in status.splitlines())
    return int(fields["RssAnon"].split()[0]) * 1024


def _make_wide(path: Path) -> None:
    """The tiny model of the family with a denoiser of usual proportions, in shards."""
    import torch
    from diffusers import FluxTransformer2DModel

    from scripts.gpu.tiny_runs import tiny_model

    shutil.copytree(tiny_model(FAMILY), path, dirs_exist_ok=True)
    place = path / "transformer"
    config = FluxTransformer2DModel.load_config(place)
    shutil.rmtree(place)
    torch.manual_seed(0)
    heads = WIDTH // config["attention_head_dim"]
    denoiser = FluxTransformer2DModel.from_config({**config, "num_attention_heads": heads, **LAYERS})
    denoiser.to(torch.bfloat16).save_pretrained(place, max_shard_size=SHARD_BYTES)


if __name__ == "__main__":
    print(json.dumps(load(Path(sys.argv[1]), sys.argv[2])))
