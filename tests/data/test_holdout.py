"""What is held out depends on the content of the pictures alone, and is never trained on."""

import shutil

import numpy as np
import pytest
from PIL import Image

from modules.config.AugmentationConfig import AugmentationConfig
from modules.config.ConceptConfig import ConceptConfig
from modules.config.DataConfig import DataConfig
from modules.config.TrainConfig import TrainConfig
from modules.data.buckets import assign_buckets
from modules.data.concepts import scan
from modules.data.errors import DataError
from modules.data.holdout import hold_out, no_validation_warning
from modules.data.image_views import augmentation_of, with_views
from modules.data.RunPlan import RunPlan, samples_digest

SIZES = ((32, 32), (48, 32), (32, 48)) * 20


def held_names(dataset):
    return {path.rpartition("/")[2] for path, held in zip(dataset.paths, dataset.held_out, strict=True) if held}


def plan_of(dataset, unusable=()):
    buckets = assign_buckets(dataset.widths, dataset.heights, 32, 8, 2.0, True)
    return RunPlan(dataset, buckets, unusable, seed=1, global_batch=4), buckets


def test_about_the_share_is_held_out_and_stays_so_when_pictures_are_added_or_renamed(picture_folder):
    folder = picture_folder(SIZES)
    before = held_names(hold_out(scan([ConceptConfig(path=str(folder))]), 0.25))
    assert 5 <= len(before) <= 25
    for path in sorted(folder.glob("*.png"))[::2]:
        path.rename(folder / f"renamed-{path.name}")
    shutil.copy(next(folder.glob("*.png")), folder / "zzz.png")
    after = held_names(hold_out(scan([ConceptConfig(path=str(folder))]), 0.25))
    assert {name.removeprefix("renamed-") for name in after} - {"zzz.png"} == before


def test_equal_pictures_are_held_out_together(picture_folder):
    folder = picture_folder(SIZES)
    for path in sorted(folder.glob("*.png")):
        shutil.copy(path, folder / f"copy-{path.name}")
    names = held_names(hold_out(scan([ConceptConfig(path=str(folder))]), 0.3))
    originals = {name for name in names if not name.startswith("copy-")}
    assert names == originals | {f"copy-{name}" for name in originals}


def test_equal_folders_of_frames_are_held_out_together(tmp_path):
    for number in range(40):
        (tmp_path / f"clip{number % 20}.{number // 20}").mkdir()
        for frame in range(3):
            image = Image.new("RGB", (32, 32), (12 * (number % 20), 80 * frame, 0))
            image.save(tmp_path / f"clip{number % 20}.{number // 20}/{frame}.png")
    dataset = hold_out(scan([ConceptConfig(path=str(tmp_path), frame_folders_fps=16)], videos=True), 0.3)
    names = held_names(dataset)
    originals = {name.removesuffix(".0") for name in names if name.endswith(".0")}
    assert 2 <= len(originals) <= 12
    assert names == {f"{name}.{copy}" for name in originals for copy in (0, 1)}


def test_held_out_pictures_never_train_and_count_for_nothing(picture_folder):
    dataset = hold_out(scan([ConceptConfig(path=str(picture_folder(SIZES)), repeats=1.5)]), 0.25)
    plan, _ = plan_of(dataset)
    num_trained = int((~dataset.held_out).sum())
    assert plan.num_samples == int(1.5 * num_trained + 0.5)
    shown = set()
    for step in plan.steps(0, 0, 0, 1, 1):
        if step.epoch == 5:
            break
        shown |= {int(row[0]) for batch in step.micro_batches for row in batch.samples}
    assert shown == set(np.flatnonzero(~dataset.held_out).tolist())


def test_a_concept_may_be_for_validation(picture_folder):
    train, held = picture_folder(((32, 32),) * 3), picture_folder(((32, 32),) * 2, name="held")
    concepts = [ConceptConfig(path=str(train)), ConceptConfig(path=str(held), validation=True)]
    dataset = hold_out(scan(concepts), 0.0)
    assert dataset.held_out.tolist() == [False] * 3 + [True] * 2
    assert plan_of(dataset)[0].validation_samples.tolist() == [3, 4]
    assert samples_digest(dataset) != samples_digest(scan(concepts))


