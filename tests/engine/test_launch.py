"""Launched trainings: the same curve on any number of ranks, failures that end all ranks, stops with a checkpoint."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from modules.engine import launch as launch_module
from modules.engine.Float32Precision import Float32Precision
from modules.trainer import launch_distributed_training
from modules.weights.safe import load_tensors
from tests.support.engine_data import small_net
from tests.support.fork_server import ROOT, ForkedScript, call_forked, pids_that_write_to
from tests.support.waiting import wait_until

PATIENCE_SECONDS = 300
PROGRAM = ROOT / "tests" / "support" / "launched_training.py"


def launch(scenario: str, folder: Path, ranks: int) -> ForkedScript:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return ForkedScript([str(PROGRAM), scenario, str(folder), str(ranks)], environment, folder / f"{scenario}.txt")


def result(scenario: str, folder: Path, ranks: int) -> dict:
    path = folder / f"{scenario}-{ranks}.json"
    assert path.exists(), (folder / f"{scenario}.txt").read_text()
    return json.loads(path.read_text())


def launched(scenario: str, folder: Path, ranks: int) -> dict:
    assert launch(scenario, folder, ranks).wait(PATIENCE_SECONDS) == 0, (folder / f"{scenario}.txt").read_text()
    return result(scenario, folder, ranks)


@pytest.fixture(scope="module")
def curves(tmp_path_factory) -> dict[int, dict]:
    """The results on one rank and on two; "folder" is the folder of their checkpoints."""
    folder = tmp_path_factory.mktemp("curves")
    return {ranks: {**launched("curves", folder, ranks), "folder": folder} for ranks in (1, 2)}


@pytest.mark.parametrize("name", ["norm", "plain", "stream", "time first"])
def test_two_ranks_give_the_curve_of_one(name, curves):
    one, two = (curves[ranks][name] for ranks in (1, 2))
    assert one.keys() == two.keys()
    for figure in one:
        assert two[figure] == pytest.approx(one[figure], rel=1e-9)


def test_torchmetrics_objects_count_each_sample_of_both_ranks_once(curves):
    pytest.importorskip("torchmetrics")
    one, two = (dict(curves[ranks]["objects"]) for ranks in (1, 2))
    assert "metric 'auroc': rank 0 has no samples to compute it from" in two.pop("refusal")
    assert two == pytest.approx(one)
    assert one["object"] == pytest.approx(one["hand"])


def test_predictions_of_two_ranks_are_in_order(curves):
    assert len(curves[2]["predictions"]) == 11
    for one, two in zip(curves[1]["predictions"], curves[2]["predictions"], strict=True):
        assert two == pytest.approx(one, rel=1e-6)


def test_a_tensor_is_reduced_to_its_mean(curves):
    assert [curves[ranks]["mean"] for ranks in (1, 2)] == [[0.0], [0.5]]


def test_ranks_with_uneven_distributed_samplers_end_cleanly(curves):
    assert len(curves[2]["uneven"]["train_loss"]) == 2


def test_the_tutorial_on_data_parallelism_gives_the_losses_of_its_own_loop(curves):
    by_hand, by_engine = curves[2]["tutorial"]
    assert len(by_engine) == 100
    assert by_engine == pytest.approx(by_hand, rel=1e-9)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_checkpoint_loads_into_the_bare_model(ranks, curves):
    (path,) = (curves[ranks]["folder"] / f"norm-{ranks}" / "checkpoints" / "last").iterdir()
    small_net().load_state_dict(load_tensors(path / "model.safetensors"))


def test_a_failure_ends_all_ranks_and_names_the_cause(tmp_path):
    said = launched("failing", tmp_path, 2)
    assert said["raise"].endswith("RuntimeError: the data are gone")
    assert "Rank 1" in said["die"]
    assert "SIGKILL" in said["die"]
    assert "has not moved for" in said["hang"]
    assert "while training (limit 3 s)" in said["hang"]
    assert said["lock"].startswith("lock can't be sent to the ranks (TypeError: cannot pickle '_thread.lock' object)")


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_first_ctrl_c_stops_after_the_step_with_a_checkpoint_to_resume_from(ranks, tmp_path):
    process = launch("long", tmp_path, ranks)
    written = tmp_path / f"long-{ranks}" / "history.json"
    wait_until(lambda: written.exists() or process.poll() is not None, PATIENCE_SECONDS)
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(PATIENCE_SECONDS) == 0, (tmp_path / "long.txt").read_text()
    stopped = result("long", tmp_path, ranks)
    assert not pids_that_write_to(tmp_path / "long.txt")
    resumed = launched("long", tmp_path, ranks)
    assert len(resumed["train_loss"]) == len(stopped["train_loss"]) + 1
    assert resumed["train_loss"][:-1] == stopped["train_loss"]


def test_workers_load_what_only_the_program_itself_defines(tmp_path):
    found = launched("workers", tmp_path, 2)
    assert found["own"] == found["spawn"] == found["none"]


def test_what_goes_wrong_on_several_ranks_only_is_told_after_a_step(tmp_path):
    found = launched("mistakes", tmp_path, 2)
    assert "Call the model that step_fn is given, not the module itself" in found["around"]
    assert found["attribute"].startswith("layers.0.")
    without = "Trainable parameters (idle.weight, idle.bias) got no gradient in the last step"
    assert found["half used"].startswith(without)
    assert found["another program"].startswith("Rank 1 has experiment_name 'of rank 1', but rank 0 has 'of rank 0'")


# Its data are more than a pipe holds.
UNGUARDED = """
from modules.trainer import launch_distributed_training

