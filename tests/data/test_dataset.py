"""Samples that are taken from a dataset keep all that belongs to them."""

import itertools
from pathlib import Path

import pytest
from PIL import Image

from modules.config.clips import ClipRule
from modules.config.ConceptConfig import ConceptConfig
from modules.data.clips import clip_of, with_clips
from modules.data.concepts import scan
from modules.data.conditions.references import references_of, with_references
from modules.data.masks import mask_of, with_masks
from modules.families.registry import FAMILIES

STEPS = {
    "masks": with_masks,
    "references": lambda dataset: with_references(dataset, FAMILIES["flux2_klein"]),
    "clips": lambda dataset: with_clips(dataset, ClipRule(3, 16.0, "chunks", 2)),
}


@pytest.fixture
def found(tmp_path):
    """Folders of 4 to 7 frames with masks and references; the first mask and the second reference are damaged."""
    for number in range(4):
        for frame in range(4 + number):
            write(tmp_path / "clips" / f"{number}" / f"{frame}.png")
        for kind in ("masks", "references"):
            write(tmp_path / kind / f"{number}.png")
    for damaged in ("masks/0.png", "references/1.png"):
        (tmp_path / damaged).write_bytes(b"no image")
    folders = {"mask_folder": str(tmp_path / "masks"), "reference_folder": str(tmp_path / "references")}
    return scan([ConceptConfig(path=str(tmp_path / "clips"), frame_folders_fps=16.0, **folders)], videos=True)


def write(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (16, 16)).save(path)


@pytest.mark.parametrize("order", list(itertools.permutations(STEPS)), ids=" ".join)
def test_in_any_order_each_sample_gets_what_belongs_to_its_image(order, found):
    dataset = found
    for name in order:
        dataset = STEPS[name](dataset)
    for sample, path in enumerate(dataset.paths):
        (reference,) = references_of(dataset, sample)
        assert Path(reference.path).stem == Path(mask_of(dataset, sample)).stem == Path(path).name
    clips = [(Path(path).name, round(clip_of(dataset, row).start * 16)) for row, path in enumerate(dataset.paths)]
    assert clips == [("2", 0), ("2", 3), ("3", 0), ("3", 3)]
