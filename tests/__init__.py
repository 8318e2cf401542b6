"""Tests: they mirror modules/."""
