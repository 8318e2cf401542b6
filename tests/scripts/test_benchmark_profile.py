"""The profile of a step: what belongs to which part, and a real one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import diffusers
import pytest
import torch

from modules.trainer import TrainingLoop
from scripts import benchmark
from scripts.benchmarks import profiling, registry

OF_TORCH, OF_DIFFUSERS, OF_TRAINER = (str(Path(module.__file__)) for module in (torch, diffusers, TrainingLoop))


@pytest.mark.parametrize(
    ("file", "name", "part"),
    [
        ("~", "<built-in method torch._C._nn.linear>", profiling.OPERATORS),
        ("~", "<method 'to' of 'torch._C.TensorBase' objects>", profiling.OPERATORS),
        ("~", "<built-in method apply>", profiling.OPERATORS),
        ("~", "<method 'run_backward' of 'torch._C._EngineBase' objects>", profiling.BACKWARD),
        ("~", "<method 'acquire' of '_thread.lock' objects>", profiling.WAITS),
        ("~", "<method 'flush' of '_io.TextIOWrapper' objects>", profiling.FILES),
        ("~", "<built-in method builtins.len>", profiling.OTHERS),
        (OF_TORCH, "forward", profiling.TORCH),
        (OF_DIFFUSERS, "forward", profiling.LIBRARIES),
        (OF_TRAINER, "train_step", "modules/trainer"),
        ("<string>", "made up", profiling.OTHERS),
    ],
)
def test_a_function_belongs_to_the_part_that_it_is_written_in(file, name, part):
    assert profiling.part_of(file, name) == part


@pytest.fixture
def material(tmp_path, tiny_sd15, picture_folder):
    folder = tmp_path / "benchmark"
    shutil.copytree(tiny_sd15, folder / "model")
    picture_folder(sizes=((32, 32),) * 4, name="benchmark/pictures")
    return folder


def test_a_step_is_divided_into_its_parts(material, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(registry, "cases_of", lambda method, num_ranks: [(method, (), 1)])
    figures = tmp_path / "figures.json"
    options = ["--method", "lora", "--steps-per-block", "1", "--folder", str(material), "--json", str(figures)]
    assert benchmark.main(["profile", *options]) == 0
    (profile,) = json.loads(figures.read_text(encoding="utf-8"))["profile"]
    shares = profile["shares"]
    assert sum(shares.values()) == pytest.approx(1)
    assert {profiling.BACKWARD, profiling.OPERATORS, profiling.TORCH, profiling.LIBRARIES, "modules/trainer"} <= {
        *shares
    }
    assert profile["computing"] == shares[profiling.BACKWARD] + shares[profiling.OPERATORS]
    assert capsys.readouterr().out.startswith("lora, cpu: a step takes ")
