"""Runs of the same settings on one rank, on two, and on two with a break."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import rank_scenarios
from tests.support.RankPool import RankPool, run_alone


def assert_two_ranks_are_exact(
    settings: Callable[..., Any], two_ranks: RankPool, folder: Path, break_after: int
) -> list[float]:
    """Asserts that two ranks give the curve of one, and go on exactly after a break; returns the losses of one rank.

    settings: `settings(name, *overrides)` writes NAME.yaml in `folder`, and has the run in a folder of that name.
    break_after: steps.
    """
    for name in ("one", "whole"):
        settings(name, "backup.at_end=false")
    settings("first", f"max_steps={break_after}")
    settings("rest", f"workspace_dir={folder / 'first'}")
    alone = run_alone(rank_scenarios.train, config=str(folder / "one.yaml"))
    whole, first, rest = (
        two_ranks.run(rank_scenarios.train, config=str(folder / f"{name}.yaml"), resume=name == "rest")
        for name in ("whole", "first", "rest")
    )
    assert whole[0]["digest"] == whole[1]["digest"]
    assert whole[0]["losses"] == pytest.approx(alone["losses"], rel=1e-6)
    for of_whole, of_first, of_rest in zip(whole, first, rest, strict=True):
        assert of_first["losses"] + of_rest["losses"] == of_whole["losses"]
        assert of_rest["digest"] == of_whole["digest"]
    return alone["losses"]
