"""Write docs/gpu.md, what was found on GPUs, or check that it is up to date.

    python scripts/gpu_report.py --write
    python scripts/gpu_report.py --check
    python scripts/gpu_report.py --keep FILE     # add the results of gpu_tests.py to docs/gpu; then --write
    python scripts/gpu_report.py --show FILE     # print the tables of results without keeping them

docs/gpu has a file for each visit to a GPU, with one JSON object a line, as scripts/gpu/results.py describes it.
"""

import json
import re
import sys
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from modules.session.printing import print_line, print_text  # noqa: E402
from modules.session.redaction import redact  # noqa: E402
from scripts.generated_file import write_or_check  # noqa: E402
from scripts.gpu.results import Visit, kernels_share, matrix_share, read_lines  # noqa: E402

PAGE = ROOT / "docs" / "gpu.md"
FOLDER = ROOT / "docs" / "gpu"
CPU = "cpu"
WIDTH = 120  # characters of a line
CHORUS, BY_HAND, AS_SCRIPT = "Chorus", "by hand", "diffusers' script"
MOST_NAMES = 12  # of cases in a row
MATRIX_CHECK, SPEED_CHECKS, MEMORY_CHECKS = "matrix_peak", ("steps", "real_steps"), ("presets", "large_presets")
MEASURING = {MATRIX_CHECK, *SPEED_CHECKS, "attention_times", "overlap", "benchmark", "benchmark_full"}

HEAD = """\
# Chorus on GPUs

Made by `scripts/gpu_report.py` from the files in `docs/gpu`, one for each visit to a GPU. The newest visit comes first;
each says which state of Chorus it measured.

## How to run it

```bash
./scripts/test.sh --gpu                                # sets up, then runs everything that fits one GPU
python scripts/gpu_tests.py right --budget 180         # whether results are right: three minutes on an H200
python scripts/gpu_tests.py fast --budget 240          # how fast and how large: four minutes
python scripts/gpu_tests.py --parts races families     # these parts; --list names all, and those that need more
python scripts/gpu_tests.py --device cpu right         # a rehearsal without a GPU, for changes of the checks
```

`gpu_tests.py` installs nothing and needs no network: it runs in the environment that it is started with, and skips what
that lacks, with the reason. Each part is a process of its own with a time limit. Results are written to
`workspace/gpu/DATE` as they are found, so that a run that is cut off keeps what it has. Nothing is downloaded: models
are tiny where results are compared, and have random weights where speed and memory are measured, at their real size but
for FLUX.1, which has 18 of its 57 blocks when steps are timed. The part `real` times it whole, and Wan 2.2 5B: so does
`python scripts/benchmark.py real --device cuda`, which prints the figures as a table.

**On a rented machine** that has PyTorch but no network, prepare it on one that has: `python scripts/gpu_tests.py
--prepare wheels` downloads the dozen megabytes that such a machine usually lacks and prints the commands for it.

**To add a visit to this page:** `python scripts/gpu_report.py --keep workspace/gpu/DATE/results.jsonl`, then
`python scripts/generate.py --write`. Names of people, machines and networks are removed.

A step's time is the median of blocks of steps, with the GPU drained at both ends. Its kernels' share is what the same
kernels take one after another without pauses, divided by that time: the rest is waiting for the processor. The share of
the matrix peak is the step's floating-point operations, recomputation included, divided by its time and by the speed of
the card's fastest matrix product in bfloat16, which is measured, too. An estimate is what Chorus says before a run,
a simulation what it rests on ([memory.md](memory.md)); measured memory is what PyTorch allocated at most, and CUDA's
context as estimates have it (0.5 GiB in the first visit).
"""


def main() -> int:
    action, *paths = sys.argv[1:] or [""]
    if action in ("--keep", "--show") and len(paths) == 1:
        return keep(Path(paths[0])) if action == "--keep" else _print(Path(paths[0]))
    return write_or_check(__doc__.splitlines()[0], {PAGE: page()})


