"""What a waiting rank does in a test. It is spawned, so its functions are at the top of a module with few imports."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

NEEDED = ("torch", "diffusers.pipelines.stable_diffusion.pipeline_stable_diffusion", "peft")


def watched_import(family: str, noted: Path) -> None:
    """As `import_for_run` on a machine with a GPU; writes the calls by which torch would open or initialize it."""
    import torch

    from modules.launch.WaitingRanks import import_for_run

    calls: list[str] = []
    torch.cuda._is_compiled = lambda: True
    torch.cuda._device_count_nvml = lambda: 1
    torch.cuda._lazy_init = lambda: calls.append("_lazy_init")
    torch._C._cuda_getCurrentRawStream = lambda index: 0  # which a build without CUDA lacks
    torch._C._cuda_getDeviceCount = lambda: calls.append("_cuda_getDeviceCount") or 1
    import_for_run(family)
    noted.write_text(json.dumps(calls))


def note_arguments(local_rank: int, variables: dict[str, Any], noted: Path) -> None:
    started, touched = os.environ.get("CHORUS_STARTED"), json.loads(noted.read_text())
    missing = [name for name in NEEDED if name not in sys.modules]
    print(f"rank {local_rank}: {variables}, started {started}, devices touched: {touched}, missing: {missing}")
