"""Why a model can't be fetched from the Hub, in a sentence."""

import socket

import pytest
from huggingface_hub import errors, snapshot_download

from modules.machine.hub import hub_problem


def raised(kind: type[Exception]) -> Exception:
    """An error as diffusers raises it: an OSError with the Hub's own as its cause."""
    error = OSError("Cannot load model x/y: pass 'local_files_only=False' as input.")
    error.__cause__ = kind.__new__(kind)
    return error


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (errors.GatedRepoError, "accept it on the model's page, then run `hf auth login`"),
        (errors.RepositoryNotFoundError, "there is no such model, or it is private"),
        (errors.RevisionNotFoundError, "no such revision"),
        (errors.OfflineModeIsEnabled, "HF_HUB_OFFLINE is set"),
        (ConnectionResetError, "the Hub can't be reached"),
        (TimeoutError, "the Hub can't be reached"),
    ],
)
def test_known_problems_have_a_remedy(kind, words):
    text = hub_problem(raised(kind))
    assert words in text
    assert "local_files_only" not in text


def test_another_problem_is_told_as_it_is():
    assert hub_problem(OSError("the disk is full")) == "the disk is full; check the name and the connection"


def test_a_hub_that_nobody_listens_at_can_not_be_reached(tmp_path, monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with pytest.raises(Exception) as caught:
        snapshot_download("somebody/something", cache_dir=tmp_path, endpoint=endpoint)
    assert "the Hub can't be reached" in hub_problem(caught.value)
