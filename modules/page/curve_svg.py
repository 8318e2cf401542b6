"""The loss of a run as an SVG picture. A pure function."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

from modules.runs.Curve import Point, smoothed

WIDTH, HEIGHT = 640, 240
_RIGHT, _TOP, _BOTTOM = 8, 8, 24  # of the axes' texts
_CHARACTER = 12  # the width of a digit in the size of text that page.css has for phones


def curve_svg(points: Sequence[Point], validation: Sequence[tuple[int, float | None]], num_steps: float) -> str:
    """The mean loss of each point, its running mean, and the validation losses; "" if there is nothing to draw.

    num_steps: over which the running mean goes.
    """
    shown = [(point, mean) for point, mean in zip(points, smoothed(points, num_steps), strict=True) if point.num_steps]
    checked = [(step, loss) for step, loss in validation if loss is not None and math.isfinite(loss)]
    if not shown:
        return ""
    last = max(shown[-1][0].step, *(step for step, _ in checked), 1)
    low, high = _range([*(mean for _, mean in shown), *(loss for _, loss in checked)], [one.loss for one, _ in shown])
    highest, lowest = f"{high:.3g}", f"{low:.3g}"
    left = _CHARACTER * (1 + max(len(highest), len(lowest)))

    def place(step: float, loss: float) -> str:
        x = left + (WIDTH - left - _RIGHT) * step / last
        share = min(max((loss - low) / (high - low), 0.0), 1.0)
        return f"{x:.1f},{_TOP + (HEIGHT - _TOP - _BOTTOM) * (1 - share):.1f}"

    lines = [
        _line("raw", [place(point.step, point.loss) for point, _ in shown]),
        _line("mean", [place(point.step, mean) for point, mean in shown]),
        _line("validation", [place(step, loss) for step, loss in checked]),
    ]
    bottom = HEIGHT - _BOTTOM
    texts = [
        (left - 6, _TOP + 10, "end", highest),
        (left - 6, bottom, "end", lowest),
        (left, HEIGHT - 6, "start", "0"),
        (WIDTH - _RIGHT, HEIGHT - 6, "end", f"step {last:,}"),
    ]
    title = html.escape(f"Loss up to step {last:,}, from {low:.4g} to {high:.4g}")
    return "".join(
        (
            f'<svg class="curve" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}">',
            f'<path class="axis" d="M{left},{_TOP}V{bottom}H{WIDTH - _RIGHT}"/>',
            *lines,
            *(
                f'<text x="{x}" y="{y}" text-anchor="{anchor}">{html.escape(text)}</text>'
                for x, y, anchor, text in texts
            ),
            "</svg>",
        )
    )


def _range(means: Sequence[float], losses: Sequence[float]) -> tuple[float, float]:
    """What the axis shows: all means, and the losses but for the highest and lowest of a hundred."""
    ordered = sorted(losses)
    cut = len(ordered) // 100
    low, high = min(*means, ordered[cut]), max(*means, ordered[-1 - cut])
    return (low, high) if high > low else (low - 0.5, low + 0.5)


def _line(name: str, places: Sequence[str]) -> str:
    if len(places) == 1:
        x, y = places[0].split(",")
        return f'<circle class="{name}" cx="{x}" cy="{y}" r="3"/>'
    return f'<polyline class="{name}" points="{" ".join(places)}"/>' if places else ""
