"""Writes the measured part of docs/benchmarks.md, table and plot, from what scripts/benchmark.py has measured.

    python scripts/benchmark.py all --json docs/benchmarks/cpu.json
    python scripts/benchmark_page.py --write

Each file of docs/benchmarks is a run; several may share the work of `all` among them.
"""

import json
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from scripts.generated_file import write_or_check  # noqa: E402

PAGE, FOLDER = ROOT / "docs" / "benchmarks.md", ROOT / "docs" / "benchmarks"
PLOT = ROOT / "docs" / "images" / "ratios.svg"
BEGIN, END = "<!-- made by scripts/benchmark_page.py -->", "<!-- end of what it makes -->"

LINE = 120  # characters of the page
# The plot, in pixels
ROW, NAMES, WIDTH, PADDING = 22, 330, 460, 14
LOWEST, HIGHEST, TICK = 0.4, 1.4, 0.2  # of its ratios; what lies outside is drawn at its edge
FONT = 'font-family="sans-serif" font-size="12"'
COLORS = {"met": "#2a9d5c", "open": "#d09000", "missed": "#cc3b33", "": "#5b6b7b"}


def main() -> int:
    runs = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.json"))]
    return write_or_check(__doc__.splitlines()[0] if __doc__ else "", pages(runs, PAGE.read_text(encoding="utf-8")))


def pages(runs: Sequence[dict[str, Any]], page: str) -> dict[Path, str]:
    """path -> text of what is made of the runs. page: the page as it is, whose hand-written parts stay."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    made = "\n".join([BEGIN, *section(runs), END])
    return {PAGE: before + made + after, PLOT: plot(comparisons_of(runs))}


def section(runs: Sequence[dict[str, Any]]) -> Iterator[str]:
    comparisons = comparisons_of(runs)
    machines = {_machine(run["machine"]): None for run in runs}
    yield "\n" + "\n".join(textwrap.wrap(f"Measured with {'; '.join(machines)}.", LINE)) + "\n"
    alternative = "The ratios of the table, a dot for each, with their intervals and targets"
    yield f"![{alternative}](images/{PLOT.name})\n"
    yield "| comparison | ratio | interval | target | | medians | pairs |\n|---|---|---|---|---|---|---|"
    for one in comparisons:
        ratio, sides = one["ratio"], one["sides"]
        ours, theirs = (median(side) for side in zip(*one["pairs"], strict=True))
        interval = f"{ratio['low']:.3f} to {ratio['high']:.3f}"
        target = f"{_target(one)} | {one.get('verdict', '')}"
        medians = f"{sides[0]} {ours:.4g} {one['unit']}, {sides[1]} {theirs:.4g}"
        yield f"| {one['what']} | {ratio['value']:.3f} | {interval} | {target} | {medians} | {len(one['pairs'])} |"
    figures = figures_of(runs)
    if figures:
        yield "\n| figure | value | target | | |\n|---|---|---|---|---|"
    for one in figures:
        target = "" if one["target"] is None else f"{'at least' if one['at_least'] else 'at most'} {one['target']:g}"
        shown = f"{one['value']:.3g} {one['unit']}"
        yield f"| {one['what']} | {shown} | {target} | {one['verdict']} | {one['details']} |"
    yield ""


def comparisons_of(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one for run in runs for one in run["comparisons"]]


def figures_of(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """All that is a single value: those of every benchmark but comparisons."""
    lists = [found for run in runs for name, found in run.items() if name not in ("machine", "comparisons", "finished")]
    return [one for found in lists for one in found if "value" in one]


def plot(comparisons: Sequence[dict[str, Any]]) -> str:
    """An SVG with a row for each: the interval as a line, the median as a dot, the target as a gray mark."""
    height = PADDING * 2 + ROW * (len(comparisons) + 1)
    total = NAMES + WIDTH + 2 * PADDING
    bottom = height - PADDING - ROW
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total} {height}" {FONT}>',
        f'<rect width="{total}" height="{height}" fill="white"/>',
    ]
    for tick in range(round((HIGHEST - LOWEST) / TICK) + 1):
        ratio = LOWEST + tick * TICK
        color = "#222222" if abs(ratio - 1) < TICK / 10 else "#dddddd"
        lines.append(f'<path d="M{_x(ratio)} {PADDING}V{bottom}" stroke="{color}"/>')
        lines.append(f'<text x="{_x(ratio)}" y="{bottom + 16}" text-anchor="middle" fill="#222222">{ratio:.1f}</text>')
    for number, one in enumerate(comparisons):
        lines += _plotted(one, PADDING + ROW * number + ROW // 2)
    return "\n".join([*lines, "</svg>"]) + "\n"


def _plotted(one: dict[str, Any], y: int) -> Iterator[str]:
    ratio, color = one["ratio"], COLORS[one.get("verdict", "")]
    yield f'<text x="{NAMES}" y="{y + 4}" text-anchor="end" fill="#222222">{escape(one["what"])}</text>'
    if one["target"]:
        x = _x(one["target"]["ratio"])
        yield f'<path d="M{x} {y - 8}V{y + 8}" stroke="#999999" stroke-width="3"/>'
    yield f'<path d="M{_x(ratio["low"])} {y}H{_x(ratio["high"])}" stroke="{color}" stroke-width="2"/>'
    yield f'<circle cx="{_x(ratio["value"])}" cy="{y}" r="4" fill="{color}"/>'


def _x(ratio: float) -> float:
    """Where a ratio is drawn."""
    inside = min(max(ratio, LOWEST), HIGHEST)
    return round(NAMES + PADDING + WIDTH * (inside - LOWEST) / (HIGHEST - LOWEST), 1)


def _target(one: dict[str, Any]) -> str:
    target = one["target"]
    if not target:
        return ""
    high = f", high {target['most_high']:.2f}" if target["most_high"] is not None else ""
    return f"{'at least' if target['at_least'] else 'at most'} {target['ratio']:.2f}{high}"


def _machine(facts: dict[str, Any]) -> str:
    packages = ", ".join(f"{name} {facts[name]}" for name in ("torch", "diffusers", "transformers", "peft"))
    return f"{facts['cores']} cores, device {facts['device']}, {facts['system']}, Python {facts['python']}, {packages}"


if __name__ == "__main__":
    sys.exit(main())
