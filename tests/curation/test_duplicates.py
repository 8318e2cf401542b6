"""Near-duplicates are found however they were saved, the better one is kept, and other images stay apart."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageEnhance

from modules.curation.duplicates import Candidate, Duplicates, Quality, find_duplicates
from modules.curation.measures import measure

PHOTOGRAPH = Path(__file__).parents[2] / "scripts" / "pictures" / "chelsea.jpg"


def candidate(path: Path, image: Image.Image, **options) -> Candidate:
    image.save(path, **options)
    return Candidate(path.name, image.width * image.height, path.stat().st_size, measure(str(path)))


@pytest.fixture(scope="module")
def photograph() -> Image.Image:
    with Image.open(PHOTOGRAPH) as image:
        return image.convert("RGB").resize((902, 600), Image.Resampling.LANCZOS)


@pytest.fixture(scope="module")
def images(photograph, tmp_path_factory) -> list[Candidate]:
    folder = tmp_path_factory.mktemp("images")
    width, height = photograph.size
    small = photograph.resize((width // 2, height // 2), Image.Resampling.LANCZOS)
    tiny = photograph.resize((width // 6, height // 6), Image.Resampling.LANCZOS)
    margin = round(width * 0.02), round(height * 0.02)
    edges = photograph.crop((*margin, width - margin[0], height - margin[1]))
    return [
        candidate(folder / "original.png", photograph),
        candidate(folder / "small.jpg", small, quality=30),
        candidate(folder / "bright.png", ImageEnhance.Brightness(small).enhance(1.15)),
        candidate(folder / "edges.jpg", edges.resize(small.size), quality=80),
        candidate(folder / "enlarged.jpg", tiny.resize((width * 2, height * 2), Image.Resampling.BICUBIC)),
        # others: a part, the same in gray, and mirrored
        candidate(folder / "part.png", photograph.crop((0, 0, width // 2, height // 2))),
        candidate(folder / "gray.png", photograph.convert("L").convert("RGB")),
        candidate(folder / "mirrored.png", photograph.transpose(Image.Transpose.FLIP_LEFT_RIGHT)),
    ]


def test_copies_are_grouped_below_the_best_one_and_others_stay_apart(images):
    (group,) = find_duplicates(list(reversed(images)))
    assert group.best == "original.png"
    assert set(group.others) == {"small.jpg", "bright.png", "edges.jpg", "enlarged.jpg"}
    assert group.others[-1] == "enlarged.jpg"  # of the most pixels
    assert find_duplicates([]) == []


def test_images_without_detail_are_duplicates_only_in_the_same_color(tmp_path):
    plain = [candidate(tmp_path / f"{color}.png", Image.new("RGB", (64, 64), color)) for color in ("red", "blue")]
    assert find_duplicates(plain) == []
    again = replace(plain[0], path="again.png", num_bytes=1)
    assert find_duplicates([*plain, again]) == [Duplicates("red.png", ("again.png",))]


def test_images_that_change_step_by_step_do_not_become_one_group(images):
    first = images[0]
    steps = [
        replace(first, path=f"{number}", num_pixels=1000 - number, measures=replace(first.measures, bits=bits))
        for number, bits in enumerate((1 << 4 * number) - 1 for number in range(6))
    ]
    groups = find_duplicates(steps)
    assert [(group.best, group.others) for group in groups] == [("0", ("1", "2")), ("3", ("4", "5"))]


def test_each_pair_of_many_images_is_compared(images):
    chance, known = np.random.default_rng(0), images[0].measures
    many = [
        Candidate(f"{number:04}", number, 0, replace(known, bits=int(bits)))
        for number, bits in enumerate(chance.integers(0, 2**63, 700))
    ]
    pairs = [(3, 690), (10, 11), (255, 256), (300, 299)]
    for first, second in pairs:
        many[second] = replace(many[second], measures=replace(known, bits=many[first].measures.bits ^ 0b11))
    found = {tuple(sorted((group.best, *group.others))) for group in find_duplicates(many)}
    assert found == {tuple(sorted((f"{first:04}", f"{second:04}"))) for first, second in pairs}


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (Quality(1000, 0.8, 1.0, 9), Quality(250, 0.8, 1.0, 5), "more pixels"),
        (Quality(4000, 0.4, 1.0, 9), Quality(1000, 0.8, 1.0, 5), "less sharp, but more pixels"),
        (Quality(1000, 0.8, 1.0, 5), Quality(4000, 0.4, 6.0, 9), "sharper, less noise, but fewer pixels"),
        (Quality(1000, 0.8, 1.0, 5), Quality(1000, 0.8, 1.0, 9), "smaller file"),
        (Quality(1000, 0.6795, 1.0, 9), Quality(1000, 0.681, 1.1, 5), "larger file"),  # of a photograph and its copy
        (Quality(1000, 0.8, 1.0, 5), Quality(1000, 0.8, 1.0, 5), ""),
    ],
)
def test_why_an_image_is_better_or_worse_is_said(one, other, expected):
    assert one.explain(other) == expected
