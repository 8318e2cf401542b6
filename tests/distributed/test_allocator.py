"""Expandable segments are enabled if the driver supports them and the user has not configured the allocator."""

from __future__ import annotations

import platform
import sys

import pytest
import torch

from modules.distributed.allocator import OFF, ON, VARIABLES, enable_expandable_segments


@pytest.fixture
def told(monkeypatch) -> list[str]:
    """The settings passed to the allocator, on Linux with a working GPU."""
    settings = []
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", settings.append)
    monkeypatch.setattr(torch, "empty", lambda *size, device: None)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform, "release", lambda: "6.8.0-45-generic")
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return settings


def test_expandable_segments_are_enabled_on_linux(told):
    enable_expandable_segments(torch.device("cuda", 0))
    assert told == [ON]


@pytest.mark.parametrize("name", VARIABLES)
def test_allocator_settings_in_the_environment_are_kept(name, told, monkeypatch):
    monkeypatch.setenv(name, "max_split_size_mb:128")
    enable_expandable_segments(torch.device("cuda", 0))
    assert told == []


@pytest.mark.parametrize(("system", "release"), [("win32", "10"), ("linux", "5.15.153.1-microsoft-standard-WSL2")])
def test_unsupported_platforms_are_left_alone(system, release, told, monkeypatch):
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "release", lambda: release)
    enable_expandable_segments(torch.device("cuda", 0))
    assert told == []


@pytest.mark.parametrize(
    ("error", "settings"),
    [
        (RuntimeError("CUDA driver error: operation not supported"), [ON, OFF]),
        (torch.OutOfMemoryError("CUDA out of memory."), [ON]),  # another program uses the memory
    ],
)
def test_expandable_segments_are_disabled_again_if_the_trial_fails(error, settings, told, monkeypatch):
    def fail(*size, device):
        raise error

    monkeypatch.setattr(torch, "empty", fail)
    enable_expandable_segments(torch.device("cuda", 0))
    assert told == settings


def test_torch_accepts_the_settings():
    """Works without CUDA, too, so that a renamed setting is noticed on any machine."""
    torch._C._accelerator_setAllocatorSettings(OFF)