def train(rank, world_size, numbers):
    return len(numbers)

launch_distributed_training(train, world_size=2, numbers=list(range(100_000)))
"""


def test_a_launch_without_a_main_guard_ends_with_one_sentence(tmp_path):
    (tmp_path / "program.py").write_text(UNGUARDED)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(tmp_path / "program.py")]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert ran.returncode == 1
    sentence = 'call launch_distributed_training below `if __name__ == "__main__":`'
    assert sentence in ran.stderr.splitlines()[-1]
    assert "bootstrapping" not in ran.stderr


@pytest.fixture
def not_started(monkeypatch) -> list[bytes]:
    """What would be sent to the ranks of a launch, none of which is started."""
    sent = []
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "")  # or a launch would set it for the tests after this one, too
    monkeypatch.delenv("CUDA_DEVICE_ORDER")

    def supervise(folder, *_):
        sent.append((folder.path / launch_module.PROGRAM_NAME).read_bytes())
        return 0

    monkeypatch.setattr(launch_module, "_supervise", supervise)
    return sent


@pytest.fixture
def own_precision():
    """Leaves this process's precision as it was."""
    yield
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = True


def test_ranks_take_over_the_precision_of_float32_products(not_started, own_precision):
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = False
    launch_distributed_training(print, world_size=2)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = True
    precision, _, _ = launch_module._unpacked(not_started[0])
    precision.set()
    assert torch.get_float32_matmul_precision() == "high"
    assert not torch.backends.cudnn.allow_tf32


def test_a_precision_that_was_set_by_the_newer_interface_is_taken_over_too():
    """In a process of its own: after this, PyTorch can't read the older one any more."""
    assert call_forked(newer_precision) == ["tf32", "ieee"]


def newer_precision() -> list[str]:
    backends = torch.backends.cuda.matmul, torch.backends.cudnn.conv
    backends[0].fp32_precision, backends[1].fp32_precision = "tf32", "ieee"
    precision = Float32Precision.of_this_process()
    backends[0].fp32_precision, backends[1].fp32_precision = "ieee", "tf32"
    precision.set()
    return [backend.fp32_precision for backend in backends]


def test_ranks_count_gpus_as_the_launch_does_while_they_import_the_program(not_started):
    """A program may import diffusers, which asks CUDA for its devices; their order is settled by then."""
    launch_distributed_training(print, world_size=2)
    assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_if_ranks_can_not_join_one_process_trains_alone(tmp_path):
    assert launched("alone", tmp_path, 2) == {"ran": [0, 1]}
    assert "One process trains alone instead" in (tmp_path / "alone.txt").read_text()


def test_a_program_runs_under_torchrun_unchanged(tmp_path):
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", str(PROGRAM)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    output = tmp_path / "torchrun.txt"
    ran = ForkedScript([*command, "once", str(tmp_path), "2"], environment, output)
    assert ran.wait(PATIENCE_SECONDS) == 0, output.read_text(encoding="utf-8")
    assert len(result("once", tmp_path, 2)["train_loss"]) == 3