def page() -> str:
    """The whole page."""
    visits = [Visit(read_lines(path)) for path in sorted(FOLDER.glob("*.jsonl"), reverse=True)]
    return "\n".join([HEAD, *(line for visit in visits for line in section(visit))]).rstrip() + "\n"


def keep(source: Path) -> int:
    """Copies the results of the last commit that was measured into docs/gpu; 1 if there was no GPU."""
    lines = read_lines(source)
    visit = Visit(lines)
    if not visit.card or visit.head.get("device") == CPU:
        print_line(f"{source}: no GPU was measured; nothing is kept", sys.stderr)
        return 1
    words = re.sub(r"[^a-z0-9]+", "-", visit.card.lower().removeprefix("nvidia ")).strip("-")
    target = FOLDER / f"{visit.head['visit']}-{words}-{visit.head['commit'].strip('+') or 'unknown'}.jsonl"
    kept = [{name: value for name, value in line.items() if name != "trace"} for line in lines]
    text = "".join(redact(json.dumps(line)) + "\n" for line in kept)
    FOLDER.mkdir(exist_ok=True)
    target.write_text(text, encoding="utf-8", newline="\n")
    print_line(target)
    return 0


def _print(source: Path) -> int:
    print_text("\n".join(section(Visit(read_lines(source)))))
    return 0


# --- one visit --------------------------------------------------------------------------------------------------------


def section(visit: Visit) -> Iterator[str]:
    yield f"## {visit.head['visit']}: {visit.card or 'no GPU'}\n"
    yield from _paragraph(_versions(visit))
    if note := visit.head.get("note"):
        yield from _paragraph(note)
    yield from _checks(visit)
    yield from _waits(visit)
    yield from _memory(visit)
    yield from _speed(visit)
    yield from _card(visit)


def _versions(visit: Visit) -> str:
    facts = visit.values("facts", "versions")
    names = ("python", "torch", "cudnn", "nccl", "diffusers", "transformers", "peft", "driver")
    listed = ", ".join(f"{name} {facts[name]}" for name in names if facts.get(name))
    cores = f", {facts['cores']} cores" if facts.get("cores") else ""
    return f"Chorus at {visit.head['commit'] or 'an unknown commit'}, with {listed or 'unknown versions'}{cores}."


def _checks(visit: Visit) -> Iterator[str]:
    """What passed."""
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for (check, _), line in visit.cases.items():
        if check not in MEASURING:
            groups[check].append(line)
    yield "| check | passed | failed | skipped |\n|---|---|---|---|"
    for check, lines in groups.items():
        passed, failed, skipped = ([line for line in lines if line["ok"] is ok] for ok in (True, False, None))
        reasons = sorted({f"{line['text']}" for line in skipped})
        cells = [_counted(failed), f"{len(skipped)}: {'; '.join(reasons)}" if skipped else ""]
        yield f"| {check.replace('_', ' ')} | {len(passed)} | {' | '.join(cells)} |"
    ended = {name: how for name, how in visit.ended.items() if how not in ("ok", "failed")}
    if ended:
        yield from _paragraph("\nNot ended: " + "; ".join(f"{name} ({how})" for name, how in ended.items()) + ".")
    yield ""


def _counted(lines: list[dict[str, Any]]) -> str:
    """How many cases there are, and their names."""
    names = [line["case"] for line in lines if line["case"]]
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return f"{len(lines)}: {', '.join(names[:MOST_NAMES])}{more}".removesuffix(": ") if lines else ""


def _waits(visit: Visit) -> Iterator[str]:
    """The lines of Chorus at which steps wait for the GPU."""
    found: dict[str, list[str]] = defaultdict(list)
    for (_, case), line in visit.cases.items():
        for place in (line.get("values") or {}).get("waits", ()):
            found[place].append(case)
    if not found:
        return
    yield "Steps wait for the GPU at:\n"
    for place, cases in sorted(found.items()):
        listed = _counted([{"case": case} for case in cases])
        yield from _paragraph(f"* `{place}` in {listed}", ending="", indent="  ")
    yield ""


