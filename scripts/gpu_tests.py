"""Checks and measures Chorus on an NVIDIA GPU, with tiny models and with random weights in models of real size.

    python scripts/gpu_tests.py                       # everything that fits one GPU: ./scripts/test.sh --gpu
    python scripts/gpu_tests.py right --budget 180    # whether results are right; most parts beside each other
    python scripts/gpu_tests.py fast --budget 240     # how fast and how large; one part after another
    python scripts/gpu_tests.py --parts races ranks   # these parts; --list names all
    python scripts/gpu_tests.py --device cpu right    # a rehearsal without a GPU
    python scripts/gpu_tests.py --prepare DIR         # downloads what a bare machine with PyTorch lacks

It sets nothing up and needs no network: it runs in the environment that it is started with, and skips what that lacks.
Results are written as they are found, one JSON object a line, so that a run that is cut off keeps what it has;
scripts/gpu_report.py makes the tables of docs/gpu.md from them. What it prints is also written to gpu-report.txt,
without names of people, machines and networks.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

if __name__ == "__main__":  # before the imports that take long
    from scripts.terminal import prepare_terminal

    prepare_terminal()

from modules.machine.devices import list_gpus, num_cores
from modules.session.printing import print_line
from modules.session.redaction import redact
from scripts.gpu.parts import FAST, HALVES, PARTS, RIGHT, Part, parts_of
from scripts.gpu.results import FILE_NAME, append_line, read_lines
from scripts.gpu.scheduling import Room, run_parts
from scripts.gpu.travelling import download_wheels
from scripts.name_option import name_among
from scripts.terminal import show

Say = Callable[[str], None]

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "workspace" / "gpu"
REPORT = "gpu-report.txt"
DOCTOR = ("scripts/doctor.py", "--report", "--set", "workspace_dir=workspace", "--set", "cache_dir=workspace")
CPU, GPU = "cpu", "cuda:0"
SPARE_GIB = 4.0  # of the GPU, for the contexts of the processes
CORES_OF_A_PART = 2
MOST_SHOWN = 400  # characters of what went wrong in a case


def main(argv: Sequence[str] | None = None) -> int:
    """0 where nothing has failed, 1 where something has or did not come to its end, 2 where there is no GPU."""
    args = _parse(argv)
    if args.list:
        return _list_parts()
    if args.prepare:
        return download_wheels(args.prepare)
    args.out.mkdir(parents=True, exist_ok=True)
    with (args.out / REPORT).open("a", encoding="utf-8") as report:

        def say(text: str) -> None:
            show(text)
            report.write(redact(text) + "\n")
            report.flush()  # a part that hangs is read in it, too

        code = _run(args, say)
    if code == 1:
        show(f"Please attach {args.out / REPORT} to your report: it holds no names of people, machines and networks.")
    return code


def _run(args: argparse.Namespace, say: Say) -> int:
    has_device = args.device == CPU or has_gpu()
    if args.asks_doctor or not has_device:
        _consult_doctor(say)
    if not has_device:
        say("PyTorch finds no NVIDIA GPU that it can use: the lines above say why. --device cpu rehearses without one.")
        return 2
    results = args.out / FILE_NAME
    append_line(results, {"visit": date.today().isoformat(), "commit": commit(), "device": args.device})
    run_parts(args.parts, args.device, results, _room(args.device), args.budget, say)
    return _summarize(results, say)


def _summarize(results: Path, say: Say) -> int:
    """Says what has failed or was skipped since the command began. 0 where nothing failed, else 1."""
    lines = read_lines(results)
    begun = max(number for number, line in enumerate(lines) if "visit" in line)
    cases = [line for line in lines[begun:] if "check" in line]
    unended = [line for line in lines[begun:] if line.get("ended", "ok") not in ("ok", "failed")]
    for line in cases:
        if not line["ok"]:
            what = "skipped" if line["ok"] is None else "FAILED"
            why = line.get("text") or json.dumps(line.get("values", ""))
            say(f"{what}: {line['check']}: {line['case'] or 'all'}: {why[:MOST_SHOWN]}")
            for text in line.get("trace", ()):
                say(f"    {text}")
    for line in unended:
        say(f"NOT ENDED: {line['part']}: {line['ended']}; {line['part']}.log beside the results has its output")
    passed, failed = (sum(line["ok"] is outcome for line in cases) for outcome in (True, False))
    say(f"{passed} passed, {failed} failed, {len(cases) - passed - failed} skipped. Results: {results}")
    return int(bool(failed or unended or not passed))


def _consult_doctor(say: Say) -> None:
    command = [sys.executable, *DOCTOR]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        encoding="utf-8", errors="replace",
    ) as process:  # fmt: skip
        assert process.stdout is not None
        for line in process.stdout:
            say(line.rstrip("\n"))


def has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _room(device: str) -> Room:
    """What the parts may take together. Of a GPU of unknown size, one part at a time is to be content with it."""
    if device == CPU:
        return Room(math.inf, num_cores())
    processes = max(1, num_cores() // CORES_OF_A_PART)
    memory = [gpu.memory_bytes for gpu in list_gpus()[:1]]
    return Room(memory[0] / 2**30 - SPARE_GIB if memory and memory[0] else 0.0, processes)


def commit() -> str:
    """The commit of this checkout, with a plus sign if files were changed; "" outside of one."""
    try:
        head = _git("rev-parse", "--short=8", "HEAD")
        return head + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, encoding="utf-8", check=True)
    return done.stdout.strip()


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("half", nargs="?", choices=HALVES, help="; ".join(f"{k}: {v}" for k, v in HALVES.items()))
    parser.add_argument(
        "--parts", nargs="+", type=name_among(PARTS, "part", "--list"), metavar="NAME", help="these alone"
    )
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="for all of them; what runs then is ended")
    parser.add_argument("--out", type=Path, help="folder for results and logs; workspace/gpu/DATE if left out")
    parser.add_argument("--device", choices=(CPU, GPU), default=GPU, help="cpu: a rehearsal with tiny sizes")
    parser.add_argument("--list", action="store_true", help="name all parts")
    parser.add_argument("--prepare", type=Path, metavar="DIR", help="download what a machine with PyTorch lacks")
    args = parser.parse_args(argv)
    if args.half and args.parts:
        parser.error("--parts: a half has its own parts; leave one of the two out")
    args.asks_doctor = not args.half and not args.parts
    args.out = (args.out or FOLDER / date.today().isoformat()).resolve()
    args.parts = [PARTS[name] for name in args.parts or ()] or _parts(args.half)
    return args


def _parts(half: str | None) -> list[Part]:
    return parts_of(half) if half else [*parts_of(RIGHT), *parts_of(FAST)]


def _list_parts() -> int:
    for half, text in HALVES.items():
        print_line(f"{half}: {text}")
        for part in parts_of(half):
            print_line(f"  {part.name:12} at most {part.limit} s: {', '.join(part.checks)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
