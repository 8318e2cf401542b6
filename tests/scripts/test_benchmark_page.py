"""What a benchmark has measured, as the table and the plot of its page."""

import json
import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest

from scripts import benchmark_page
from scripts.benchmarks import real_sizes
from scripts.benchmarks.results import Comparison, Figure, Target
from scripts.gpu.results import Visit

PAGE = f"By hand.\n{benchmark_page.BEGIN}\nold\n{benchmark_page.END}\nBy hand, too.\n"
MACHINE: dict[str, Any] = {"device": "cpu", "cores": 2, "system": "Linux", "python": "3.11"}
MACHINE |= dict.fromkeys(("torch", "diffusers", "transformers", "peft"), "1.0")


def test_the_page_shows_what_was_measured_between_what_is_written_by_hand():
    comparison = Comparison("step <lora>", "s", Target(1.0, most_high=1.02), [(0.9, 1.0), (1.01, 1.0), (3.0, 1.0)])
    figure = Figure("kernels' share", 0.2, "of a step", 0.3, "of a GPU", at_least=True)
    run = {"machine": MACHINE, "comparisons": [comparison.as_values()], "real": [figure.as_values()]}
    made = benchmark_page.pages([json.loads(json.dumps(run))], PAGE)
    page, plot = made[benchmark_page.PAGE], made[benchmark_page.PLOT]
    assert page.startswith("By hand.\n")
    assert page.endswith("\nBy hand, too.\n")
    assert "old" not in page
    assert "| step <lora> | 1.010 | 0.900 to 3.000 | at most 1.00, high 1.02 | open |" in page
    assert "| kernels' share | 0.2 of a step | at least 0.3 | missed | of a GPU |" in page
    drawn = ElementTree.fromstring(plot)
    dots = [node for node in drawn if node.tag.endswith("circle")]
    assert [dot.get("cx") for dot in dots] == [str(benchmark_page._x(1.01))]
    assert f"H{benchmark_page._x(benchmark_page.HIGHEST)}" in plot, "what lies outside is drawn at the edge"
    assert "step &lt;lora&gt;" in plot


def test_the_page_is_what_its_measurements_make_of_it():
    runs = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(benchmark_page.FOLDER.glob("*.json"))]
    made = benchmark_page.pages(runs, benchmark_page.PAGE.read_text(encoding="utf-8"))
    for path, text in made.items():
        assert path.read_text(encoding="utf-8") == text, "run python scripts/benchmark_page.py --write"


@pytest.mark.parametrize(
    ("value", "at_least", "verdict"), [(1.0, False, "met"), (1.1, False, "missed"), (1.1, True, "met")]
)
def test_a_figure_says_on_which_side_of_its_target_it_is(value, at_least, verdict):
    assert Figure("share", value, "", 1.0, at_least=at_least).verdict == verdict


def test_a_model_of_real_size_is_told_with_what_fills_its_step(capsys):
    own = {"batch_size": 4, "step_seconds": 0.8, "operators": 5000, "kernel_seconds": 0.2, "kernel_count": 4000}
    own |= {"flops": 4e12, "peak_gib": 7.8, "estimated_gib": 8.0}
    lines: list[dict[str, Any]] = [{"visit": ""}]
    lines.append({"check": "matrix_peak", "case": "8192", "ok": True, "values": {"tflops": 50.0}})
    cases: dict[str, dict[str, Any]] = {
        "sdxl | batch 4 | Chorus": {"ok": True, "values": own},
        "sdxl | batch 4 | by hand": {"ok": True, "values": {"step_seconds": 1.0, "peak_gib": 7.8}},
        "flux1 | nf4 | Chorus": {"ok": None, "text": "needs the package bitsandbytes"},
    }
    lines += [{"check": "real_steps", "case": case, **line} for case, line in cases.items()]
    speed, share, beside, memory = real_sizes.figures_of(Visit(lines), list(cases))
    assert speed.value == 5.0
    parts = ["step 0.800 s", "operators 5,000", "kernels 4,000, 25% of the step", "matrix peak 10%"]
    assert speed.details == ", ".join([*parts, "memory 7.80 GiB", "estimate 8.00 GiB"])
    assert (share.value, share.verdict) == (0.25, "missed")
    assert (beside.what, beside.value) == ("sdxl, batch 4, step beside by hand", 0.8)
    assert (memory.value, memory.verdict) == (1.0, "met")
    assert "flux1, nf4, Chorus: left out: needs the package bitsandbytes" in capsys.readouterr().out
