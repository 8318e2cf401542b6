"""Simulates presets for tests/scripts/test_memory.py, in a process of its own: a device in Python is for good."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from modules.config.files import apply_overrides, config_from_values
from modules.config.presets import load_preset


def simulated(_: Any, preset: str, changes: Sequence[str] = ()) -> dict[str, int]:
    """The fields of its Simulation. changes: "path=value"."""
    from scripts.simulated_run import simulate

    return asdict(simulate(config_from_values(apply_overrides(load_preset(preset), changes))))
