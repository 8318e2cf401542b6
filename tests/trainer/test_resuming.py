"""The ranks agree on the backup to resume from."""

from __future__ import annotations

import shutil

import pytest
import torch

from modules.trainer import sent_backups
from modules.trainer.BackupStore import BackupStore
from modules.trainer.resuming import check_same_parameters, newest_backup
from modules.trainer.TrainingError import TrainingError
from tests.support.backup_files import state_of
from tests.support.ThreadRanks import ThreadRanks


@pytest.fixture
def folders(tmp_path):
    """The backup folders of two machines without a shared disk, each with backups of steps 5 and 10."""
    found = [tmp_path / "first", tmp_path / "second"]
    for folder in found:
        store = BackupStore(folder, 2, lambda path, step: None, pytest.fail)
        folder.mkdir()
        for step in (5, 10):
            store.write({"model": {"weight": torch.ones(2)}, "optimizer": {}}, state_of(step))
        store.wait()
    return found


def resume(folders) -> list:
    """The result of each rank: the step of its backup, or the error."""

    def of_rank(runtime):
        store = BackupStore(folders[runtime.rank], 2, lambda path, step: None, lambda text: None)
        try:
            backup = newest_backup(store, runtime)
        except TrainingError as error:
            return str(error)
        return backup and backup.data["step"]

    return ThreadRanks(len(folders), num_nodes=2).run(of_rank)


def test_all_ranks_resume_from_the_newest_good_backup_of_rank_0(folders):
    assert resume(folders) == [10, 10]
    (folders[0] / "step-000000010" / "manifest.json").unlink()
    assert resume(folders) == [5, 5]


def test_if_all_backups_are_damaged_every_rank_raises(folders):
    for path in folders[0].iterdir():
        (path / "model.safetensors").unlink()
    first, second = resume(folders)
    assert second == first.replace(str(folders[0]), "rank 0's backup folder")  # no path travels between ranks
    assert first.startswith(f"None of the backups in {folders[0]} can be resumed from: ")
    assert first.count("model.safetensors is missing") == 2


def test_without_backups_all_ranks_start_fresh(folders, tmp_path):
    assert resume([tmp_path / "none", folders[1]]) == [None, None]


def test_a_backup_damaged_on_another_machine_is_refused_by_all_ranks(folders):
    (folders[1] / "step-000000010" / "model.safetensors").write_bytes(b"")
    for told in resume(folders):
        assert "Rank 1 can't read the backup step-000000010" in told
        assert "model.safetensors has 0 bytes" in told


def test_a_machine_without_the_backup_gets_it_from_rank_0_for_all_of_its_ranks(folders, monkeypatch):
    monkeypatch.setattr(sent_backups, "CHUNK_BYTES", 100)  # so that the files take several
    (folders[1] / "step-000000010").rename(folders[1] / "away")
    there = set(folders[1].iterdir())
    assert resume([folders[0], folders[0], folders[1], folders[1]]) == [10] * 4
    assert set(folders[1].iterdir()) == there
    shutil.rmtree(folders[1])
    assert resume(folders) == [10, 10]


def test_a_machine_that_has_no_space_for_the_backup_is_named_by_all_ranks(folders):
    shutil.rmtree(folders[1])
    folders[1].touch()
    for told in resume(folders):
        assert told.startswith("Rank 1 can't read the backup step-000000010 in ")
        assert "a copy of rank 0's can't be written: " in told


def parameters(*layers: str) -> dict[str, torch.Tensor]:
    return {
        f"transformer.blocks.{n}.{layer}.lora_A.default.weight": torch.ones(2) for n in range(2) for layer in layers
    }


def test_a_backup_without_the_layers_of_what_a_family_has_learned_since_says_how_to_leave_them_out():
    saved = parameters("attn1.to_q", "attn1.to_k")
    own = saved | parameters("audio_attn1.to_q", "video_to_audio_attn.to_k")
    with pytest.raises(TrainingError, match=r'has not 4 of the 8 .* add "\*audio\*" to denoiser.exclude_layers'):
        check_same_parameters(own, own.keys(), saved)
    with pytest.raises(TrainingError, match=r"2 missing, 0 unexpected.* resume with the settings of the original run"):
        check_same_parameters(own, own.keys(), {name: own[name] for name in own if ".0.attn1" not in name})
    with pytest.raises(TrainingError, match="0 missing, 4 unexpected"):
        check_same_parameters(saved, saved.keys(), own)
    check_same_parameters(own, own.keys(), own)