def test_nothing_is_held_out_unless_asked(picture_folder):
    dataset = scan([ConceptConfig(path=str(picture_folder()))])
    assert hold_out(dataset, 0.0) is dataset
    assert plan_of(dataset)[0].validation(0, 1, 4) == []


def test_holding_out_everything_is_refused(picture_folder):
    dataset = scan([ConceptConfig(path=str(picture_folder()), validation=True)])
    with pytest.raises(DataError, match="all 4 images are held out"):
        hold_out(dataset, 0.0)


def test_regularisation_pictures_match_those_that_train(picture_folder):
    subject, prior = picture_folder(SIZES), picture_folder(((32, 32),) * 10, name="prior")
    concepts = [ConceptConfig(path=str(subject)), ConceptConfig(path=str(prior), regularisation=True)]
    dataset = hold_out(scan(concepts), 0.3)
    is_prior = dataset.concept_index == 1
    assert dataset.repeats[is_prior].sum() == pytest.approx(dataset.repeats[~is_prior].sum())
    assert dataset.repeats[dataset.held_out].sum() == 0
    assert dataset.held_out.any()
    assert not dataset.held_out[is_prior].any()


def test_a_share_that_holds_nothing_out_is_told_where_it_is_to_be_measured():
    config = TrainConfig(data={"validation_share": 0.01}, validation={"every": 1, "unit": "epochs"})
    assert no_validation_warning(config, 0).startswith("data.validation_share 0.01 holds out none of the images")
    assert no_validation_warning(config, 1) is None
    assert no_validation_warning(TrainConfig(data={"validation_share": 0.01}), 0) is None
    assert no_validation_warning(TrainConfig(validation={"every": 1, "unit": "epochs"}), 0) is None  # validation warns


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_ranks_share_the_validation_samples(picture_folder, num_ranks, batch_size):
    dataset = hold_out(scan([ConceptConfig(path=str(picture_folder(SIZES)))]), 0.25)
    plan, buckets = plan_of(dataset, unusable=[int(np.flatnonzero(hold_out(dataset, 0.25).held_out)[0])])
    seen = []
    for rank in range(num_ranks):
        for batch in plan.validation(rank, num_ranks, batch_size):
            assert 1 <= len(batch.samples) <= batch_size
            assert set(buckets.index[batch.samples[:, 0]].tolist()) == {batch.bucket}
            assert batch.samples[:, 1].tolist() == [0] * len(batch.samples)
            seen += batch.samples[:, 0].tolist()
    assert sorted(seen) == plan.validation_samples.tolist()
    assert len(seen) == dataset.held_out.sum() - 1


def test_ranks_beyond_the_validation_samples_have_none(picture_folder):
    train, held = picture_folder(((32, 32),) * 3), picture_folder(((32, 32),) * 2, name="held")
    dataset = hold_out(scan([ConceptConfig(path=str(train)), ConceptConfig(path=str(held), validation=True)]), 0.0)
    plan, _ = plan_of(dataset)
    assert [len(plan.validation(rank, 4, 2)) for rank in range(4)] == [1, 1, 0, 0]


def test_held_out_pictures_are_measured_as_they_are(picture_folder):
    train, held = picture_folder(((32, 32),) * 3), picture_folder(((32, 32),) * 2, name="held")
    looks = {"augmentation": AugmentationConfig(flip=True, rotation=10)}
    concepts = [ConceptConfig(path=str(train), **looks), ConceptConfig(path=str(held), validation=True, **looks)]
    dataset, resolution = with_views(hold_out(scan(concepts), 0.0), DataConfig(resolutions=[32, 24]), 1)
    assert dataset.held_out.tolist() == [False] * 24 + [True] * 2
    assert resolution[-2:].tolist() == [32, 32]
    assert not augmentation_of(dataset, 24).cache_key_part
    assert augmentation_of(dataset, 0).cache_key_part
