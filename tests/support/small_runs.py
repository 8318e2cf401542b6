"""Settings of short runs on tiny models, as one family or another needs them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from modules.config.families import FamilyInfo, load_families
from tests.support.pictures import Sizes, write_layers, write_pictures
from tests.support.videos import write_video

# Eleven images in three buckets: with a batch size of 4, an epoch has steps of 4, 4 and 3, one with mixed shapes.
SIZES: Sizes = ((32, 32),) * 5 + ((48, 32),) * 3 + ((32, 48),) * 3


def small_run(folder: Path, base: Path, pictures: Path) -> dict[str, object]:
    """The values of a quick run of Stable Diffusion 1.5; folder: of what it writes."""
    return {
        "family": "sd15",
        "workspace_dir": str(folder / "run"),
        "cache_dir": str(folder / "cache"),
        "model": {"base": str(base)},
        "concepts": [{"path": str(pictures)}],
        "data": {"resolution": 32, "bucket_step": 8},
        "lora": {"rank": 4, "alpha": 4.0},
        "optimizer": {"learning_rate": 1e-3},
        "output": {"format": "diffusers"},
        "epochs": 100,
        "max_steps": 4,
        "tensorboard": False,
    }


def family_settings(name: str) -> Iterator[str]:
    """What a small run of a family has beside its data ("path=value"): sizes that its model takes, and one sample."""
    family = load_families()[name]
    side = max(32, 2 * family.align)
    yield f"family={name}"
    yield f"data.resolution={side}"
    yield f"data.bucket_step={side // 2}"
    # without a prompt, a sample takes caption and images of the dataset
    yield f"sampling.samples=[{{prompt: '{'' if _takes_images(family) else 'a photo of a cat'}', steps: 2}}]"


def family_data(name: str, folder: Path) -> dict[str, object]:
    """Makes what a family trains on beside images: videos, sources, layers or references.

    Returns their settings, {path: value}; empty if the family needs none of them.
    """
    family = load_families()[name]
    if family.fact("first_frame", "needed"):
        frames = family.frame_step + family.frame_rest
        video = write_video(folder / "videos" / "000.mp4", frames, size=(48, 32))
        video.with_suffix(".txt").write_text("a video of a cat, number 0", encoding="utf-8")
        return {"concepts.0.path": video.parent, "data.frames": frames}
    if section := family.fact("section_history", "section"):
        video = write_video(folder / "videos" / "000.mp4", 2 * section, size=(48, 32), fps=round(family.fps))
        video.with_suffix(".txt").write_text("a video of a cat, number 0", encoding="utf-8")
        return {"concepts.0.path": video.parent, "data.frames": 2 * section}
    if family.fact("source_clip", "needed"):
        frames = 2 * family.frame_step + family.frame_rest
        write_video(folder / "before" / "000.mp4", frames, size=(96, 64), fps=round(family.fps), first=20)
        video = write_video(folder / "after" / "000.mp4", frames, size=(48, 32), fps=round(family.fps))
        video.with_suffix(".txt").write_text("a video of a cat, number 0", encoding="utf-8")
        folders = {"concepts.0.path": video.parent, "concepts.0.source_folder": folder / "before"}
        return {**folders, "data.frames": frames}
    if family.takes("layers"):
        images = write_pictures(folder / "whole")
        return {"concepts.0.path": images, "concepts.0.layer_folder": write_layers(folder / "layers", images)}
    if family.fact("references", "needed"):
        after, before = write_pictures(folder / "after"), write_pictures(folder / "before")
        return {"concepts.0.path": after, "concepts.0.reference_folder": before}
    return {}


def _takes_images(family: FamilyInfo) -> bool:
    """Whether the samples of a family start from an image or a clip."""
    return bool(
        family.fact("first_frame", "needed")
        or family.fact("references", "needed")
        or family.takes("inpainting")
        or family.fact("source_clip", "needed")
    )
