"""Caching is compared with a loop written by hand that gives the same; what it takes is not judged here."""

from __future__ import annotations

import contextlib
import shutil
from types import SimpleNamespace

import pytest
import torch

from scripts import benchmark
from scripts.benchmarks import caching_chorus, caching_hand, workers
from scripts.benchmarks.worker import Answer, WorkerArguments


@pytest.fixture
def folder(tmp_path, tiny_sd15, picture_folder):
    """A benchmark folder whose model and pictures are there already, and are tiny."""
    folder = tmp_path / "benchmark"
    shutil.copytree(tiny_sd15, folder / "model")
    picture_folder(sizes=((32, 32),), name="benchmark/pictures")
    captions = [f"photo number {number}" for number in range(6)]
    picture_folder(sizes=((64, 64), (80, 48)) * 3, captions=captions, name="benchmark/photos")
    return folder


def test_both_sides_cache_the_same_tensors(folder, tmp_path):
    from safetensors.torch import load_file

    from modules.config.files import config_from_values
    from modules.distributed.Runtime import Runtime
    from modules.session.TrainCallbacks import TrainCallbacks
    from modules.session.TrainCommands import TrainCommands
    from modules.trainer.StartProgress import StartProgress

    arguments = WorkerArguments(folder, "lora", steps=1, turns=1, run_folder=tmp_path)
    ours, by_hand = tmp_path / "ours", tmp_path / "by hand"
    runtime = Runtime(torch.device("cpu"))
    progress = StartProgress(runtime, TrainCallbacks(), TrainCommands())
    config = config_from_values(caching_chorus.caching_values(arguments))
    caching_chorus.cache_all(config, ours, runtime, progress)
    caching_hand.cache_all(by_hand, runtime.device, arguments)
    cached = [sorted(map(load_file, side.rglob("*.safetensors")), key=describe) for side in (ours, by_hand)]
    assert len(cached[0]) == 6 + 7  # images, and captions with the empty one
    torch.testing.assert_close(*cached, rtol=1e-5, atol=1e-5)


def describe(record: dict[str, torch.Tensor]) -> tuple:
    ((name, tensor),) = record.items()
    return name, tuple(tensor.shape), tensor.double().sum().item()


def test_time_processor_time_and_images_per_second_are_compared(folder, monkeypatch, capsys):
    """By programs that answer without caching."""
    waits = set()

    @contextlib.contextmanager
    def program(name, arguments, device, num_ranks, one_thread):
        monkeypatch.setattr("sys.argv", [name, *arguments.as_options()])
        waits.add(WorkerArguments.parse().decoder_seconds)  # what the program itself would read
        seconds, undisturbed = (1.0, 0.5) if name == "caching_chorus" else (2.0, 1.5)
        answer = Answer(seconds, 3.0, 0.0, None, device, num_ranks, undisturbed_seconds=undisturbed)
        yield SimpleNamespace(turn=lambda: answer)

    monkeypatch.setattr(workers, "start_worker", program)
    assert benchmark.main(["caching", "--pairs", "2", "--ranks", "1", "--folder", str(folder)]) == 0
    assert waits == {0.0, 0.1}
    said = capsys.readouterr().out
    assert "caching, cpu: ratio 0.500" in said
    assert "caching, cpu, processor time: ratio 1.000" in said
    assert "caching with a slow decoder, cpu: ratio 3.000" in said
    assert "Chorus 12 images/s, by hand 4 images/s" in said
