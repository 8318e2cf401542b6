"""What a run writes is never trained on, unless a person names it as what to train on."""

import os
from pathlib import Path

import pytest
from PIL import Image

from modules.config.ConceptConfig import ConceptConfig
from modules.config.files import config_from_values
from modules.data.concepts import scan
from modules.data.errors import DataError
from modules.data.folder_walk import Outputs
from modules.data.health import check_health
from modules.data.prepare import prepare_data
from modules.data.run_summary import image_warnings
from modules.data.RunPlan import samples_digest
from modules.families.registry import FAMILIES
from modules.session.RunFolder import RunFolder
from modules.ui.cards.ConceptCards import ConceptCard
from modules.ui.models.concept_preview import find_pictures
from modules.ui.models.picture_count import count_pictures, scan_key
from tests.support.run_summaries import summary_text


@pytest.fixture
def folder(picture_folder) -> Path:
    return picture_folder(((64, 64),) * 4)


def make_run(path: Path, has_begun: bool = True, num_samples: int = 3) -> RunFolder:
    """A run folder with samples. has_begun: False for one that the run at hand has only just made."""
    run = RunFolder(path)
    run.create()
    if has_begun:
        run.event_path(0).write_text('{"type": "status"}\n')
    step = run.samples_dir / "step-000000010"
    step.mkdir()
    for number in range(num_samples):
        Image.new("RGB", (64, 64)).save(step / f"{number}.png")
    return run


def names(dataset) -> list[str]:
    return [Path(path).name for path in dataset.paths]


def scan_one(path, outputs=Outputs(), **changes):  # noqa: B008 - frozen
    return scan([ConceptConfig(path=str(path), **changes)], outputs=outputs)


OWN = ["000.png", "001.png", "002.png", "003.png"]


def test_the_run_at_hand_is_left_out_before_it_has_written_an_event(folder):
    run = make_run(folder / "run", has_begun=False)
    dataset = scan_one(folder, Outputs(str(run.path)))
    assert names(dataset) == OWN
    assert dataset.run_images == {str(run.path): 3}


def test_an_earlier_run_is_left_out_with_all_that_lies_in_it(folder):
    run = make_run(folder / "deep" / "earlier")
    Image.new("RGB", (64, 64)).save(run.path / "before_after.png")
    dataset = scan_one(folder)
    assert names(dataset) == OWN
    assert dataset.run_images == {str(run.path): 4}


def test_folders_that_are_only_named_like_those_of_a_run_are_data(folder):
    for name in ("events", "samples", "backup"):
        (folder / name).mkdir()
        Image.new("RGB", (64, 64)).save(folder / name / f"{name}.png")
    (folder / "config.yaml").write_text("")
    dataset = scan_one(folder)
    assert names(dataset) == [*OWN, "backup.png", "events.png", "samples.png"]
    assert dataset.run_images == {}


@pytest.mark.parametrize("below", ["samples", "samples/step-000000010"])
def test_samples_can_be_named_as_what_to_train_on(tmp_path, below):
    run = make_run(tmp_path / "run")
    assert names(scan_one(run.path / below, Outputs(str(run.path)))) == ["0.png", "1.png", "2.png"]


@pytest.mark.parametrize("has_begun", [True, False])
def test_a_run_in_the_folder_of_the_data_itself_takes_its_own_folders_out(folder, has_begun):
    make_run(folder, has_begun)
    (folder / "more").mkdir()
    Image.new("RGB", (64, 64)).save(folder / "more" / "x.png")
    dataset = scan_one(folder, Outputs("" if has_begun else str(folder)))
    assert names(dataset) == [*OWN, "x.png"]
    assert dataset.run_images == {str(folder): 3}


def test_without_subfolders_there_is_nothing_to_leave_out(folder):
    make_run(folder)
    assert scan_one(folder, include_subfolders=False).run_images == {}


