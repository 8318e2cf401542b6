"""scripts/examples/gallery: each program equals the loop by hand on one rank and on two, and survives being killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch

from modules.weights.safe import load_tensors
from tests.support.fork_server import ROOT, ForkedScript
from tests.support.gallery_programs import train_on_ranks, weights_by_hand
from tests.support.RankPool import run_alone

PATIENCE_SECONDS = 300
MAX_LINES = 60
GALLERY = ROOT / "scripts" / "examples" / "gallery"
KILLING = ROOT / "tests" / "support" / "gallery_programs.py"
PROGRAMS = sorted(path.stem for path in GALLERY.glob("[!_]*.py"))
IN_EVERY_RUN = ("detection", "gan", "rnn")


def programs() -> list[object]:
    """All of them, most as proofs."""
    return [pytest.param(name, marks=() if name in IN_EVERY_RUN else pytest.mark.proof) for name in PROGRAMS]


def checkpoints(name: str, folder: Path) -> list[Path]:
    """Those of a program's last training."""
    training = {"distillation": "student"}.get(name, "experiment")
    return list((folder / "workspace" / "gallery" / name / training / "checkpoints" / "last").iterdir())


def trained(name: str, folder: Path, file: str = "model") -> dict[str, torch.Tensor]:
    """What a file of the only checkpoint has."""
    (checkpoint,) = checkpoints(name, folder)
    return load_tensors(checkpoint / f"{file}.safetensors")


@pytest.mark.parametrize("name", programs())
def test_a_program_gives_the_weights_of_the_loop_by_hand_on_one_rank_and_on_two(name, two_ranks, tmp_path):
    by_hand = weights_by_hand(name, tmp_path)
    for ranks, run in {1: run_alone, 2: two_ranks.run}.items():
        folder = tmp_path / str(ranks)
        folder.mkdir()
        run(train_on_ranks, name=name, folder=str(folder))
        weights = trained(name, folder)
        assert weights.keys() == by_hand.keys()
        for key, value in by_hand.items():
            torch.testing.assert_close(weights[key], value, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.proof)])
@pytest.mark.parametrize("name", programs())
def test_a_program_that_is_killed_goes_on_bit_for_bit(name, ranks, tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}

    def run(script: Path, *arguments: str, folder: str) -> int:
        (tmp_path / folder).mkdir(exist_ok=True)
        output = tmp_path / f"{folder}.txt"
        return ForkedScript([str(script), *arguments], environment, output, tmp_path / folder).wait(PATIENCE_SECONDS)

    assert run(GALLERY / f"{name}.py", str(ranks), folder="whole") == 0, (tmp_path / "whole.txt").read_text()
    assert run(KILLING, name, str(ranks), folder="killed") == (-signal.SIGKILL if ranks == 1 else 1)
    assert checkpoints(name, tmp_path / "killed")  # there may also be one that it was writing
    assert run(GALLERY / f"{name}.py", str(ranks), folder="killed") == 0, (tmp_path / "killed.txt").read_text()
    for file in ("model", "optimizer"):
        whole, killed = (trained(name, tmp_path / folder, file) for folder in ("whole", "killed"))
        assert whole.keys() == killed.keys()
        assert all(torch.equal(killed[key], value) for key, value in whole.items())


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_short_and_listed(name):
    assert len((GALLERY / f"{name}.py").read_text(encoding="utf-8").splitlines()) <= MAX_LINES
    assert f"gallery/{name}.py)" in (ROOT / "docs" / "engine_gallery.md").read_text(encoding="utf-8")
