"""The demo in a copy of Chorus, for runs of which it is no matter what they learn."""

from __future__ import annotations

from pathlib import Path

LARGE = {"\nbatch_size: 64\n": "\nbatch_size: 8\n", " steps: 20,": " steps: 1,"}  # of the preset: steps are of samples
KEPT = 10  # one image of as many


def shrink_demo(chorus: Path) -> None:
    """Leaves few images and makes steps and samples of its preset cheap."""
    preset = chorus / "resources" / "presets" / "demo.yaml"
    text = preset.read_text(encoding="utf-8")
    for large, small in LARGE.items():
        assert large in text
        text = text.replace(large, small)
    preset.write_text(text, encoding="utf-8")
    for folder in ("pictures", "regularisation"):
        for number, image in enumerate(sorted((chorus / "resources" / "demo" / folder).glob("*.png"))):
            if number % KEPT:
                image.unlink()
                image.with_suffix(".txt").unlink()
