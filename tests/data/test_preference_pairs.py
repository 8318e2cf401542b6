"""Pairs of images: listed in a file, as the comparison of runs writes it, or named alike in two folders."""

import json

import pytest

from modules.config.TrainConfig import TrainConfig
from modules.data.concepts import captions
from modules.data.conditions.pairs import PAIR
from modules.data.errors import DataError
from modules.data.preference_pairs import FILE_NAME, add_preference
from modules.data.prepare import prepare_data
from modules.families.registry import FAMILIES


def dataset_of(folder, **concept):
    settings = {"method": "preference", "concepts": [{"path": str(folder), **concept}]}
    config = TrainConfig(**settings, data={"resolution": 32, "bucket_step": 8})
    return prepare_data(config, FAMILIES["sd15"])[0]


def test_what_a_person_prefers_is_listed_and_read_again(tmp_path, picture_folder):
    samples, folder = picture_folder(((32, 32),) * 3), tmp_path / "preferences"
    a, b, c = sorted(samples.glob("*.png"))
    add_preference(folder, a, b, "a cat")
    add_preference(folder, a, c, "the cät")
    dataset = dataset_of(folder)
    assert [path.rpartition("/")[2] for path in dataset.paths] == [a.name, a.name]
    assert [files[0].rpartition("/")[2] for files in dataset.column(PAIR)] == [b.name, c.name]
    assert captions(dataset) == [("a cat",), ("the cät",)]
    assert not dataset.missing_captions
    assert len(list((folder / "images").iterdir())) == 3


def test_other_images_of_the_same_name_are_kept_apart(tmp_path, picture_folder):
    first, second = picture_folder(((32, 32),), name="one"), picture_folder(((40, 32),), name="two")
    add_preference(tmp_path, *(next(iter(folder.glob("*.png"))) for folder in (first, second)), "a cat")
    line = json.loads((tmp_path / FILE_NAME).read_text(encoding="utf-8"))
    assert line == {"chosen": "images/000.png", "rejected": "images/000-1.png", "prompt": "a cat"}


def test_two_folders_pair_images_of_the_same_names(picture_folder):
    chosen, rejected = picture_folder(((32, 32),) * 2, name="a"), picture_folder(((40, 32),) * 2, name="b")
    dataset = dataset_of(chosen, pair_folder=str(rejected))
    assert [files[0] for files in dataset.column(PAIR)] == sorted(map(str, rejected.glob("*.png")))
    assert all(caption != ("",) for caption in captions(dataset))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "lists no pair"),
        ("[1]", "line 1: each line must be"),
        ("{", "line 1: each line must be"),
        ('\n{"chosen": "none.png", "rejected": "000.png", "prompt": ""}', "line 2: .*none.png is missing"),
        ('{"chosen": "000.png", "rejected": "none.png", "prompt": ""}', "none.png is missing"),
        ('{"chosen": "000.txt", "rejected": "000.png", "prompt": ""}', "is not among the images"),
    ],
)
def test_a_wrong_line_is_named(text, reason, picture_folder):
    folder = picture_folder(((32, 32),) * 2)
    (folder / FILE_NAME).write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=reason):
        dataset_of(folder)


def test_without_pairs_the_remedy_is_named(picture_folder):
    with pytest.raises(DataError, match="name the folder with the rejected images, or add that file"):
        dataset_of(picture_folder(((32, 32),) * 2))