def test_what_the_patterns_exclude_is_not_told_of(folder):
    make_run(folder / "run")
    assert scan_one(folder, exclude="run/*").run_images == {}


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
def test_a_link_to_a_run_folder_is_left_out_and_one_to_earlier_samples_is_a_choice(folder, tmp_path):
    run = make_run(tmp_path / "elsewhere" / "run")
    (folder / "link").symlink_to(run.path)
    assert names(scan_one(folder)) == OWN
    (folder / "chosen").symlink_to(run.samples_dir)
    assert names(scan_one(folder)) == [*OWN, "0.png", "1.png", "2.png"]
    dataset = scan_one(folder, Outputs(str(run.path)))  # but not those of the run that goes on writing there
    assert names(dataset) == OWN
    assert dataset.run_images == {str(run.path): 3}


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
def test_the_settings_may_name_the_run_folder_by_a_link(folder, tmp_path):
    make_run(folder / "run", has_begun=False)
    (tmp_path / "link").symlink_to(folder / "run")
    assert names(scan_one(folder, Outputs(str(tmp_path / "link")))) == OWN


def test_the_cache_is_not_looked_into(folder, monkeypatch):
    (folder / "cache" / "rank-0" / "latents").mkdir(parents=True)
    scandir, seen = os.scandir, []
    monkeypatch.setattr(os, "scandir", lambda path: seen.append(Path(path).name) or scandir(path))
    assert names(scan_one(folder, Outputs(cache_dir=str(folder / "cache")))) == OWN
    assert "rank-0" not in seen


def test_where_only_a_run_has_left_images_they_are_named(tmp_path):
    run = make_run(tmp_path / "data" / "run")
    with pytest.raises(DataError, match=r"concepts\.0\.path .*data: .*3 images of the run folder .*run.* samples"):
        scan_one(tmp_path / "data")
    with pytest.raises(DataError, match="3 images of the run folder"):
        scan_one(run.path)


@pytest.fixture
def config(tiny_sd15, folder):
    values = {
        "model": {"base": str(tiny_sd15)},
        "workspace_dir": str(folder / "run"),
        "cache_dir": str(folder / "cache"),
        "batch_size": 1,
        "data": {"resolution": 64, "bucket_step": 16},
        "concepts": [{"path": str(folder)}],
    }
    return config_from_values(values)


def test_everything_that_counts_or_shows_images_leaves_out_the_same(config, folder):
    before = samples_digest(prepare_data(config, FAMILIES["sd15"])[0])
    make_run(folder / "run", has_begun=False)
    make_run(folder / "earlier")
    dataset, _ = prepare_data(config, FAMILIES["sd15"])
    assert names(dataset) == OWN
    assert samples_digest(dataset) == before
    assert count_pictures(config, lambda: True) == (4, ())
    found = find_pictures(config.concepts[0], 0, outputs=Outputs.of(config))
    assert (len(found.paths), found.num_of_runs) == (4, 6)
    assert ConceptCard(config.concepts[0], found).counts == "4 images, 6 written by runs left out"
    health = check_health(config)
    assert health.num_pictures == 4
    assert {finding.kind for finding in health.findings} == {"run_images"}
    told = [f"3 images of the run folder {folder / name} will be left out." for name in ("earlier", "run")]
    assert [finding.message for finding in health.findings] == told
    assert list(image_warnings(config, dataset)) == told
    lines = [line.partition(":") for line in summary_text(config).splitlines()]
    found = [text.strip() for label, _, text in lines if label == "Left out"]
    assert found == [f"3 images of the run folder {folder / name}" for name in ("earlier", "run")]


def test_the_window_looks_again_only_where_the_run_is_moved_into_or_out_of_the_data(config, folder, tmp_path):
    concept = config.concepts[0]
    outside = scan_key(concept, Outputs(str(tmp_path / "one"), str(tmp_path / "cache")))
    assert scan_key(concept, Outputs(str(tmp_path / "two"), "cache")) == outside
    assert scan_key(concept, Outputs(f"{folder}-2", "cache")) == outside
    assert scan_key(concept, Outputs(str(folder / "run"), "cache")) != outside
    assert scan_key(concept, Outputs(str(folder), "cache")) != outside