def _memory(visit: Visit) -> Iterator[str]:
    lines = [pair for check in MEMORY_CHECKS for pair in visit.of(check)]
    rows = [(case, line["values"]) for case, line in lines if "measured" in (line.get("values") or {})]
    if not rows:
        return
    yield "| peak memory in GiB | measured | simulated | estimated |\n|---|---|---|---|"
    for case, values in rows:
        others = (_number(values.get(name), 2) for name in ("simulated", "estimated"))
        yield f"| {case} | {values['measured']:.2f} | {' | '.join(others)} |"
    yield ""


def _speed(visit: Visit) -> Iterator[str]:
    """A row for each model and setting; columns for the programs."""
    rows: dict[tuple[str, str], dict[str, dict[str, Any]]] = defaultdict(dict)
    for case, line in [pair for check in SPEED_CHECKS for pair in visit.of(check)]:
        if "step_seconds" in (line.get("values") or {}):
            model, label, program = case.split(" | ")
            rows[model, label][program] = line["values"]
    if not rows:
        return
    yield (
        "| seconds of a step, LoRA of rank 16, 1024 pixels | Chorus | images/s | by hand | diffusers' script "
        "| kernels' share | share of the matrix peak | peak GiB | GiB by hand |\n|---|---|---|---|---|---|---|---|---|"
    )
    for (model, label), programs in rows.items():
        own = programs.get(CHORUS, {})
        times = [_number(programs.get(name, {}).get("step_seconds"), 3) for name in (CHORUS, BY_HAND, AS_SCRIPT)]
        seconds = own.get("step_seconds")
        speed = _number(own["batch_size"] / seconds, 2) if seconds and own.get("batch_size") else ""
        shares = [_percent(kernels_share(own)), _percent(matrix_share(own, visit.peak_flops))]
        sizes = [_number(programs.get(name, {}).get("peak_gib"), 2) for name in (CHORUS, BY_HAND)]
        yield f"| {model}, {label} | {times[0]} | {speed} | {' | '.join([*times[1:], *shares, *sizes])} |"
    yield ""


def _card(visit: Visit) -> Iterator[str]:
    """What the card does at best, and how copies and the small benchmark fare."""
    for case, line in visit.of(MATRIX_CHECK):
        if "tflops" in (line.get("values") or {}):
            yield f"* A product of {case} in bfloat16: {line['values']['tflops']:.0f} TFLOP/s."
    for case, line in visit.of("attention_times"):
        if "seconds" in (line.get("values") or {}):
            yield f"* Attention, {case}: {1000 * line['values']['seconds']:.2f} ms, forward and backward."
    for case, line in visit.of("overlap"):
        if "swapped_ms" in (values := line.get("values") or {}):
            times = f"{values['swapped_ms']} ms, resident {values['resident_ms']}, waited for {values['waited_for_ms']}"
            yield f"* A pass over swapped {case}: {times}; {values['gb_per_second']} GB/s."
    for case, line in visit.of("graph_speed"):
        if "times_as_fast" in (values := line.get("values") or {}):
            times = f"{values['with_step_seconds']} s a step, without {values['without_step_seconds']}"
            yield f"* CUDA graphs, {case}: {times}; {values['times_the_memory']} times the memory."
    for check in ("benchmark", "benchmark_full"):
        for _, line in visit.of(check):
            for what, ratio in (line.get("values") or {}).items():
                if isinstance(ratio, list):
                    yield f"* Small model, {what}: {ratio[0]} ({ratio[1]} to {ratio[2]}) of the loop by hand."
    yield ""


# --- text -------------------------------------------------------------------------------------------------------------


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share else ""


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _paragraph(text: str, ending: str = "\n", indent: str = "") -> Iterable[str]:
    """The text in lines that the page has room for, and a blank one."""
    lines = textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False, subsequent_indent=indent)
    return ["\n".join(lines) + ending]


if __name__ == "__main__":
    sys.exit(main())
