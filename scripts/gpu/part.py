"""The process of one part, or of one case of it: `python -m scripts.gpu.part NAME --device cuda:0 --results FILE`."""

from __future__ import annotations

import argparse
import gc
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from scripts.gpu.cases import is_cuda, load_check, measure_cases
from scripts.gpu.parts import PARTS, Part
from scripts.gpu.results import append_line


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=PARTS)
    parser.add_argument("--device", required=True)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--case", default="", help="this one alone")
    args = parser.parse_args()
    part = PARTS[args.name]
    if part.processes and not args.case:
        return run_apart(part, args.device, args.results)
    return run_here(part, args.device, args.results, args.case)


def run_here(part: Part, device: str, results: Path, case: str = "") -> int:
    """Measures the cases in this process. Returns 1 if one of them failed."""
    failed = False
    for check in part.checks:
        for result in measure_cases(check, device, case):
            append_line(results, {"part": part.name, **result})
            failed = failed or result["ok"] is False
            _free_memory(device)
    return int(failed)


def run_apart(part: Part, device: str, results: Path) -> int:
    """Measures each case in a process of its own, some at once. Returns 1 if one of them failed."""
    cases = [case for check in part.checks for case, _ in load_check(check)(device)]

    def run(case: str) -> int:
        command = [sys.executable, "-m", "scripts.gpu.part", part.name, "--device", device, "--results", str(results)]
        code = subprocess.run([*command, "--case", case], stdin=subprocess.DEVNULL, check=False).returncode
        if code not in (0, 1):  # it died before it could write a result
            text = f"its process ended with {code}"
            append_line(results, {"part": part.name, "check": part.name, "case": case, "ok": False, "text": text})
        return code

    with ThreadPoolExecutor(part.processes) as threads:
        return int(any(list(threads.map(run, cases))))


def _free_memory(device: str) -> None:
    """What a case has left to the collector does not count for the next one."""
    torch: Any = sys.modules.get("torch")
    gc.collect()
    if torch and is_cuda(device):
        torch.cuda.empty_cache()


if __name__ == "__main__":
    sys.exit(main())
