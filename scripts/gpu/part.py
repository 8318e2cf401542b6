"""The process of one part, or of one case of it: `python -m scripts.gpu.part NAME --device cuda:0 --results FILE`."""

from __future__ import annotations

import argparse
import gc
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from scripts.gpu.cases import is_cuda, load_check, measure_cases
from scripts.gpu.parts import PARTS, Part
from scripts.gpu.results import append_line, read_lines

REHEARSING = 2  # processes that share the cases of a part on the CPU


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=PARTS)
    parser.add_argument("--device", required=True)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--cases", nargs="+", default=(), help="these alone")
    args = parser.parse_args()
    part = PARTS[args.name]
    if part.processes and not args.cases:
        return run_apart(part, args.device, args.results)
    return run_here(part, args.device, args.results, args.cases)


def run_here(part: Part, device: str, results: Path, chosen: Sequence[str] = ()) -> int:
    """Measures the cases, or the chosen ones alone, in this process. Returns 1 if one of them failed."""
    failed = False
    for check in part.checks:
        for result in measure_cases(check, device, chosen):
            append_line(results, {"part": part.name, **result})
            failed = failed or result["ok"] is False
            _free_memory(device)
    return int(failed)


def run_apart(part: Part, device: str, results: Path) -> int:
    """Measures each case in a process of its own, some at once. Returns 1 if one of them failed.

    A rehearsal shares the cases out to a few processes, as starting them would take most of its time.
    """
    cases = [case for check in part.checks for case, _ in load_check(check)(device)]
    begun = len(_lines(results))
    shares = (
        [[case] for case in cases] if is_cuda(device) else [cases[first::REHEARSING] for first in range(REHEARSING)]
    )

    def run(share: list[str]) -> int:
        command = [sys.executable, "-m", "scripts.gpu.part", part.name, "--device", device, "--results", str(results)]
        code = subprocess.run([*command, "--cases", *share], stdin=subprocess.DEVNULL, check=False).returncode
        if code not in (0, 1):  # it died before it could write all results
            found = {line.get("case") for line in _lines(results)[begun:]}
            text = f"its process ended with {code}"
            for case in share:
                if case not in found:
                    line = {"part": part.name, "check": part.name, "case": case, "ok": False, "text": text}
                    append_line(results, line)
        return code

    with ThreadPoolExecutor(part.processes) as threads:
        return int(any(list(threads.map(run, filter(None, shares)))))


def _lines(results: Path) -> list[dict[str, Any]]:
    return read_lines(results) if results.exists() else []


def _free_memory(device: str) -> None:
    """What a case has left to the collector does not count for the next one."""
    torch: Any = sys.modules.get("torch")
    gc.collect()
    if torch and is_cuda(device):
        torch.cuda.empty_cache()


if __name__ == "__main__":
    sys.exit(main())
